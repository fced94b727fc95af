"""Many sources, one order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.errors import Corrupt
from binlogd.merge.merge import Merge
from binlogd.tso import NO_TS, Tso


def commit(start_ts: int, commit_ts: int) -> CommittedBinlog:
    return CommittedBinlog(Tso(start_ts), Tso(commit_ts), b"x")


def fake(ts: int) -> CommittedBinlog:
    return commit(ts, ts)


def pulled(*binlogs: CommittedBinlog, up_to: int) -> Pulled:
    return Pulled(binlogs, Tso(up_to))


def test_a_binlog_waits_until_every_source_has_promised_past_it() -> None:
    merge = Merge(["a", "b"], NO_TS)
    merge.push("a", pulled(commit(1, 5), up_to=9))
    assert merge.pop() is None
    merge.push("b", pulled(up_to=4))
    assert merge.pop() == Pulled([], Tso(4))
    merge.push("b", pulled(commit(6, 7), up_to=7))
    assert merge.pop() == Pulled([commit(1, 5), commit(6, 7)], Tso(7))
    assert merge.pop() is None


def test_one_that_joins_begins_where_the_merge_is_and_not_where_another_source_is() -> None:
    merge = Merge(["a", "b"], NO_TS)
    merge.push("a", pulled(commit(1, 5), commit(2, 9), up_to=9))
    merge.push("b", pulled(up_to=6))
    assert (found := merge.pop()) is not None
    assert (list(found.binlogs), found.resolved_ts) == ([commit(1, 5)], 6)
    assert merge.join("c").resolved_ts == 6
    merge.push("b", pulled(up_to=9))
    assert merge.pop() is None
    merge.push("c", pulled(commit(3, 7), up_to=9))
    assert (found := merge.pop()) is not None
    assert list(found.binlogs) == [commit(3, 7), commit(2, 9)]


def test_a_transaction_that_two_sources_hold_leaves_once() -> None:
    merge = Merge(["a", "b"], NO_TS)
    merge.push("a", pulled(commit(1, 5), up_to=5))
    merge.push("b", pulled(commit(1, 5), up_to=5))
    assert merge.pop() == Pulled([commit(1, 5)], Tso(5))
    assert merge.statistics().duplicates_dropped == 1


def test_a_fake_binlog_gives_way_to_a_real_one() -> None:
    merge = Merge(["a", "b", "c"], NO_TS)
    merge.push("a", pulled(fake(5), up_to=5))
    merge.push("b", pulled(commit(1, 5), up_to=5))
    merge.push("c", pulled(fake(5), up_to=5))
    assert merge.pop() == Pulled([commit(1, 5)], Tso(5))
    assert merge.statistics().duplicates_dropped == 0


def test_different_transactions_with_one_commit_ts_are_both_kept() -> None:
    merge = Merge(["a", "b"], NO_TS)
    merge.push("a", pulled(commit(3, 5), up_to=5))
    merge.push("b", pulled(commit(2, 5), up_to=5))
    assert merge.pop() == Pulled([commit(2, 5), commit(3, 5)], Tso(5))


def test_a_source_that_breaks_its_promise_is_refused() -> None:
    merge = Merge(["a"], Tso(10))
    with pytest.raises(Corrupt, match="source a delivered commit_ts 10"):
        merge.push("a", pulled(commit(1, 10), up_to=20))
    merge.push("a", pulled(up_to=20))
    with pytest.raises(Corrupt, match="behind 20"):
        merge.push("a", pulled(commit(1, 15), up_to=30))


def test_the_source_that_blocks_is_named() -> None:
    merge = Merge(["a", "b"], NO_TS)
    merge.push("a", pulled(commit(1, 5), up_to=5))
    statistics = merge.statistics()
    assert statistics.blocking == "b"
    assert statistics.sources[0].binlogs_waiting == 1


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[CommittedBinlog], list[tuple[str, Pulled]]]:
    """Transactions spread over sources (some twice), each source cut into batches, interleaved."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 4)))]
    times = sorted(draw(st.sets(st.integers(2, 200), max_size=40)))
    real = [commit(ts - 1, ts) for ts in times]
    batches: list[tuple[str, Pulled]] = []
    homes = [draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)) for _ in real]
    for name in names:
        mine = [binlog for binlog, home in zip(real, homes, strict=True) if name in home]
        mine += [fake(ts) for ts in draw(st.sets(st.integers(2, 200), max_size=5))]
        mine = list(
            {binlog.commit_ts: binlog for binlog in sorted(mine, key=_fakes_first)}.values()
        )
        while mine:
            size = draw(st.integers(0, len(mine)))
            part, mine = mine[:size], mine[size:]
            promise = mine[0].commit_ts - 1 if mine else 300
            batches.append((name, pulled(*part, up_to=promise)))
        batches.append((name, pulled(up_to=300)))
    order = draw(st.permutations(range(len(batches))))
    turns = [batches[n][0] for n in order]
    queues = {name: iter([batch for batch in batches if batch[0] == name]) for name in names}
    return real, [next(queues[name]) for name in turns]


def _fakes_first(binlog: CommittedBinlog) -> tuple[int, bool]:
    return binlog.commit_ts, not binlog.is_fake


@given(_histories())
def test_whatever_arrives_in_whatever_order_leaves_in_order_and_once(
    history: tuple[list[CommittedBinlog], list[tuple[str, Pulled]]],
) -> None:
    real, batches = history
    merge = Merge(dict.fromkeys(name for name, _ in batches), NO_TS)
    out: list[CommittedBinlog] = []
    promise = 0
    for name, batch in batches:
        merge.push(name, batch)
        popped = merge.pop()
        if popped is None:
            continue
        assert popped.resolved_ts > promise
        for binlog in popped.binlogs:
            assert promise < binlog.commit_ts <= popped.resolved_ts
        promise = popped.resolved_ts
        out += popped.binlogs
    assert promise == 300
    assert [each.commit_ts for each in out] == sorted({each.commit_ts for each in out})
    assert [each for each in out if not each.is_fake] == real
