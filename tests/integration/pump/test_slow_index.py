"""SQLite is slow: acknowledgements stay fast, slowChaser catches up, and all of it is shown."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from binlogd.pump.metrics import say_pump
from binlogd.pump.pump import Pump
from binlogd.pump.route import ShardId
from binlogd.telemetry.exposition import Exposition
from tests.support.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    prewrite,
    pulled,
    written,
)

INDEX = Path("pump") / "shard-0" / "index.db"


@contextmanager
def slow_sqlite(path: Path) -> Iterator[Callable[[], None]]:
    """Another connection holds the write lock, and gives it up for an instant when it is asked to:
    what a transaction of ours needs is there, but comes late each time."""
    stop, holds, gives_way = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(path, timeout=120, isolation_level=None)
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            holds.set()
            gives_way.wait()
            gives_way.clear()
            connection.execute("ROLLBACK")
            stop.wait(0.05)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    holds.wait()
    try:
        yield gives_way.set
    finally:
        stop.set()
        gives_way.set()
        holder.join()


def exposed(pump: Pump) -> dict[str, str]:
    out = Exposition()
    say_pump(out, pump.statistics())
    lines = (line for line in out.text().decode().splitlines() if not line.startswith("#"))
    return dict(line.rsplit(" ", 1) for line in lines)


ERRORS = 'binlog_pump_storage_error_count{type="%s"}'
COUNTER = 'binlog_pump_storage_slow_chaser_count{type="%s"}'


async def test_acknowledgements_stay_fast_and_the_chaser_catches_up_twice_in_a_row(
    world: World,
) -> None:
    """With upstream's thresholds: on when a record has fallen out of the queue or filing takes
    three seconds, off when the index is level and its last transaction took under a second."""
    options = replace(ROOMY, index_queue_max=50)
    expected: list[tuple[int, int]] = []
    async with world.pump(options) as pump:
        for times in (1, 2):
            begin, most_waiting = 10_000 * times, 0
            before = pump.statistics().shards[0].chaser
            with slow_sqlite(world.directory / INDEX) as give_way:
                for number in range(begin, begin + 3_000, 2):
                    if number % 500 == 0:
                        give_way()
                    await written(pump, prewrite(number), commit(number, number + 1))
                    expected.append((number, number + 1))
                    # Every writer has its answer while what was written before waits.
                    waiting = pump.statistics().shards[0].index_queue_records
                    most_waiting = max(most_waiting, waiting)
                assert most_waiting > 300  # the queue has room for 50
                await eventually(lambda: pump.statistics().shards[0].chaser.is_on)
                assert exposed(pump)['binlogd_shard_chaser_on{shard="shard-0"}'] == "1"
                # And who reads does not wait for the index either.
                assert numbers(await pulled(pump, after=at(1), upto=at(begin + 2_999))) == expected
            await eventually(lambda: not pump.statistics().shards[0].chaser.is_on)
            shard = pump.statistics().shards[0]
            assert shard.index_queue_records <= 50
            assert shard.chaser.turned_on == shard.chaser.recoveries > before.turned_on
            assert shard.chaser.records_read > before.records_read + 300
            shown = exposed(pump)
            for kind in ("turned_on", "turned_off", "recovery"):
                assert shown[COUNTER % kind] == str(shard.chaser.turned_on)
            assert shown['binlogd_shard_chaser_on{shard="shard-0"}'] == "0"
    async with world.pump(options) as pump:  # and all of it is in the index
        assert numbers(await pulled(pump, upto=at(22_999))) == expected


async def test_a_transaction_of_sqlite_that_takes_long_turns_the_chaser_on_by_the_clock(
    world: World,
) -> None:
    async with world.pump(replace(ROOMY, slow_chaser_after_s=0.3)) as pump:
        with slow_sqlite(world.directory / INDEX):
            await written(pump, prewrite(1), commit(1, 2))  # a queue with much room
            await eventually(lambda: pump.statistics().shards[0].chaser.is_on)
            assert pump.statistics().shards[0].chaser.catch_ups == 0
        await eventually(lambda: not pump.statistics().shards[0].chaser.is_on)
        assert pump.statistics().shards[0].chaser.records_read == 0


async def test_a_pump_that_stops_while_the_chaser_is_on_has_lost_nothing(world: World) -> None:
    expected = [(number, number + 1) for number in range(1, 1_001, 2)]
    options = replace(ROOMY, index_queue_max=10, slow_chaser_after_s=0.5)
    async with world.pump(options) as pump:
        filer = pump._shards[0].filer
        filer._options = replace(filer._options, patience_s=0.5)
        with slow_sqlite(world.directory / INDEX):
            for start, commit_ts in expected:
                await written(pump, prewrite(start), commit(start, commit_ts))
            await eventually(lambda: pump.statistics().shards[0].chaser.is_on)
            await pump.close()
            assert int(exposed(pump)[ERRORS % "batch_write_kv"]) > 0
    async with world.pump() as pump:
        assert numbers(await pulled(pump, upto=at(1_000))) == expected


async def test_a_watermark_that_moves_while_the_last_binlogs_are_filed_is_filed_with_them(
    world: World,
) -> None:
    """As by a commit of another shard: no later one comes here that would tell of it."""
    async with world.pump(shards=2) as pump:
        first, places = pump._shards[0], [pump._routing.shard_of(at(number)) for number in range(9)]
        here, there = places.index(ShardId(0)), places.index(ShardId(1))
        with slow_sqlite(world.directory / INDEX):
            await written(pump, prewrite(here), commit(here, 200))
            await eventually(lambda: first.filer._batch_since_s)  # it waits for SQLite now
            await written(pump, prewrite(there), commit(there, 300))
            await eventually(lambda: first.watermark == at(300))
        await eventually(lambda: first.filer.filed_ts == at(300))
