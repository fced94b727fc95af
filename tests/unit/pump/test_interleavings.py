"""The recordings of a real TiDB, fed to the shards' sorters in every order that could have been."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.log.pointer import FileId, Place
from binlogd.pump.log.entry import Item
from binlogd.pump.route import Router, Routing
from binlogd.pump.shard.sorter import Sorter
from binlogd.tso import NO_TS, Tso
from tests.support.interleavings import Arrival, all_orders, any_order, arrivals
from tests.support.recordings_reader import records

RECORDINGS = Path(__file__).parents[2] / "recordings"


class Shards:
    """Sorters behind a router, as a Pump has them. Holds I4 against what is still to come."""

    def __init__(self, count: int) -> None:
        self.sorters = [Sorter() for _ in range(count)]
        self._router = Router(Routing(count, window_bits=0), high=NO_TS)
        self._offset = 0

    def feed(self, batch: Sequence[Arrival]) -> None:
        """One call; the others are told of it when `tell` comes."""
        items = [Item(each.tp, Tso(each.start_ts), Tso(each.commit_ts), b"") for each in batch]
        for number, share in self._router.split(items).items():
            sorter = self.sorters[number]
            for item in share.items:
                self._offset += 1
                if item.tp == BinlogType.PREWRITE:
                    place = Place(FileId(0), self._offset, 1)
                    sorter.prewrite(item.start_ts, place, 0.0)
                elif item.tp < 0:
                    sorter.witness(item.commit_ts)
                else:
                    sorter.outcome(item.start_ts, item.commit_ts)

    def tell(self) -> None:
        """The witnesses that are due."""
        for number, ts in self._router.shards_behind():
            self.sorters[number].witness(ts)

    @property
    def watermark(self) -> int:
        return min(sorter.watermark for sorter in self.sorters)


def play(order: Sequence[Arrival], count: int, rng: random.Random) -> None:
    """Nothing ever comes at or below the mark, the mark never falls, and all come out in the
    end."""
    smallest_left = [0] * (len(order) + 1)
    smallest_left[-1] = 1 << 63
    for at in range(len(order) - 1, -1, -1):
        commit_ts = order[at].commit_ts or 1 << 63
        smallest_left[at] = min(smallest_left[at + 1], commit_ts)
    shards, before, at = Shards(count), 0, 0
    while at < len(order):
        size = rng.randint(1, 5)
        shards.feed(order[at : at + size])
        if rng.random() < 0.5:
            shards.tell()
        at = min(len(order), at + size)
        assert shards.watermark >= before
        before = shards.watermark
        assert before < smallest_left[at], f"a commit came below the mark, behind {order[at - 1]}"
    shards.tell()
    assert shards.watermark == max(each.commit_ts for each in order)
    assert not any(sorter.open_count for sorter in shards.sorters)


@pytest.mark.parametrize(
    "orders_max", [400, pytest.param(1_000_000, marks=pytest.mark.soak)], ids=["some", "all"]
)
@pytest.mark.parametrize(("name", "shards"), [("mixed", 1), ("mixed", 3), ("keys", 2)])
def test_a_slice_of_a_recording_may_arrive_in_any_order(
    name: str, shards: int, orders_max: int
) -> None:
    """Exhaustive, where many transactions were open at once; up to a limit for each slice."""
    whole = arrivals(record.payload for record in records(RECORDINGS / name))
    busy = busiest(whole)
    rng = random.Random(shards)
    played = 0
    for begin in busy:
        slice_ = complete(whole, begin, transactions=5)
        for order in islice(all_orders(slice_), orders_max):
            play(order, shards, rng)
            played += 1
    assert played > len(busy)


def busiest(whole: Sequence[Arrival], most: int = 6) -> list[int]:
    """Where the most transactions were open."""
    opened, counts = 0, []
    for at, each in enumerate(whole):
        opened += 1 if each.tp == BinlogType.PREWRITE else -1
        counts.append((opened, -at))
    return [-at for _, at in sorted(counts, reverse=True)[:most]]


def complete(whole: Sequence[Arrival], begin: int, transactions: int) -> list[Arrival]:
    """The transactions that are about there, whole."""
    around = whole[max(0, begin - 40) : begin + 40]
    ended = [each.start_ts for each in around if each.tp != BinlogType.PREWRITE]
    some = [each for each in ended if any(other.start_ts == each for other in around[:41])]
    chosen = set(some[-transactions:])
    return [each for each in whole[max(0, begin - 400) : begin + 400] if each.start_ts in chosen]


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("ddl", 3),
        ("keys", 3),
        ("types", 1),
        ("mixed", 1),
        pytest.param("mixed", 50, marks=pytest.mark.soak),
    ],
)
def test_a_whole_recording_may_arrive_in_many_orders(name: str, seeds: int) -> None:
    whole = arrivals(record.payload for record in records(RECORDINGS / name))
    for seed in range(seeds):
        rng = random.Random(seed)
        order = any_order(whole, rng)
        assert sorted(order) == sorted(whole)
        play(order, rng.choice((1, 2, 4, 16)), rng)


def test_orders_that_could_not_have_been_break_the_law() -> None:
    """The check can fail: a prewrite that comes after a later commit."""
    late = Arrival(BinlogType.PREWRITE, 1, 0, b""), Arrival(BinlogType.COMMIT, 1, 2, b"")
    other = Arrival(BinlogType.PREWRITE, 3, 0, b""), Arrival(BinlogType.COMMIT, 3, 4, b"")

    def all_seeds() -> None:
        for seed in range(20):
            play([*other, *late], 1, random.Random(seed))

    with pytest.raises(AssertionError, match="below the mark"):
        all_seeds()
