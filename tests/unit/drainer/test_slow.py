"""Which transactions are told as slow: those above the limit, by their own commit."""

from __future__ import annotations

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.slow import SlowTransactions, Stages
from binlogd.drainer.txn import Dml, Skip, Txn
from binlogd.telemetry.traces import QUEUED_MAX, SlowTransaction, Traces, TraceSpan
from binlogd.tso import Tso, compose

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
    slow.given(txns, T0 + 700)
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


def test_what_nobody_takes_has_a_limit() -> None:
    traces = Traces(1.0)
    for number in range(QUEUED_MAX + 7):
        traces.add(SlowTransaction(Tso(number), [TraceSpan("write", 0, 1)], {}))
    assert traces.dropped == 7
