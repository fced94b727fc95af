"""Which transactions are told as slow: those above the limit, by their own commit."""

from __future__ import annotations

from binlogd.binlog import BinlogType, CommittedBinlog, Pulled
from binlogd.drainer.slow import SlowTransactions, Stages
from binlogd.drainer.txn import Dml, Skip, Txn
from binlogd.pump.log.entry import WITNESS, Item
from binlogd.pump.slow import SlowWrites
from binlogd.telemetry.traces import (
    QUEUED_MAX,
    WRITES_MAX,
    SlowTransaction,
    Traces,
    TraceSpan,
    WriteTimes,
)
from binlogd.tso import NO_TS, Tso, compose

T0 = 1_700_000_000_000


class Clock:
    """Stands where the test puts it."""

    def __init__(self) -> None:
        self.ms = T0

    def wall_ms(self) -> int:
        return self.ms


def test_only_what_took_longer_than_the_limit_is_told_with_its_parts() -> None:
    traces, clock = Traces(2.0), Clock()
    slow = SlowTransactions(traces, clock)
    old, young = (Dml(compose(T0 + at), compose(T0 + at + 1), 1, ()) for at in (0, 1_500))
    txns: list[Txn] = [old, young, Skip(young.commit_ts)]
    pulled = Pulled([CommittedBinlog(old.start_ts, old.commit_ts, b"")], old.commit_ts)
    slow.pulled(pulled, T0 + 100)
    slow.queued(Stages(txns, T0 + 300, T0 + 400, T0 + 500))
    clock.ms = T0 + 900
    slow.given(txns, 0.2)
    slow.applied(Tso(young.commit_ts - 1))
    assert traces.take() == [], "not all of it is downstream"
    clock.ms = T0 + 3_000
    slow.applied(young.commit_ts)
    (told,) = traces.take()
    assert told.start_ts == old.start_ts
    assert told.spans == [
        TraceSpan("transaction", T0 + 1, T0 + 3_000),
        TraceSpan("wait", T0 + 1, T0 + 100),
        TraceSpan("merge", T0 + 100, T0 + 300),
        TraceSpan("relay", T0 + 400, T0 + 500),
        TraceSpan("lane", T0 + 700, T0 + 900),
        TraceSpan("commit", T0 + 900, T0 + 3_000),
    ]


def test_a_part_is_not_given_before_it_is_in_the_relay_log() -> None:
    """Both in the same millisecond, by a clock that tells no more."""
    traces, clock = Traces(1.0), Clock()
    slow = SlowTransactions(traces, clock)
    txn = Dml(compose(T0), compose(T0), 1, ())
    txns: list[Txn] = [txn]
    clock.ms = T0 + 10
    slow.queued(Stages(txns, clock.ms, clock.ms, clock.ms))
    slow.given(txns, 0.0009)
    clock.ms = T0 + 2_000
    slow.applied(txn.commit_ts)
    (told,) = traces.take()
    begins = [each.begin_ms for each in told.spans[1:]]
    assert begins == sorted(begins)


def test_what_nobody_takes_has_a_limit_and_half_of_a_trace_is_none() -> None:
    traces = Traces(1.0)
    told = SlowTransaction(Tso(1), [TraceSpan("write", 0, 1)], {})
    for _ in range(QUEUED_MAX - 1):
        traces.add(told)
    traces.add(told, told)
    assert traces.dropped == 2
    traces.add(told)
    traces.add(told)
    assert traces.dropped == 3


def test_a_slow_write_is_told_at_once_and_a_quick_one_when_its_transaction_is_slow() -> None:
    traces, clock = Traces(2.0), Clock()
    writes, start_ts, commit_ts = SlowWrites(traces, clock), compose(T0), compose(T0 + 5)
    prewrite = Item(BinlogType.PREWRITE, start_ts, NO_TS, b"")
    commit = Item(BinlogType.COMMIT, start_ts, commit_ts, b"")
    witness = Item(WITNESS, NO_TS, commit_ts, b"")
    writes.answered([prewrite, witness], came_s=2.5, begun_s=0.5)
    (told,) = traces.take()
    assert told.spans == [
        TraceSpan("write", T0 - 2_500, T0),
        TraceSpan("sync", T0 - 500, T0),
    ]
    clock.ms = T0 + 10
    writes.answered([commit], came_s=0.004, begun_s=0.002)
    writes.answered([witness], came_s=0.001, begun_s=0.001)
    assert traces.take() == []
    (again,) = traces.remembered(start_ts, commit_ts)
    assert again.attributes == {"binlogd.start_ts": start_ts, "binlogd.commit_ts": commit_ts}
    assert again.spans == [
        TraceSpan("write", T0 + 6, T0 + 10),
        TraceSpan("sync", T0 + 8, T0 + 10),
    ]


def test_the_newest_writes_are_remembered_and_no_more_than_twice_the_limit() -> None:
    traces, write = Traces(1.0), WriteTimes(0, 1, 2)
    for number in range(1, 2 * WRITES_MAX + 2):
        traces.remember({Tso(number): write})
    known = [
        number for number in range(2 * WRITES_MAX + 2) if traces.remembered(Tso(number), NO_TS)
    ]
    assert known == list(range(WRITES_MAX + 1, 2 * WRITES_MAX + 2))
