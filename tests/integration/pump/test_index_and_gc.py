"""What the index promises to the disk before segments are deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.errors import Behind
from binlogd.pump.index import FILES, Marks, SqliteIndex
from binlogd.pump.pointer import FileId
from tests.pump_world import ROOMY, at, commit, eventually, posix_world, prewrite, pulled, written


async def test_segments_are_forgotten_durably_before_they_are_deleted(tmp_path: Path) -> None:
    """A power cut that took this transaction back would leave an index that misses its segments,
    and no way to tell that from a loss."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    said: list[str] = []
    await index._writer.set_trace_callback(said.append)
    await index.forget_segments([FileId(0)], marks=Marks())
    await index.put((), Marks())
    await index.close()
    wanted = ("PRAGMA", "DELETE FROM segments", "COMMIT")
    assert [line.partition(" WHERE")[0] for line in said if line.startswith(wanted)] == [
        "PRAGMA synchronous = FULL",
        "DELETE FROM segments",
        "COMMIT",
        "PRAGMA synchronous = NORMAL",
        "COMMIT",
    ]


DAY = 86_400_000 << 18


async def test_what_was_deleted_is_known_without_an_index(tmp_path: Path) -> None:
    small = replace(ROOMY, segment_bytes_max=2_000)
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        async with world.pump(small) as pump:
            for day in range(31):
                start = day * DAY + 1
                await written(pump, prewrite(start, 200), commit(start, start + 1))
            log = pump._shards[0].log
            await eventually(lambda: all(s.checksum for s in log.segments() if s.is_sealed))
            await eventually(lambda: pump._shards[0].filer.filed_ts == at(30 * DAY + 2))
            await pump.collect_garbage()
            gc_ts = pump.statistics().shards[0].gc_ts
            assert gc_ts > at(10 * DAY)
            expected = await pulled(pump, upto=at(30 * DAY + 2))
        for name in FILES:
            (tmp_path / "pump" / "shard-0" / name).unlink(missing_ok=True)
        async with world.pump(small) as pump:
            assert pump.statistics().shards[0].gc_ts == gc_ts
            assert await pulled(pump, upto=at(30 * DAY + 2)) == expected
            with pytest.raises(Behind):
                await pulled(pump, upto=at(30 * DAY + 2), after=at(5))
