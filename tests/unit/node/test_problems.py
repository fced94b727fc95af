"""What an operator is told to look at, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.errors import UnknownTable
from binlogd.node.problems import problems

SILENT = {"name": "p2", "trouble": "", "silent_s": 99.0}


def status(**changes: Any) -> dict[str, Any]:
    """Of a node that is well, but for what is given."""
    drainer = {"state": "running", "node_state": "online", "error": "", "sources": []}
    drainer["blocking"] = ""
    drainer |= changes.pop("drainer", {})
    gc = {"failed": "", "held_by": []} | changes.pop("gc", {})
    well = {
        "lag_s": 0.0,
        "upstream": {"kind": "standalone", "parts": [], "tso": None},
        "refuses_because": "",
        "late_commits": 0,
        "shards": [],
        "close_waits_for": "",
        "blocked_by": "",
        "blocked_s": 0.0,
        "free_bytes": 50,
        "capacity_bytes": 100,
    }
    return {**well, "drainer": drainer, "gc": gc, **changes}


def test_all_is_well() -> None:
    assert problems(status()) == []
    assert problems(status(blocked_by="a prewrite", blocked_s=0.2)) == [], "for a moment, as always"


def test_an_upstream_that_gives_no_answer_or_another_time_is_a_problem() -> None:
    away = {"name": "pd", "trouble": "PD: connection refused"}
    tso = {"went_back": 0, "trouble": "PD: connection refused"}
    upstream = {"kind": "pd", "parts": [away], "tso": tso}
    (found,) = problems(status(upstream=upstream))
    assert (found.severity, found.title) == ("warn", "The upstream's pd gives no answer")
    assert "Binlogs are taken" in found.todo
    tso = {"went_back": 2, "trouble": "PD's time went back: ..."}
    upstream = {"kind": "pd", "parts": [{"name": "pd", "trouble": ""}], "tso": tso}
    (found,) = problems(status(upstream=upstream))
    assert (found.severity, found.title) == ("bad", "The time of the upstream went back")


def test_what_is_stuck_says_what_where_and_the_way_past() -> None:
    error = str(UnknownTable(77, 412518831548007863, 2))
    (found,) = problems(status(drainer={"state": "stuck", "error": error}))
    assert (found.severity, found.title) == ("bad", "Replication is stuck")
    assert "not found table id: 77" in found.detail
    assert "binlogd skip 412518831548007863" in found.todo
    assert (found.action, found.commit_ts) == ("skip", "412518831548007863")


def test_a_failure_that_is_waited_out_says_when() -> None:
    drainer = {"state": "retrying", "error": "refused", "failed_in_a_row": 3, "retry_in_s": 4.2}
    (found,) = problems(status(drainer=drainer))
    assert found.severity == "warn"
    assert "3 times in a row" in found.title
    assert "in 4 s" in found.todo
    assert found.action == ""


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"refuses_because": "disk full"}, "bad", "refused"),
        ({"late_commits": 2}, "bad", "too late"),
        ({"shards": [{"name": "shard-1", "index_damage": "torn"}]}, "warn", "shard-1"),
        ({"close_waits_for": "a drainer"}, "info", "closing"),
        ({"blocked_by": "a prewrite", "blocked_s": 99.0}, "warn", "one transaction"),
        ({"drainer": {"state": "off"}}, "info", "turned off"),
        ({"drainer": {"node_state": "paused"}}, "info", "paused"),
        ({"drainer": {"node_state": "offline"}}, "warn", "offline"),
        ({"drainer": {"ddl": {"elapsed_s": 99.0, "statement": "ALTER"}}}, "info", "99 s"),
        (
            {"drainer": {"sources": [{"name": "p2", "trouble": "refused", "silent_s": 9.0}]}},
            "warn",
            "p2",
        ),
        ({"drainer": {"sources": [SILENT], "blocking": "p2"}}, "warn", "p2 has said nothing"),
        ({"drainer": {"values_in_doubt": 1}}, "warn", "new columns"),
        ({"drainer": {"trash": {"error": "denied"}}}, "warn", "trash"),
        ({"gc": {"failed": "no such file"}}, "warn", "Garbage"),
        ({"gc": {"held_by": ["drainer"]}, "free_bytes": 5}, "warn", "tenth"),
    ],
)
def test_every_trouble_is_named_with_what_to_do(
    changes: dict[str, Any], severity: str, words: str
) -> None:
    changes.setdefault("shards", [])
    (found,) = problems(status(**changes))
    assert found.severity == severity
    assert words in found.title
    assert found.todo


def test_a_silent_source_is_a_problem_where_it_is_waited_for_and_another_node() -> None:
    assert problems(status(drainer={"sources": [SILENT], "blocking": "p1"})) == []
    shards = [{"name": "p2", "index_damage": ""}]
    assert problems(status(drainer={"sources": [SILENT], "blocking": "p2"}, shards=shards)) == []


def test_the_worst_comes_first() -> None:
    found = problems(status(close_waits_for="x", late_commits=1, gc={"failed": "y"}))
    assert [each.severity for each in found] == ["bad", "warn", "info"]
