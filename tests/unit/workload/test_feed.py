"""Feeding: everything arrives, nothing too early, whatever the Pump does to the answers."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.errors import Refused, Unavailable
from binlogd.tso import Tso
from binlogd.wire.peek import peek
from tests.support.ports import free_port
from tests.workload import recording
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.hold_back import HoldBack
from tests.workload.timeline import Fate, Record

RECORDINGS = Path(__file__).parents[2] / "recordings"


def test_playing_to_nobody_ends_in_a_sentence_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.workload.play", "keys"],
        cwd=RECORDINGS.parents[1],
        env={**os.environ, "BINLOGD_ADDR": f"127.0.0.1:{free_port()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("play: no binlogd answers at http://127.0.0.1:")
    assert done.stderr.count("\n") == 1


class MoodyPump:
    """Answers out of order, loses requests and answers; knows when a binlog came too early."""

    def __init__(self, seed: int, records: list[Record], *, moodiness: float) -> None:
        self._rng = random.Random(seed)
        self._moodiness = moodiness
        commit_ts: dict[int, int] = {
            r.fate.start_ts: r.fate.commit_ts for r in records if r.kind == BinlogType.PREWRITE
        }
        self.stored: list[bytes] = []
        self._unstored: dict[int, int] = commit_ts
        self.in_flight_max = 0
        self._in_flight = 0

    async def write(self, payload: bytes) -> None:
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            await self._write(payload)
        finally:
            self._in_flight -= 1

    async def _write(self, payload: bytes) -> None:
        for _ in range(self._rng.randrange(12)):
            await asyncio.sleep(0)
        if self._rng.random() < self._moodiness:
            raise Unavailable("the request was lost")
        head = peek(payload)
        ts = max(head.start_ts, head.commit_ts)
        too_early = [
            start_ts
            for start_ts, commit_ts in self._unstored.items()
            if 0 < commit_ts <= ts and start_ts != head.start_ts
        ]
        assert too_early == [], "a timestamp came before a prewrite that commits below it"
        self.stored.append(payload)
        if head.tp == BinlogType.PREWRITE:
            self._unstored.pop(head.start_ts, None)
        if self._rng.random() < self._moodiness:
            raise Unavailable("the answer was lost")


async def one_by_one(records: list[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


@pytest.mark.parametrize("seed", range(6))
async def test_everything_arrives_and_nothing_before_its_time(seed: int) -> None:
    records = list(
        Workload(Options(seed=seed, transactions=300, sessions=64, ddl_every=40)).records()
    )
    pump = MoodyPump(seed, records, moodiness=0.05)
    feeder = Feeder([pump], retry_after_s=0)
    await feeder.feed(one_by_one(records))
    assert set(pump.stored) == {record.payload for record in records}
    statistics = feeder.statistics()
    assert statistics.acknowledged == len(records)
    assert statistics.in_flight == 0
    assert statistics.retries > 0
    assert 16 < pump.in_flight_max <= 64


async def test_a_stream_made_while_it_is_fed_holds_back_by_what_is_known_so_far() -> None:
    workload = Workload(Options(seed=9, transactions=300))

    async def made_on_the_way() -> AsyncIterator[Record]:
        for record in workload.records():
            yield record

    ahead = list(Workload(Options(seed=9, transactions=300)).records())
    pump = MoodyPump(9, ahead, moodiness=0.02)
    await Feeder([pump], retry_after_s=0).feed(made_on_the_way())
    assert set(pump.stored) == {record.payload for record in ahead}


async def test_a_refusal_ends_the_feed() -> None:
    class Refusing:
        async def write(self, payload: bytes) -> None:
            raise Refused("no")

    records = list(Workload(Options(seed=1, transactions=5)).records())
    with pytest.raises(ExceptionGroup) as caught:
        await Feeder([Refusing()]).feed(one_by_one(records))
    assert caught.group_contains(Refused)


@pytest.mark.parametrize("name", ["keys", "ddl"])
async def test_a_recording_is_fed_whole_to_each_of_its_pumps(name: str) -> None:
    records = list(recording.records(RECORDINGS / name))
    pumps = [MoodyPump(n, [], moodiness=0.01) for n in range(2)]
    await Feeder(pumps, retry_after_s=0).feed(one_by_one(records))
    for number, pump in enumerate(pumps):
        assert set(pump.stored) == {r.payload for r in records if r.pump == number}
    assert recording.cluster_id(RECORDINGS / name) > 0


def test_an_outcome_waits_for_its_own_prewrite_and_for_smaller_commits() -> None:
    first, second = Fate(Tso(1), Tso(10)), Fate(Tso(2), Tso(20))
    prewrite = Record(BinlogType.PREWRITE, Tso(1), b"", first)
    rollback = Record(BinlogType.ROLLBACK, Tso(2), b"", second)
    commit_of_second = Record(BinlogType.COMMIT, Tso(20), b"", second)
    hold_back = HoldBack()
    hold_back.sent(prewrite)
    assert hold_back.must_wait(Record(BinlogType.COMMIT, Tso(10), b"", first))
    assert hold_back.must_wait(commit_of_second)
    assert not hold_back.must_wait(rollback)
    hold_back.acknowledged(prewrite)
    assert not hold_back.must_wait(commit_of_second)
