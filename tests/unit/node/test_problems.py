"""What an operator is told to look at, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.drainer.mysql.connection import SqlRefused
from binlogd.errors import (
    Behind,
    BinlogdError,
    ConfigError,
    Corrupt,
    DownstreamUnavailable,
    Failure,
    PromiseBroken,
    UnknownTable,
)
from binlogd.node.problems import Problem, problems
from binlogd.status import (
    ChaserCounts,
    DdlAtWork,
    DrainerStatus,
    FailureStatus,
    GcStatus,
    SavedCheckpoint,
    ShardStatus,
    SourceStatus,
    TrashStatus,
    TsoStatus,
    UpstreamPart,
    UpstreamStatus,
)
from binlogd.tso import NO_TS, Tso
from tests.support.statuses import drainer, well


def source(*, silent_s: float = 9.0, trouble: str = "") -> SourceStatus:
    """Another Pump."""
    return SourceStatus(
        name="p2",
        state="online",
        resolved_ts=NO_TS,
        lag_s=None,
        binlogs_waiting=0,
        silent_s=silent_s,
        trouble=trouble,
    )


def shard(name: str, *, index_damage: str = "") -> ShardStatus:
    counts = ChaserCounts(turned_on=0, catch_ups=0, recoveries=0, records_read=0)
    return ShardStatus(
        name=name,
        max_commit_ts=NO_TS,
        open_prewrites=0,
        queued=0,
        chaser="off",
        chaser_counts=counts,
        index_rebuilds=0,
        index_damage=index_damage,
        written=0,
        log_bytes=0,
    )


def tso(trouble: str, *, went_back: int = 0) -> TsoStatus:
    return TsoStatus(
        last_ts=NO_TS,
        age_s=None,
        trouble=trouble,
        requests=0,
        slow=0,
        errors=0,
        went_back=went_back,
    )


AT_WORK = DdlAtWork(commit_ts=Tso(5), statement="ALTER", elapsed_s=99.0, stage="", percent=0.0)

SILENT = source(silent_s=99.0)


def test_all_is_well() -> None:
    assert problems(well()) == []
    assert problems(well(blocked_by="a prewrite", blocked_s=0.2)) == [], "for a moment, as always"


def test_an_upstream_that_gives_no_answer_or_another_time_is_a_problem() -> None:
    away = UpstreamPart(name="pd", trouble="PD: connection refused")
    upstream = UpstreamStatus(kind="pd", parts=[away], tso=tso("PD: connection refused"))
    (found,) = problems(well(upstream=upstream))
    assert (found.severity, found.title) == ("warn", "The upstream's pd gives no answer")
    assert "Binlogs are taken" in found.todo
    back = tso("PD's time went back: ...", went_back=2)
    upstream = UpstreamStatus(kind="pd", parts=[UpstreamPart(name="pd")], tso=back)
    (found,) = problems(well(upstream=upstream))
    assert (found.severity, found.title) == ("bad", "The time of the upstream went back")


def shown(error: BinlogdError, state: str = "stuck", **others: Any) -> Problem:
    """What an operator is shown of an error of the Drainer."""
    kind, _, told, todo, skip_ts = Failure.of(error)
    failure = FailureStatus(kind, told, todo, Tso(skip_ts))
    (found,) = problems(well(drainer=drainer(state=state, failure=failure, **others)))
    return found


def test_a_clock_that_is_behind_is_named_where_binlogs_are_refused_for_it() -> None:
    (found,) = problems(well(refused_from_the_future=3))
    assert (found.severity, found.title[:17]) == ("bad", "3 binlogs were re")
    assert "clock is behind TiDB's" in found.detail
    assert found.todo.startswith("Set the clock")


def test_what_is_stuck_says_what_and_where_and_how_to_mend_it_before_the_way_past() -> None:
    found = shown(UnknownTable(77, 412518831548007863, 2))
    assert (found.severity, found.title) == ("bad", "Replication is stuck")
    assert "not found table id: 77" in found.detail
    mended, _, last = found.todo.partition("If nothing else helps: ")
    assert "upstream.schema-history" in mended
    assert "binlogd skip 412518831548007863" in last
    assert (found.action, found.commit_ts) == ("skip", "412518831548007863")


@pytest.mark.parametrize(
    "error",
    [
        PromiseBroken("p2", 3, 5, 9),
        Behind(5, 9),
        Corrupt("a record of commit_ts 5; it is torn"),
        ConfigError("commit_ts 5 would be written to another table; remove the route"),
        SqlRefused(1142, "INSERT command denied").of_rows(5, "INSERT"),
        SqlRefused(1062, "duplicate").of_rows(5, "rows of several tables", is_theirs=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_skip_is_not_offered_where_none_can_help(error: BinlogdError) -> None:
    assert "5" in error.message, "its words name a transaction"
    found = shown(error)
    assert (found.severity, found.action, found.commit_ts) == ("bad", "retry", "")
    assert "skip" not in found.todo
    assert found.todo


def test_a_failure_that_is_waited_out_says_when_and_what_would_help() -> None:
    error = DownstreamUnavailable("commit_ts 5: refused; by the peer")
    found = shown(error, "retrying", failed_in_a_row=3, retry_in_s=4.2)
    assert found.severity == "warn"
    assert "3 times in a row" in found.title
    assert found.detail == "commit_ts 5: refused; by the peer", "nothing is cut out of a sentence"
    assert "in 4 s" in found.todo
    assert "can be reached" in found.todo
    assert found.action == "retry"


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"refuses_because": "disk full"}, "bad", "refused"),
        ({"late_commits": 2}, "bad", "too late"),
        ({"shards": [shard("shard-1", index_damage="torn")]}, "warn", "shard-1"),
        ({"close_waits_for": "a drainer"}, "info", "closing"),
        ({"blocked_by": "a prewrite", "blocked_s": 99.0}, "warn", "one transaction"),
        ({"drainer": DrainerStatus()}, "info", "turned off"),
        ({"drainer": drainer(node_state="paused")}, "info", "paused"),
        ({"drainer": drainer(node_state="offline")}, "warn", "offline"),
        ({"drainer": drainer(ddl=AT_WORK)}, "info", "99 s"),
        ({"drainer": drainer(sources=[source(trouble="refused")])}, "warn", "p2"),
        ({"drainer": drainer(sources=[SILENT], blocking="p2")}, "warn", "p2 has said nothing"),
        ({"drainer": drainer(values_in_doubt=1)}, "warn", "values of columns"),
        ({"drainer": drainer(trash=TrashStatus(error="denied"))}, "warn", "trash"),
        ({"drainer": drainer(expiring=["shop.log"])}, "info", "TTL"),
        ({"gc": GcStatus(failed="no such file")}, "warn", "Garbage"),
        ({"gc": GcStatus(held_by=["drainer"]), "free_bytes": 5}, "warn", "tenth"),
    ],
)
def test_every_trouble_is_named_with_what_to_do(
    changes: dict[str, Any], severity: str, words: str
) -> None:
    (found,) = problems(well(**changes))
    assert found.severity == severity
    assert words in found.title
    assert found.todo


def test_a_silent_source_is_a_problem_where_it_is_waited_for_and_another_node() -> None:
    assert problems(well(drainer=drainer(sources=[SILENT], blocking="p1"))) == []
    shards = [shard("p2")]
    assert problems(well(drainer=drainer(sources=[SILENT], blocking="p2"), shards=shards)) == []


def test_the_worst_comes_first() -> None:
    found = problems(well(close_waits_for="x", late_commits=1, gc=GcStatus(failed="y")))
    assert [each.severity for each in found] == ["bad", "warn", "info"]


def test_what_fails_beside_the_replication_is_told_with_its_reason() -> None:
    found = problems(well(checkpoint=SavedCheckpoint(error="it is locked"), log_error="no space"))
    assert [(each.severity, each.title, each.detail) for each in found] == [
        ("warn", "The checkpoint is not saved", "it is locked"),
        ("warn", "Log lines cannot be written", "no space"),
    ]
