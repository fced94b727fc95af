"""A drain that comes while a checkpoint is being saved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path
from random import Random

from binlogd.binlog import Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.files.sink import FileSink
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tso import Tso
from tests.support.job_history import MemoryHistory
from tests.support.pump_world import eventually
from tests.support.replay import filter_for

DRAINS = 20


class Ticking:
    """A source that promises more and more."""

    name = "ticking"

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        for ts in count(after + 1):
            yield Pulled([], Tso(ts))
            await asyncio.sleep(0.0005)


async def test_a_checkpoint_that_is_due_at_the_end_hurts_nobody(tmp_path: Path) -> None:
    disk = PosixDisk(threads=2)
    saved: list[Checkpoint] = []
    try:
        for _ in range(DRAINS):
            ports = DrainerPorts(
                sources=[Ticking()],
                history=MemoryHistory([]),
                make_sink=lambda: FileSink(
                    tmp_path, tmp_path / "savepoint", disk=disk, clock=WallClock()
                ),
                relay=None,
                table_filter=filter_for(()),
                on_saved=saved.append,
            )
            options = DrainerOptions(dialect=Dialect.FILE, checkpoint_interval_s=0.0001)
            drainer = Drainer(ports, Backoff(Random(1)), options)
            async with asyncio.TaskGroup() as group:
                group.create_task(drainer.run())
                before = len(saved)
                await eventually(lambda before=before: len(saved) > before)  # type: ignore[misc] # of this round
                await asyncio.sleep(0.01)
                await drainer.drain()
            assert saved[-1].consistent
    finally:
        disk.close()
