"""Recordings as the file sink writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from tests.support.decoding import decoded
from tests.support.recordings_reader import RECORDINGS, committed, history


def recorded_txns(name: str) -> Iterator[Txn]:
    """A recording as a file sink is given it."""
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / name))}
    tracker = SchemaTracker()
    tracker.load(jobs.values())
    translator = Translator(tracker, TableFilter(), Dialect.FILE)
    for binlog in committed(RECORDINGS / name):
        yield translator.translate(decoded(binlog, jobs))


async def written(name: str, directory: Path, *, max_file_bytes: int = 1 << 20) -> Path:
    """The output directory of a file sink that was given a whole recording."""
    disk = PosixDisk(threads=2)
    sink = FileSink(
        directory / "out",
        directory / "savepoint",
        disk=disk,
        clock=WallClock(),
        options=FileSinkOptions(max_file_bytes=max_file_bytes),
    )
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await sink.submit(list(recorded_txns(name)))
        await sink.flush()
        await sink.close()
    disk.close()
    return directory / "out"
