"""What the index promises to the disk before segments are deleted."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from binlogd.binlog import BinlogType, CommittedBinlog, Pulled
from binlogd.errors import Behind, IndexUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.log.index_file import FILES, Marks, Segment
from binlogd.log.pointer import FileId
from binlogd.pump.log.entry import Item
from binlogd.pump.pump import Pump
from binlogd.pump.shard.index import SqliteIndex
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from binlogd.wire.joining import join
from tests.support.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    posix_world,
    prewrite,
    pulled,
    written,
)


async def test_segments_are_forgotten_durably_before_they_are_deleted(tmp_path: Path) -> None:
    """A power cut that took this transaction back would leave an index that misses its segments,
    and no way to tell that from a loss."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    said: list[str] = []
    await index.database._writer.set_trace_callback(said.append)
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


class CutOffAfterRemoval(PosixDisk):
    """Keeps the data directory as the power leaves it that goes right behind each removal."""

    def __init__(self, directory: Path, kept: Path) -> None:
        super().__init__(threads=4)
        self.directory, self.kept, self.left = directory, kept, list[Path]()

    async def remove(self, paths: Sequence[Path]) -> None:
        await super().remove(paths)
        if any(path.suffix == ".vlog" for path in paths):
            self.left.append(self.kept / str(len(self.left)))
            shutil.copytree(self.directory, self.left[-1])


async def month_written(pump: Pump) -> None:
    """A transaction a day; all segments but the newest are sealed, and everything is filed."""
    for day in range(31):
        start = day * DAY + 1
        await written(pump, prewrite(start, 200), commit(start, start + 1))
    log = pump._shards[0].log
    await eventually(lambda: all(s.checksum for s in log.segments if s.is_sealed))
    await eventually(lambda: pump._shards[0].filer.filed_ts == at(30 * DAY + 2))


async def test_the_power_may_go_while_segments_are_deleted(tmp_path: Path) -> None:
    disk = CutOffAfterRemoval(tmp_path / "data", tmp_path)
    small = replace(ROOMY, segment_bytes_max=2_000)
    world = World(tmp_path / "data", disk)
    world.clock.now_ms += 30 * 86_400_000
    try:
        async with world.pump(small) as pump:
            await month_written(pump)
            await pump.caretaker.collect()
            expected = await pulled(pump, upto=at(30 * DAY + 2))
    finally:
        disk.close()
    assert disk.left
    for place in disk.left:
        async with posix_world(place) as after, after.pump(small) as pump:
            assert await pulled(pump, upto=at(30 * DAY + 2)) == expected


async def test_what_was_deleted_is_known_without_an_index(tmp_path: Path) -> None:
    small = replace(ROOMY, segment_bytes_max=2_000)
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        async with world.pump(small) as pump:
            await month_written(pump)
            await pump.caretaker.collect()
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


