"""What garbage collection leaves, for whom, and what happens when there is no space for it all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from binlogd.commands.export_base import base
from binlogd.drainer.measures import DrainerMeasures
from binlogd.errors import Behind, ConfigError, DiskFull, LogFailed, Unavailable
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import STORE_FILE
from binlogd.node.assembly import make_drainer
from binlogd.node.upstreams import open_upstream
from binlogd.ports import Space
from binlogd.pump.bases import Bases
from binlogd.pump.metrics import say_pump
from binlogd.pump.pump import Pump
from binlogd.settings.config import parse
from binlogd.settings.setup import Setup
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.binlogs import fake
from tests.support.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    outcome,
    posix_world,
    prewrite,
    pulled,
    until_released,
    written,
)

DAY = 86_400_000 << 18
DAYS = 31
SMALL = replace(ROOMY, segment_bytes_max=1_000)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with posix_world(tmp_path) as made:
        made.clock.now_ms += 30 * 86_400_000
        yield made


async def a_month(pump: Pump) -> None:
    """A transaction a day, several segments in all, and everything filed."""
    for day in range(DAYS):
        await written(pump, prewrite(day * DAY + 1, 200), commit(day * DAY + 1, day * DAY + 2))
    await eventually(
        lambda: (
            pump.statistics().shards[0].index_queue_records == 0
            and all(s.checksum for s in pump._shards[0].log.segments if s.is_sealed)
            and pump._shards[0].filer.resume == pump._shards[0].log.segments.end
        )
    )


def gc_ts(pump: Pump) -> Tso:
    return pump.statistics().shards[0].gc_ts


# --- export bases ----------------------------------------------------------------------------


async def test_an_export_base_keeps_what_is_behind_it_over_restarts_until_it_is_withdrawn(
    world: World,
) -> None:
    async with world.pump(SMALL) as pump:
        await pump.caretaker.bases.declare("nightly", at(5 * DAY))
        await a_month(pump)
    async with world.pump(SMALL) as pump:
        await pump.caretaker.collect()
        assert pump.statistics().gc.held_by == ("export base nightly",)
        assert gc_ts(pump) <= at(5 * DAY)
        found = await pulled(pump, after=at(5 * DAY), upto=at(30 * DAY + 2))
        assert len(found) == 26
        assert await pump.caretaker.bases.withdraw("nightly")
        assert not await pump.caretaker.bases.withdraw("nightly")
        await pump.caretaker.collect()
        assert pump.statistics().gc.held_by == ("",)
        assert gc_ts(pump) > at(20 * DAY)
        with pytest.raises(Behind):
            await pulled(pump, after=at(5 * DAY), upto=at(30 * DAY + 2))


async def test_a_base_that_another_process_declares_counts_at_once(world: World) -> None:
    async with world.pump(SMALL) as pump:
        await a_month(pump)
        other = PosixDisk(threads=1)
        await Bases(world.directory, other).declare("spark", at(7 * DAY))
        other.close()
        await pump.caretaker.collect()
        assert gc_ts(pump) <= at(7 * DAY)


async def test_a_base_that_does_not_read_stops_all_deletion_and_the_next_start(
    world: World,
) -> None:
    async with world.pump(SMALL) as pump:
        await a_month(pump)
        await pump.caretaker.bases.declare("odd", at(7 * DAY))
        (world.directory / "bases" / "odd").write_text("last Tuesday\n")
        pump.caretaker.trigger()
        await eventually(lambda: "holds no timestamp" in pump.statistics().gc.failed)
        assert gc_ts(pump) == NO_TS
    with pytest.raises(ConfigError, match="bases/odd: holds no timestamp"):
        async with world.pump(SMALL):
            pass


async def test_a_base_whose_name_is_no_text_is_named_and_keeps_nobody_from_the_status(
    world: World,
) -> None:
    async with world.pump(SMALL) as pump:
        await pump.caretaker.bases.declare("mine", at(1))
        (world.directory / "bases" / os.fsdecode(b"fr\xfcher")).write_bytes(b"1\n")
        pump.caretaker.trigger()
        await eventually(lambda: r"'fr\udcfcher' is no base" in pump.statistics().gc.failed)
        msgspec.json.encode(pump.statistics().gc)
    with pytest.raises(ConfigError, match="remove that file"):
        async with world.pump(SMALL):
            pass


@pytest.mark.parametrize("name", ["", "../shards", ".hidden", "x" * 65, "half.new", "a/b"])
async def test_a_base_has_a_name_that_is_a_file_name(world: World, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name an export base"):
        await Bases(world.directory, world.disk).declare(name, at(1))


def test_an_operator_declares_lists_and_withdraws_bases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / STORE_FILE).touch()  # somebody has run there
    base(data_dir=str(tmp_path), as_json=True)
    base("nightly", at=445_644_800_000_000_001, data_dir=str(tmp_path), as_json=True)
    base("weekly", at=5, data_dir=str(tmp_path), as_json=True)
    base(data_dir=str(tmp_path), as_json=True)
    base("weekly", withdraw=True, data_dir=str(tmp_path), as_json=True)
    base(data_dir=str(tmp_path), as_json=True)
    nightly = '"nightly": 445644800000000001'
    assert capsys.readouterr().out.splitlines() == [
        "{}",
        f"{{{nightly}}}",
        '{"weekly": 5}',
        f'{{{nightly}, "weekly": 5}}',
        "{}",
        f"{{{nightly}}}",
    ]
    with pytest.raises(ConfigError, match='no export base is called "weekly"'):
        base("weekly", withdraw=True, data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="name the base"):
        base(at=7, data_dir=str(tmp_path))


# --- the directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_nothing_more_is_taken_where_the_data_directory_was_taken_away(
    world: World, *, is_made_again: bool
) -> None:
    away = world.directory.with_name("away")
    async with world.pump(replace(ROOMY, free_check_every_s=0.01)) as pump:
        await written(pump, prewrite(1))
        world.directory.rename(away)
        if is_made_again:  # by whoever else keeps something there
            world.directory.mkdir()
        await eventually(lambda: "was removed or moved" in pump.statistics().refuses_because)
        refused = await outcome(pump, prewrite(3))
        assert isinstance(refused, Unavailable)
        assert refused.message == pump.statistics().refuses_because  # it stands in TiDB's log, too
        if is_made_again:
            world.directory.rmdir()
        away.rename(world.directory)
        await eventually(lambda: pump.statistics().refuses_because == "")
        await written(pump, prewrite(5))


async def test_no_binlog_is_acknowledged_into_a_segment_that_was_taken_away(world: World) -> None:
    async with world.pump(ROOMY) as pump:
        await written(pump, prewrite(1))
        (segment,) = world.directory.rglob("value/*")
        content = segment.read_bytes()
        segment.unlink()
        for start_ts in (3, 5):
            found = await outcome(pump, prewrite(start_ts))
            assert isinstance(found, LogFailed)
            assert f"{segment}: No such file" in str(found)
        segment.write_bytes(content)  # from a backup, or out of /proc/PID/fd
        await written(pump, prewrite(7))
    async with world.pump(ROOMY) as pump:
        assert pump.statistics().shards[0].open_prewrites == 2


# --- who holds it ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_sealed_segment_that_was_taken_away_is_told_and_the_others_still_go(
    world: World, *, is_cut: bool
) -> None:
    """Nobody may read it for weeks, and the next start would be the first to say so."""
    async with world.pump(SMALL) as pump:
        await a_month(pump)
        segments = pump._shards[0].log.segments
        gone = segments.path([each.fid for each in segments if each.is_sealed][-1])
        content = gone.read_bytes()
        gone.write_bytes(content[:-1]) if is_cut else gone.unlink()
        pump.caretaker.trigger()
        await eventually(lambda: str(gone) in pump.statistics().gc.failed)
        assert gc_ts(pump) > at(10 * DAY)
        gone.write_bytes(content)
        pump.caretaker.trigger()
        await eventually(lambda: not pump.statistics().gc.failed)


async def test_an_open_prewrite_is_named_as_the_one_who_keeps_old_segments(world: World) -> None:
    async with world.pump(SMALL) as pump:
        await written(pump, prewrite(3))
        await a_month_behind_an_open_prewrite(pump)
        await pump.caretaker.collect()
        # the watermark stands, so by it nothing is old: that, too, is the open prewrite's doing
        assert gc_ts(pump) == NO_TS
        await written(pump, prewrite(30 * DAY + 20), commit(30 * DAY + 20, 30 * DAY + 21))
        assert f"start_ts {at(3)}" in pump.statistics().blocked_by


async def a_month_behind_an_open_prewrite(pump: Pump) -> None:
    for day in range(DAYS):
        await written(pump, prewrite(day * DAY + 5, 200), commit(day * DAY + 5, day * DAY + 6))
    await eventually(lambda: pump.statistics().shards[0].index_queue_records == 0)


async def test_old_segments_in_front_of_an_open_prewrite_go_and_it_keeps_the_rest(
    world: World,
) -> None:
    async with world.pump(SMALL) as pump:
        for day in range(10):
            await written(pump, prewrite(day * DAY + 1, 400), commit(day * DAY + 1, day * DAY + 2))
        await written(pump, prewrite(10 * DAY))
        await written(pump, prewrite(30 * DAY, 3_000), commit(30 * DAY, 30 * DAY + 1))
        await written(pump, fake(at(30 * DAY + 2)))
        shard = pump._shards[0]
        await eventually(
            lambda: (
                pump.statistics().shards[0].index_queue_records == 0
                and all(s.checksum for s in shard.log.segments if s.is_sealed)
                and shard.filer.resume < shard.log.segments.end
            )
        )
        await pump.caretaker.collect()
        assert gc_ts(pump) >= at(1 * DAY)  # a week before the mark that the open one keeps down
        kept = {segment.fid for segment in shard.log.segments}
        assert shard.filer.resume.fid in kept
        await written(pump, commit(10 * DAY, 30 * DAY + 9))
        await until_released(pump, 30 * DAY + 9)
        found = await pulled(pump, after=gc_ts(pump), upto=at(30 * DAY + 9))
        real = numbers(binlog for binlog in found if not binlog.is_fake)
        assert real[-2:] == [(30 * DAY, 30 * DAY + 1), (10 * DAY, 30 * DAY + 9)]


async def test_the_drainer_and_its_relay_log_hold_what_is_behind_the_checkpoint(
    world: World,
) -> None:
    text = (
        f'data-dir = "{world.directory}"\n[syncer]\ndb-type = "mysql"\n'
        f'[syncer.relay]\nlog-dir = "{world.directory}/relay"\n'
    )
    setup = Setup(parse(text, "test"))
    store = await UpstreamStore.open(world.directory / "upstream.db")
    upstream = await open_upstream(setup, store)
    disk = PosixDisk(threads=1)
    try:
        async with world.pump(SMALL) as pump:
            make_drainer(setup, disk, pump, upstream, DrainerMeasures())
            await a_month(pump)
            await pump.caretaker.collect()
            statistics = pump.statistics()
            assert [hold.name for hold in statistics.gc.holds] == ["drainer", "relay log"]
            assert statistics.gc.held_by == ("drainer",)
            assert gc_ts(pump) == NO_TS
            out = Exposition()
            say_pump(out, statistics)
            assert b'binlogd_pump_gc_held{holder="drainer"} 1' in out.text()
            assert b'binlogd_pump_gc_hold_ts{holder="relay log"} 0' in out.text()
    finally:
        await store.close()
        disk.close()


# --- space ---------------------------------------------------------------------------------------


class FillingDisk(PosixDisk):
    """Has as much space as it is told."""

    free = 1_000_000

    async def space(self, directory: Path) -> Space:
        real = await super().space(directory)
        return replace(real, free_bytes=self.free)


async def test_when_space_runs_out_garbage_is_collected_at_once_and_then_writes_stop(
    tmp_path: Path,
) -> None:
    disk = FillingDisk(threads=4)
    options = replace(SMALL, free_bytes_min=100_000, free_check_every_s=0.02)
    world = World(tmp_path, disk)
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(options) as pump:
        await a_month(pump)
        await pump.caretaker.bases.declare("nightly", at(5 * DAY))
        before = pump.statistics().shards[0].segments
        disk.free = 150_000  # not yet too little
        await eventually(lambda: pump.statistics().gc.runs)
        assert pump.statistics().shards[0].segments < before
        assert pump.statistics().refuses_because == ""

        disk.free = 100_000  # equal is not enough
        await eventually(lambda: pump.statistics().refuses_because != "")
        refused = await outcome(pump, prewrite(40 * DAY))
        assert isinstance(refused, DiskFull)
        assert "StopWriteAtAvailableSpace: 100000" in str(refused)
        await written(pump, fake(at(41 * DAY)))
        assert pump.statistics().refuses_because == (
            f"only 100000 bytes are free on the disk of {tmp_path}, binlogs are taken with more"
            " than 100000; old ones are kept for export base nightly"
        )
        found = await pulled(pump, after=at(5 * DAY), upto=at(30 * DAY + 2))
        assert len(found) == 26  # nothing that is needed went

        kept = pump.statistics().shards[0].segments
        await pump.caretaker.bases.withdraw("nightly")  # goes without waiting for the hour
        await eventually(lambda: pump.statistics().shards[0].segments < kept)
        await eventually(lambda: "none is old enough" in pump.statistics().refuses_because)

        disk.free = 1_000_000
        await eventually(lambda: pump.statistics().refuses_because == "")
        await written(pump, prewrite(42 * DAY), commit(42 * DAY, 42 * DAY + 1))
    disk.close()
