"""A commit below the watermark is kept, whatever happens, until somebody decides about it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.log.index_file import FILES
from binlogd.pump.pump import Pump
from tests.support.pump_world import (
    World,
    at,
    commit,
    eventually,
    numbers,
    posix_world,
    prewrite,
    pulled,
    until_released,
    written,
)

INDEX = Path("pump") / "shard-0" / FILES[0]


def late(pump: Pump) -> list[tuple[str, int, int]]:
    return [
        (each.source, each.start_ts - at(0), each.commit_ts - at(0))
        for each in pump.late.unresolved()
    ]


async def too_late(pump: Pump) -> None:
    """A commit at 10 where everything up to 20 was promised; written twice, as TiDB may."""
    await written(pump, prewrite(1), commit(1, 20))
    await until_released(pump, 20)
    await written(pump, prewrite(3), commit(3, 10), commit(3, 10))


def look(directory: Path) -> tuple[object, ...]:
    """What changes with every write."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def killed(world: World, place: Path) -> Path:
    """The files as a process leaves them that dies now."""
    return Path(shutil.copytree(world.directory, place))


async def test_it_outlives_the_process_and_is_gone_when_it_is_dealt_with(
    world: World, tmp_path: Path
) -> None:
    async with world.pump() as pump:
        await too_late(pump)
        await eventually(lambda: late(pump) == [("shard-0", 3, 10)])
        place = killed(world, tmp_path / "killed")
    async with posix_world(place) as after:
        async with after.pump() as pump:
            assert late(pump) == [("shard-0", 3, 10)]
            (shard,) = pump.statistics().shards
            assert (shard.late_open, shard.first_late[0].commit_ts) == (1, at(10))
            await written(pump, commit(3, 10), prewrite(21), commit(21, 22))
            await until_released(pump, 22)
            assert late(pump) == [("shard-0", 3, 10)], "repeated, it is the same"
            await pump.late.resolve({at(10)})
            assert (late(pump), pump.statistics().shards[0].late_open) == ([], 0)
        async with after.pump() as pump:
            assert late(pump) == []


async def test_one_that_comes_exactly_at_the_watermark_is_late_too(world: World) -> None:
    """Who has pulled up to there never gets it."""
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 20))
        await until_released(pump, 20)
        await written(pump, prewrite(3), commit(3, 20))
        await eventually(lambda: late(pump) == [("shard-0", 3, 20)])


async def test_it_is_found_by_the_next_life_when_it_was_logged_and_not_filed(
    world: World, tmp_path: Path
) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 20))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(20))
        await pump._shards[0].filer.keep(at(20))
        with sqlite3.connect(world.directory / INDEX, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")  # the index takes nothing
            await written(pump, prewrite(3), commit(3, 10), commit(3, 10))
            place = killed(world, tmp_path / "killed")
            assert late(pump) == []
            other.execute("ROLLBACK")
        other.close()
        await eventually(lambda: late(pump) == [("shard-0", 3, 10)])
    async with posix_world(place) as after, after.pump() as pump:
        assert late(pump) == [("shard-0", 3, 10)]


async def test_whenever_the_process_dies_what_only_another_shard_was_ahead_of_is_known(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Shard 1 has nothing in its log that says how far it had promised."""
    elsewhere = tmp_path_factory.mktemp("killed")
    states: list[tuple[Path, bool]] = []
    async with world.pump(shards=2) as pump:
        for shard in pump._shards:
            shard.filer._options = replace(shard.filer._options, marks_every_s=3_600)
        await written(pump, prewrite(1), commit(1, 20))
        await until_released(pump, 20)
        writing = asyncio.create_task(written(pump, prewrite(2), commit(2, 10)))
        looked: tuple[object, ...] = ()
        is_answered = False
        while not (is_answered and late(pump)):
            before, is_answered = is_answered, writing.done()
            if (now := look(world.directory)) != looked or before != is_answered:
                states.append((killed(world, elsewhere / str(len(states))), is_answered))
                looked = now
            await asyncio.sleep(0)
        await writing
        states.append((killed(world, elsewhere / str(len(states))), True))
    assert len(states) > 2
    for place, is_answered in states:
        async with posix_world(place) as after, after.pump(shards=2) as pump:
            is_there = await pump.read_binlog(at(10)) is not None
            assert is_there or not is_answered
            assert late(pump) == ([("shard-1", 2, 10)] if is_there else []), place.name


async def test_an_index_that_is_made_again_has_it(world: World) -> None:
    async with world.pump() as pump:
        await too_late(pump)
        await eventually(lambda: len(late(pump)) == 1)
        filer = pump._shards[0].filer
        filer.index.database.found_damage("ruined")
        await eventually(lambda: filer.remade_count == 1 and filer.index.database.damage is None)
        assert (await filer.index.late()).total == 1
    for name in FILES:
        (world.directory / INDEX).with_name(name).unlink(missing_ok=True)
    async with world.pump() as pump:
        assert late(pump) == [("shard-0", 3, 10)], "the order of the log tells it"
        assert numbers(await pulled(pump, upto=at(20))) == [(3, 10), (1, 20)]


async def test_writing_waits_while_too_many_are_unchecked_and_none_is_dropped(
    world: World,
) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 900))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(900))
        shard = pump._shards[0]
        await shard.filer.keep(at(900))
        shard.filer._options = replace(shard.filer._options, suspects_max=3)
        with sqlite3.connect(world.directory / INDEX, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            for number in range(10, 16, 2):
                await written(pump, prewrite(number), commit(number, number + 1))
            assert not shard.filer.room.is_set()
            waiting = shard.submit(())
            assert late(pump) == []
            assert not waiting.done()
            other.execute("ROLLBACK")
        other.close()
        await waiting
        await eventually(lambda: len(late(pump)) == 3)
        assert pump.statistics().shards[0].late_commits == 3