@pytest.mark.parametrize("is_restarted", [False, True], ids=["at once", "after a restart"])
async def test_a_commit_repeated_behind_what_is_deleted_is_no_late_one(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    """Garbage collection has taken its prewrite and its first record, for everybody had it. One
    whose prewrite is there came too late, wherever gc_ts stands."""
    small = replace(ROOMY, segment_bytes_max=2_000, window_bytes_max=1)
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        with capture_logs() as logged:
            async with world.pump(small) as pump:
                await month_written(pump)
                await pump.caretaker.collect()
                assert pump.statistics().shards[0].gc_ts > at(10 * DAY)
                if not is_restarted:
                    await behind_what_is_deleted(pump)
            if is_restarted:
                async with world.pump(small) as pump:
                    await behind_what_is_deleted(pump)
            async with world.pump(small) as pump:
                assert [each.commit_ts for each in pump.late.unresolved()] == [at(8 * DAY)]
        told = [line["commit_ts"] for line in logged if line["event"] == "commit_behind_gc"]
        assert told == [at(3 * DAY + 2)]


async def behind_what_is_deleted(pump: Pump) -> None:
    """A repeated commit, and a late one."""
    await written(pump, commit(3 * DAY + 1, 3 * DAY + 2))
    await written(pump, prewrite(7 * DAY), commit(7 * DAY, 8 * DAY))
    async with asyncio.timeout(20):
        await eventually(lambda: pump.late.unresolved())
    assert [each.commit_ts for each in pump.late.unresolved()] == [at(8 * DAY)]


async def test_a_puller_of_whom_what_was_announced_is_deleted_is_told_so(tmp_path: Path) -> None:
    """While the index is asked: what it finds then is not all."""
    small = replace(ROOMY, segment_bytes_max=2_000, pull_bytes_max=50, window_bytes_max=1)
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        async with world.pump(small) as pump:
            await month_written(pump)
            (source,) = pump.sources()
            pulling = source.pull(at(0))
            assert isinstance(pulling, AsyncGenerator)
            async with aclosing(pulling) as batches:
                announcing = await anext(batches)  # the next one is large, and comes alone
                assert not announcing.binlogs
                assert announcing.next_bytes
                index = pump._shards[0].index
                look_up = index.commits_after

                async def after_collecting(after: Tso, *, upto: Tso, limit: int) -> object:
                    await pump.caretaker.collect()
                    assert pump.statistics().shards[0].gc_ts > at(10 * DAY)
                    return await look_up(after, upto=upto, limit=limit)

                index.commits_after = after_collecting  # type: ignore[method-assign,assignment]
                with pytest.raises(Behind):
                    await anext(batches)


async def test_a_large_binlog_can_be_read_after_its_segment_was_deleted(tmp_path: Path) -> None:
    small = replace(ROOMY, segment_bytes_max=2_000, pull_bytes_max=50, window_bytes_max=1)
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        async with world.pump(small) as pump:
            await month_written(pump)
            (source,) = pump.sources()
            pulling = source.pull(at(0))
            assert isinstance(pulling, AsyncGenerator)
            async with aclosing(pulling) as batches:
                found = next(iter(await _first_with_binlogs(batches, at(0))))
                assert not isinstance(found.payload, bytes)
                await pump.caretaker.collect()
                assert not (tmp_path / "pump" / "shard-0" / "value" / "000000.vlog").exists()
                head = peek.peek(bytes(found.payload))
                assert (head.start_ts, head.commit_ts) == (found.start_ts, found.commit_ts)


async def test_a_puller_whom_the_window_leaves_behind_hears_nothing_twice(tmp_path: Path) -> None:
    """What it was given out of memory, the index does not have yet."""
    options = replace(ROOMY, pull_bytes_max=100, window_bytes_max=4_000)
    async with posix_world(tmp_path) as world, world.pump(options) as pump:
        await written(pump, prewrite(1, 1), commit(1, 2))
        await eventually(lambda: pump._shards[0].filer.filed_ts == at(2))
        lock = sqlite3.connect(tmp_path / "pump" / "shard-0" / FILES[0])
        lock.execute("BEGIN IMMEDIATE")
        await written(pump, prewrite(3, 1), commit(3, 4), prewrite(5, 200), commit(5, 6))
        (source,) = pump.sources()
        pulling = source.pull(at(2))
        assert isinstance(pulling, AsyncGenerator)
        async with aclosing(pulling) as batches:
            announcing = await anext(batches)
            assert numbers(announcing.binlogs) == [(3, 4)]
            assert announcing.next_bytes
            for start in range(7, 47, 2):
                await written(pump, prewrite(start, 100), commit(start, start + 1))
            assert pump._shards[0].window.floor > at(6)
            async with asyncio.TaskGroup() as group:
                following = group.create_task(_first_with_binlogs(batches, announcing.resolved_ts))
                await asyncio.sleep(0.02)
                assert not following.done()
                lock.rollback()
                lock.close()
            assert numbers(following.result()) == [(5, 6)]


async def test_what_has_to_be_held_waits_for_room_and_gives_it_back(tmp_path: Path) -> None:
    """Bytes that TiDB does not write, as an adopted log may have them."""
    options = replace(ROOMY, pull_bytes_max=100, window_bytes_max=200)
    strange = prewrite(5, 400) + b"\x50\x01"
    async with posix_world(tmp_path) as world, world.pump(options) as pump:
        (shard,) = pump._shards
        await shard.submit([Item(BinlogType.PREWRITE, at(5), NO_TS, strange)])
        await written(pump, prewrite(1, 1), commit(1, 2), commit(5, 6), prewrite(7), commit(7, 8))
        (source,) = pump.sources()
        pulling = source.pull(at(2))
        assert isinstance(pulling, AsyncGenerator)
        async with aclosing(pulling) as batches:
            assert (await anext(batches)).next_bytes
            pump._reading.add(1 << 40)
            async with asyncio.TaskGroup() as group:
                following = group.create_task(_first_with_binlogs(batches, at(2)))
                await eventually(lambda: pump._reading.waiting == 1)
                pump._reading.give(1 << 40)
            (found,) = following.result()
            assert found.payload == join(strange, commit(5, 6))
            assert pump._reading.size == len(strange)
            assert numbers(await _first_with_binlogs(batches, at(6))) == [(7, 8)]
            assert pump._reading.size == 0


async def _first_with_binlogs(
    batches: AsyncGenerator[Pulled, None], resolved_ts: Tso
) -> Sequence[CommittedBinlog]:
    async for pulled_next in batches:
        assert pulled_next.resolved_ts >= resolved_ts
        resolved_ts = pulled_next.resolved_ts
        if pulled_next.binlogs:
            return pulled_next.binlogs
    return []


async def test_an_index_that_is_replaced_lets_its_last_transaction_end(tmp_path: Path) -> None:
    """Garbage collection may be deleting rows when damage is found elsewhere."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    index.database.on_damage(lambda: None)
    async with asyncio.TaskGroup() as group:
        deleting = [group.create_task(_forget_rows_or_error(index)) for _ in range(30)]
        await asyncio.sleep(0)
        index.database.found_damage("a test")
        await index.close()
    first, *others = [task.result() for task in deleting]
    assert first == 0
    assert all(isinstance(each, IndexUnavailable) for each in others)


async def _forget_rows_or_error(index: SqliteIndex) -> int | IndexUnavailable:
    try:
        return await index.database.forget_rows(first_fid=FileId(9), upto=at(9))
    except IndexUnavailable as error:
        return error


async def test_a_transaction_that_is_given_up_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Segments gone without the mark that says so would look like a loss."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    try:
        outcomes = [await _given_up_after(index, number) for number in range(40)]
    finally:
        await index.close()
    assert [is_there for is_there, _ in outcomes] == [is_marked for _, is_marked in outcomes]


async def _given_up_after(index: SqliteIndex, number: int) -> tuple[bool, bool]:
    """Whether a segment is still there, and whether the marks say so, after it was to be forgotten
    and that was cancelled some moments later."""
    fid = FileId(number)
    await index.put((), Marks(first_fid=fid), [Segment(fid, is_sealed=True, size_bytes=1)])
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(
            index.forget_segments([fid], marks=Marks(first_fid=FileId(number + 1)))
        )
        for _ in range(number):
            await asyncio.sleep(0.00002)
        forgetting.cancel()
    await index.put(())
    marks, segments = await index.marks(), await index.segments()
    assert marks is not None
    return any(segment.fid == fid for segment in segments), marks.first_fid == fid
