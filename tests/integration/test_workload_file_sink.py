"""A workload through translation and the file sink, read back: what the model says, row by row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType, CommittedBinlog
from binlogd.drainer.ddl_edits import Dialect
from binlogd.drainer.file_sink import FileSink, FileSinkOptions
from binlogd.drainer.filter import TableFilter
from binlogd.drainer.translate import Translator, ddl_job_id
from binlogd.drainer.txn import Txn
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.wire import peek
from binlogd.workload.generator import Options, Workload
from binlogd.workload.replica import Replica, differences
from binlogd.workload.sink_tail import SinkTail, replay


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


def translated(workload: Workload) -> list[Txn]:
    """Everything that was committed, in commit order, as a sink gets it."""
    prewrites: dict[int, bytes] = {}
    joined: dict[int, CommittedBinlog] = {}
    for record in workload.records():
        if record.kind == BinlogType.PREWRITE:
            prewrites[record.fate.start_ts] = record.payload
        elif record.kind == BinlogType.COMMIT:
            payload = peek.join(prewrites[record.fate.start_ts], record.payload)
            joined[record.ts] = CommittedBinlog(record.fate.start_ts, record.ts, payload)
    jobs = jobs_from_json(workload.history())
    by_id = {job.id: job for job in jobs}
    tracker = SchemaTracker()
    tracker.load(jobs)
    translator = Translator(tracker, TableFilter(), Dialect.FILE)
    return [
        translator.translate(binlog, by_id.get(ddl_job_id(binlog)))
        for _, binlog in sorted(joined.items())
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_files_replayed_are_what_the_model_says(seed: int, tmp_path: Path) -> None:
    workload = Workload(Options(seed=seed, transactions=1500, ddl_every=40))
    txns = translated(workload)
    directory = tmp_path / "sink"
    tail = SinkTail(directory)
    assert list(tail.poll()) == []
    disk = PosixDisk(threads=1)
    sink = FileSink(
        directory,
        tmp_path / "savepoint",
        disk=disk,
        clock=StoppedClock(),
        options=FileSinkOptions(max_file_bytes=300_000),
    )
    seen: list[int] = []
    async with asyncio.TaskGroup() as group:
        await sink.open()
        group.create_task(sink.run())
        for begin in range(0, len(txns), 100):
            await sink.submit(txns[begin : begin + 100])
            seen += tail.poll()
        await sink.flush()
        await sink.close()
    disk.close()
    seen += tail.poll()
    replica = Replica()
    transactions, twice = replay(directory, replica)
    assert len(list(directory.iterdir())) > 3
    assert transactions == len(seen)
    assert seen == sorted(seen)
    assert twice == 0
    assert replica.problems == []
    assert differences(workload.model.contents(), replica.contents()) == []
