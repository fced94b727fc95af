"""Route, state, verdict, garbage, pointers: the small decisions of a Pump."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.binlog import BinlogType
from binlogd.errors import Refused
from binlogd.log.index_file import Segment
from binlogd.log.pointer import (
    FileId,
    ValuePointer,
    missing_fids,
    segment_fid,
    segment_name,
)
from binlogd.ports import Committed, Pending, RolledBack
from binlogd.pump.log.entry import WITNESS, Item
from binlogd.pump.log.gc import GcPlan, Hold, Resume, plan
from binlogd.pump.route import WINDOW_BITS, Router, Routing, Share
from binlogd.pump.state import Action, NodeState, asked, settled
from binlogd.pump.verdict import AskAgain, Write, decide
from binlogd.tso import MAX_TS, NO_TS, Tso, compose
from binlogd.wire.peek import peek

timestamps = st.integers(1, MAX_TS).map(Tso)

# --- route ---------------------------------------------------------------------------------


routings = st.builds(Routing, st.integers(1, 64), st.sampled_from([0, WINDOW_BITS]))
FINE = Routing(2, window_bits=0)


@given(timestamps, routings)
def test_a_transaction_has_one_shard_also_after_a_restart(start_ts: Tso, routing: Routing) -> None:
    assert 0 <= routing.shard_of(start_ts) < routing.shards
    assert Routing.from_bytes(routing.to_bytes()) == routing


def test_routes_are_pinned() -> None:
    """Data directories depend on them."""
    base, old, new = compose(1_700_000_000_000), Routing.from_bytes(b"4\n"), Routing(4)
    assert old == Routing(4, window_bits=0)
    assert new.to_bytes() == b"4 24 #7c32d855\n"
    assert [old.shard_of(Tso(base + step)) for step in range(8)] == [2, 0, 3, 1, 0, 2, 1, 3]
    windows = [Tso(base + (step << 24)) for step in range(8)]
    assert [new.shard_of(ts) for ts in windows] == [0, 3, 1, 0, 2, 1, 3, 1]


@pytest.mark.parametrize(
    "content",
    [b"", b"0\n", b"four\n", b"4 64\n", b"4 -1\n", b"4 24 1\n", b"4 24", b"4 24 #7c32d854\n"],
)
def test_what_is_no_routing_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"routing|invalid literal|as a line|checksum"):
        Routing.from_bytes(content)


@pytest.mark.parametrize("step", [1, 1 << 18, 50 << 18])
@pytest.mark.parametrize("bits", [0, WINDOW_BITS])
def test_transactions_spread_over_the_shards(step: int, bits: int) -> None:
    base, routing = compose(1_700_000_000_000), Routing(8, bits)
    steps = (base + (step * number << bits) for number in range(8_000))
    counts = Counter(routing.shard_of(Tso(ts)) for ts in steps)
    assert min(counts.values()) > 800


def test_what_begins_within_a_window_goes_to_one_shard() -> None:
    base = compose(1_700_000_000_000 >> 6 << 6)
    assert {Routing(64).shard_of(Tso(base + (ms << 18))) for ms in range(64)} == {
        Routing(64).shard_of(base)
    }


# --- state ---------------------------------------------------------------------------------


def test_only_an_online_pump_takes_prewrites() -> None:
    assert [state for state in NodeState if state.takes_prewrites] == [NodeState.ONLINE]


@pytest.mark.parametrize(
    ("action", "then", "at_last"),
    [
        (Action.PAUSE, NodeState.PAUSING, NodeState.PAUSED),
        (Action.CLOSE, NodeState.CLOSING, NodeState.OFFLINE),
    ],
)
def test_an_online_pump_does_what_it_is_asked(
    action: Action, then: NodeState, at_last: NodeState
) -> None:
    assert asked(NodeState.ONLINE, action) is then
    assert settled(then) is at_last
    assert settled(at_last) is at_last


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.ONLINE])
@pytest.mark.parametrize("action", list(Action))
def test_a_pump_that_is_not_online_is_not_asked_again(state: NodeState, action: Action) -> None:
    with pytest.raises(Refused, match=state.value):
        asked(state, action)


def test_a_pump_that_ends_by_a_signal_is_paused() -> None:
    assert settled(NodeState.ONLINE) is NodeState.PAUSED


# --- verdict -------------------------------------------------------------------------------


def test_a_missing_commit_is_written() -> None:
    verdict = decide(Tso(5), Committed(Tso(9)))
    assert isinstance(verdict, Write)
    assert peek(verdict.payload)[:3] == (BinlogType.COMMIT, 5, 9)


def test_a_missing_rollback_is_written() -> None:
    verdict = decide(Tso(5), RolledBack())
    assert isinstance(verdict, Write)
    assert peek(verdict.payload)[:3] == (BinlogType.ROLLBACK, 5, 0)


def test_an_undecided_transaction_is_asked_about_again() -> None:
    assert decide(Tso(5), Pending("its lock is alive")) == AskAgain("its lock is alive")


@pytest.mark.parametrize("commit_ts", [0, 4, 5])
def test_a_commit_that_cannot_be_is_not_believed(commit_ts: int) -> None:
    assert isinstance(decide(Tso(5), Committed(Tso(commit_ts))), AskAgain)


# --- garbage -------------------------------------------------------------------------------


def sealed(fid: int, max_ts: int, needed_ts: int = 0) -> Segment:
    return Segment(FileId(fid), True, 100, Tso(max_ts), Tso(needed_ts), 1)


def planned(
    segments: list[Segment],
    *,
    age: int,
    holds: tuple[Hold, ...] = (),
    watermark: int = 1_000,
    resume: int = 1_000,
) -> GcPlan:
    return plan(
        segments,
        age_ts=Tso(age),
        holds=(*holds, Hold("watermark", Tso(watermark))),
        resume=Resume(FileId(resume), "an open prewrite"),
        gc_ts=Tso(3),
    )


def test_old_segments_go() -> None:
    segments = [sealed(0, 10), sealed(1, 20), sealed(2, 30)]
    assert planned(segments, age=20) == GcPlan((FileId(0), FileId(1)), Tso(20), "")


def test_nothing_goes_before_its_age() -> None:
    assert planned([sealed(0, 10)], age=9) == GcPlan((), Tso(3), "")


def test_a_segment_that_grows_stays() -> None:
    growing = Segment(FileId(0), False, 100, Tso(10))
    assert planned([growing, sealed(1, 5)], age=20) == GcPlan((), Tso(3), "")


def test_a_prewrite_stays_until_its_commit_may_go() -> None:
    segments = [sealed(0, 10, needed_ts=25), sealed(1, 20)]
    assert planned(segments, age=20).fids == ()
    assert planned(segments, age=25) == GcPlan((FileId(0), FileId(1)), Tso(25), "")


def test_segments_go_without_gaps() -> None:
    assert planned([sealed(0, 30), sealed(1, 10)], age=20).fids == ()


def test_who_still_needs_a_segment_is_named() -> None:
    holds = (Hold("export", Tso(15)), Hold("drainer", Tso(12)))
    segments = [sealed(0, 10), sealed(1, 14)]
    assert planned(segments, age=20, holds=holds) == GcPlan((FileId(0),), Tso(10), "drainer")
    assert planned(segments, age=20, holds=holds[:1]).fids == (FileId(0), FileId(1))


def test_nothing_above_the_watermark_goes() -> None:
    assert planned([sealed(0, 10)], age=20, watermark=9) == GcPlan((), Tso(3), "watermark")


def test_what_a_restart_scans_stays_and_it_is_said_why() -> None:
    segments = [sealed(0, 10), sealed(1, 14), sealed(2, 30)]
    assert planned(segments, age=20, resume=1) == GcPlan((FileId(0),), Tso(10), "an open prewrite")
    assert planned(segments, age=12, resume=1).held_by == ""  # it is not old enough anyway


def test_a_segment_whose_checksum_is_still_to_be_taken_stays() -> None:
    unmeasured = Segment(FileId(0), True, 100, Tso(10))
    assert planned([unmeasured, sealed(1, 14)], age=20).fids == ()
    assert "checksum" in planned([unmeasured], age=20).held_by


# --- pointers ------------------------------------------------------------------------------


def test_a_pointer_has_the_go_pumps_bytes() -> None:
    assert ValuePointer(FileId(1), 37).encode().hex() == "010000002500000000000000"


@given(st.integers(0, (1 << 32) - 1), st.integers(0, MAX_TS))
def test_a_pointer_is_read_as_it_was_written(fid: int, offset: int) -> None:
    pointer = ValuePointer(FileId(fid), offset)
    assert ValuePointer.decode(pointer.encode() + b"more") == pointer


def test_a_short_pointer_is_refused() -> None:
    with pytest.raises(ValueError, match="not enough data"):
        ValuePointer.decode(bytes(11))


@pytest.mark.parametrize(
    ("fids", "first_fid", "missing"),
    [
        ((), None, None),
        ((), 0, None),
        ((), 3, 3),
        ((0, 1, 2), None, None),
        ((4, 5), None, None),
        ((4, 5), 4, None),
        ((5, 4), 3, 3),
        ((0, 2, 3), 0, 1),
        ((7, 9), None, 8),
    ],
)
def test_a_log_has_no_gaps(
    fids: tuple[int, ...], first_fid: int | None, missing: int | None
) -> None:
    first = None if first_fid is None else FileId(first_fid)
    assert next(missing_fids([FileId(fid) for fid in fids], first), None) == missing


def test_every_segment_that_a_log_misses_is_told_in_order() -> None:
    there = {FileId(7), FileId(1), FileId(4)}
    assert list(missing_fids(there, FileId(0))) == [0, 2, 3, 5, 6]
    assert list(missing_fids(there, None)) == [2, 3, 5, 6]


def test_segments_are_named_as_the_go_pump_names_them() -> None:
    assert segment_name(FileId(7)) == "000007.vlog"
    assert segment_name(FileId(12_345_678)) == "12345678.vlog"
    assert segment_fid("000007.vlog") == 7
    assert segment_fid("notes.txt") is None
    with pytest.raises(ValueError, match=r"parse file xyz\.vlog err"):
        segment_fid("xyz.vlog")


def test_a_segment_is_gone_with_the_last_that_needs_it() -> None:
    assert sealed(0, 10, 20).gone_ts == 20
    assert sealed(0, 10).gone_ts == 10
    assert NO_TS == 0


# --- what the other shards are told --------------------------------------------------------


def p(start_ts: int) -> Item:
    return Item(BinlogType.PREWRITE, Tso(start_ts), NO_TS, b"p")


def c(start_ts: int, commit_ts: int) -> Item:
    return Item(BinlogType.COMMIT, Tso(start_ts), Tso(commit_ts), b"c")


def witness(ts: int) -> Item:
    return Item(WITNESS, NO_TS, Tso(ts), b"")


def ts_in(shard: int, above: int) -> int:
    """The next timestamp that is routed to a shard."""
    return next(ts for ts in range(above + 1, above + 1000) if FINE.shard_of(Tso(ts)) == shard)


def shares_of(router: Router, items: list[Item]) -> list[Share]:
    """What every shard gets once those are told that were left out."""
    shares = [Share() for _ in range(64)]
    for number, share in router.split(items).items():
        shares[number] = share
    for number, ts in router.shards_behind():
        shares[number].items.append(witness(ts))
    assert router.shards_behind() == []
    assert not router.is_any_behind
    return shares[: len(router._shown_ts)]


def test_an_idle_shard_is_told_of_a_commit() -> None:
    router = Router(FINE, high=NO_TS)
    start = ts_in(0, 100)
    shares = shares_of(router, [p(start), c(start, start + 1)])
    assert shares[0].items == [p(start), c(start, start + 1)]
    assert (shares[1].items, shares[1].positions) == ([witness(start + 1)], [])


def test_a_witness_stands_in_front_of_the_prewrites_that_came_later() -> None:
    router = Router(FINE, high=NO_TS)
    here, there = ts_in(0, 100), ts_in(1, 100)
    later = ts_in(1, 500)
    shares = shares_of(router, [p(there), c(here, 400), p(later), c(there, 450)])
    assert shares[0].items == [c(here, 400), witness(450)]
    assert shares[1].items == [p(there), witness(400), p(later), c(there, 450)]
    assert shares[1].positions == [0, 2, 3]


def test_nobody_is_told_twice() -> None:
    router = Router(FINE, high=Tso(50))
    start = ts_in(0, 100)
    assert [share.items for share in shares_of(router, [p(start)])] == [[p(start)], []]
    assert shares_of(router, [c(start, 400)])[1].items == [witness(400)]
    assert [share.items for share in shares_of(router, [c(start, 400)])] == [[c(start, 400)], []]
    assert shares_of(router, [p(ts_in(1, 500))])[0].items == []


def test_a_rollback_tells_nothing() -> None:
    router = Router(FINE, high=NO_TS)
    start = ts_in(0, 100)
    undone = Item(BinlogType.ROLLBACK, Tso(start), NO_TS, b"r")
    assert [share.items for share in shares_of(router, [undone])] == [[undone], []]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 90))), st.integers(1, 5))
def test_every_binlog_goes_to_one_shard_and_every_shard_knows_the_largest_commit(
    drawn: list[tuple[int, int]], shards: int
) -> None:
    items = [p(start) if commit <= start else c(start, commit) for start, commit in drawn]
    shares = shares_of(Router(Routing(shards, window_bits=0), high=NO_TS), items)
    positions = sorted(position for share in shares for position in share.positions)
    assert positions == list(range(len(items)))
    highest = max((item.commit_ts for item in items), default=0)
    for share in shares:
        real = [item for item in share.items if item.tp != WITNESS]
        assert real == [items[position] for position in share.positions]
        assert max((item.commit_ts for item in share.items), default=0) == highest
