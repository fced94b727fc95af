"""Up to where a log is complete (law I4): the Pump's sorter, an archive's fold and an export's
columns are held to one model, at every place where a history may be cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from binlogd.binlog import BinlogType
from binlogd.errors import Refused
from binlogd.log.pointer import FileId, Place
from binlogd.log.segment_index import Fold, SegmentIndex
from binlogd.pump.shard.sorter import Sorter
from binlogd.snapshot.log.prewrites import Heads, LogHeads
from binlogd.snapshot.log.reader import Slice
from binlogd.snapshot.spec import ExportSpec
from binlogd.snapshot.tables.transactions import moment
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog, rollback_binlog

LATEST = ExportSpec(
    segments=(),
    schema_history="",
    as_of=NO_TS,
    known_resolved_ts=NO_TS,
    out="",
    staging="",
    scratch="",
    ignore_schemas=(),
)
Record = tuple[BinlogType, int, int]
"""Type, start_ts, commit_ts; a fake is a Rollback of equal timestamps."""


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """A log as TiDB may leave it: a commit_ts is asked for when the prewrite is in the log, and
    what was answered too late for its writer is sent again, at any time."""
    log: list[Record] = []
    started: list[int] = []
    committed: dict[int, int] = {}
    for now in range(1, draw(st.integers(2, 24))):
        action = draw(st.sampled_from(("begin", "again", "ask", "commit", "roll", "fake")))
        waiting = [each for each in started if each not in committed]
        if action == "begin" or not started:
            started.append(now)
            log.append((BinlogType.PREWRITE, now, 0))
        elif action == "again":
            log.append((BinlogType.PREWRITE, draw(st.sampled_from(started)), 0))
        elif action == "fake":
            log.append((BinlogType.ROLLBACK, now, now))
        elif action == "ask" and waiting:
            committed[draw(st.sampled_from(waiting))] = now
        elif action == "roll" and waiting:
            given_up = draw(st.sampled_from(waiting))
            committed[given_up] = 0
            log.append((BinlogType.ROLLBACK, given_up, 0))
        elif action == "commit" and any(committed.values()):
            start_ts = draw(st.sampled_from([each for each in committed if committed[each]]))
            log.append((BinlogType.COMMIT, start_ts, committed[start_ts]))
    left = [(start_ts, commit_ts) for start_ts, commit_ts in committed.items() if commit_ts]
    return log + [(BinlogType.COMMIT, *each) for each in left]


def model(log: Sequence[Record]) -> tuple[int, int]:
    """The largest timestamp before the first open prewrite; and the least that any open one may
    commit above."""
    decided = {start for tp, start, commit in log if tp != BinlogType.PREWRITE and start != commit}
    seen, first, floors = 0, None, list[int]()
    for tp, start_ts, commit_ts in log:
        if tp == BinlogType.PREWRITE and start_ts not in decided:
            first = seen if first is None else first
            floors.append(max(seen, start_ts))
        seen = max(seen, commit_ts)
    return (seen if first is None else first), min(floors, default=seen)


def sorted_upto(log: Sequence[Record]) -> int:
    sorter = Sorter()
    for at, (tp, start_ts, commit_ts) in enumerate(log):
        if tp == BinlogType.PREWRITE:
            sorter.prewrite(Tso(start_ts), Place(FileId(0), at, 1), 0.0)
        elif start_ts == commit_ts:
            sorter.witness(Tso(commit_ts))
        else:
            sorter.outcome(Tso(start_ts), Tso(commit_ts))
    return sorter.watermark


def payload(record: Record) -> bytes:
    tp, start_ts, commit_ts = record
    if tp == BinlogType.PREWRITE:
        return prewrite_binlog(Tso(start_ts))
    if tp == BinlogType.COMMIT:
        return commit_binlog(Tso(start_ts), Tso(commit_ts))
    return fake(Tso(start_ts)) if commit_ts else rollback_binlog(Tso(start_ts))


def folded(log: Sequence[Record], before: SegmentIndex | None = None) -> Fold:
    fold = Fold(0, before)
    for at, record in enumerate(log):
        fold.take(at, payload(record))
    return fold


def exported_upto(log: Sequence[Record]) -> int:
    kind, start_ts, commit_ts = (np.array(column, np.int64) for column in zip(*log, strict=True))
    part = Slice(0, 0, "", 0, len(log), len(log))
    heads = Heads(kind.astype(np.int8), np.arange(len(log)), start_ts, commit_ts)
    try:
        return moment(LogHeads([part], [heads]), LATEST)[2]
    except Refused:  # nothing is complete
        return NO_TS


@settings(max_examples=60)
@example([(BinlogType.PREWRITE, 1, 0), (BinlogType.ROLLBACK, 4, 4), (BinlogType.PREWRITE, 1, 0)])
@given(histories())
def test_all_forms_of_the_law_say_the_same_wherever_a_log_is_cut(log: list[Record]) -> None:
    for cut in range(1, len(log) + 1):
        before, after = log[:cut], log[cut:]
        watermark, complete = model(before)
        assert sorted_upto(before) == watermark
        assert folded(before).resolved_ts == complete
        newest = max(commit_ts for _, _, commit_ts in before)
        assert exported_upto(before) == min(newest, complete), "it goes to a transaction"
        assert watermark <= complete
        late = {record for record in after if record[0] == BinlogType.COMMIT} - set(before)
        assert not [each for each in late if each[2] <= complete]


@settings(max_examples=40)
@example([(BinlogType.PREWRITE, 1, 0), (BinlogType.ROLLBACK, 1, 0)], 1)
@given(histories(), st.integers(0))
def test_a_fold_that_goes_on_with_the_next_segment_promises_no_more(
    log: list[Record], cut: int
) -> None:
    """It may promise less: of what ended in an earlier segment it remembers nothing; and less than
    the segment before, where the one prewrite that was ahead of all commits is rolled back."""
    cut %= len(log)
    first = folded(log[:cut]).index(size_bytes=0, crc32c=0, is_sealed=True)
    assert first.resolved_ts <= model(log[:cut])[1]
    assert folded(log[cut:], first).resolved_ts <= model(log)[1]
