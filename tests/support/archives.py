"""Writes what a file sink would have of a workload."""

from __future__ import annotations

import asyncio
from pathlib import Path

from binlogd.binlog import BinlogType, CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.wire.joining import join
from tests.support.decoding import decoded
from tests.workload.generator import Workload


def translated(workload: Workload) -> list[Txn]:
    """Everything that was committed, in commit order, as a sink gets it."""
    prewrites: dict[int, bytes] = {}
    joined: dict[int, CommittedBinlog] = {}
    for record in workload.records():
        if record.kind == BinlogType.PREWRITE:
            prewrites[record.fate.start_ts] = record.payload
        elif record.kind == BinlogType.COMMIT:
            payload = join(prewrites[record.fate.start_ts], record.payload)
            joined[record.ts] = CommittedBinlog(record.fate.start_ts, record.ts, payload)
    jobs = jobs_from_json(workload.history())
    by_id = {job.id: job for job in jobs}
    tracker = SchemaTracker()
    tracker.load(jobs)
    translator = Translator(tracker, TableFilter(), Dialect.FILE)
    return [translator.translate(decoded(binlog, by_id)) for _, binlog in sorted(joined.items())]


async def write_archive(workload: Workload, directory: Path) -> None:
    """The files of a file sink, several of them."""
    disk = PosixDisk(threads=1)
    sink = FileSink(
        directory,
        directory.with_name("savepoint"),
        disk=disk,
        clock=WallClock(),
        options=FileSinkOptions(max_file_bytes=100_000),
    )
    async with asyncio.TaskGroup() as group:
        await sink.open()
        group.create_task(sink.run())
        txns = translated(workload)
        for begin in range(0, len(txns), 100):
            await sink.submit(txns[begin : begin + 100])
        await sink.flush()
        await sink.close()
    disk.close()
