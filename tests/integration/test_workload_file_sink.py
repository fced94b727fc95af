"""A workload through translation and the file sink, read back: what the model says, row by row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.host.disk import PosixDisk
from tests.support.archives import translated
from tests.workload.generator import Options, Workload
from tests.workload.replica import Replica, differences
from tests.workload.sink_tail import SinkTail, replay


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
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
