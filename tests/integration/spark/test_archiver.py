"""The archiver beside a Pump: what it cannot bring away is told, tried again, and never deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from binlogd.archive.archiver import Archiver, ArchiverOptions
from binlogd.archive.metrics import ArchiverReport
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FileId, ValuePointer
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso
from tests.support.logged import Logged
from tests.support.pump_world import eventually
from tests.workload.generator import Options


def segments(directory: Path) -> list[Segment]:
    """As a Pump knows them: all but the last are sealed, and timestamps grow with them."""
    paths = sorted(directory.glob("*.vlog"))
    return [
        Segment(FileId(at), at + 1 < len(paths), path.stat().st_size, max_ts=Tso(1000 + at))
        for at, path in enumerate(paths)
    ]


async def test_an_archive_out_of_reach_holds_everything_until_it_is_back(tmp_path: Path) -> None:
    options = Options(seed=24, transactions=60, ddl_every=30)
    logged = Logged.write(tmp_path, options, segment_bytes=1 << 13)
    shards = sorted((logged.data_dir / "pump").glob("shard-*/value"))
    held: list[Tso] = []

    def logs() -> Sequence[tuple[ValuePointer, Sequence[Segment]]]:
        return [(ValuePointer(FileId(1 << 20), 0), segments(each)) for each in shards]

    async def refresh() -> int | None:
        return 7

    blocked = tmp_path / "archive"
    blocked.write_text("a file stands where the directory should be")
    archiver = Archiver(
        ArchiverOptions(data_dir=str(logged.data_dir), url=str(blocked), interval_s=0.1),
        logs,
        hold=held.append,
        refresh=refresh,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(archiver.run())
        await eventually(lambda: archiver.statistics().failures > 0)
        failed = archiver.statistics()
        assert "nothing is lost" in failed.failed
        assert failed.segments == 0
        assert set(held) == {NO_TS}
        blocked.unlink()
        await eventually(lambda: held[-1] > NO_TS)
        running.cancel()
    sealed = sum(each.is_sealed for shard in shards for each in segments(shard))
    done = archiver.statistics()
    assert (done.segments, done.waiting) == (sealed, 0)
    newest = [segments(shard)[-1].max_ts for shard in shards]
    assert held[-1] == min(newest) - 1
    out = Exposition()
    ArchiverReport(archiver).say(out)
    assert f"binlogd_archive_segments {sealed}" in out.text().decode()
