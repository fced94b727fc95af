"""What `binlogd status` says about a replication that waits."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.commands.console import print_status


def document(**drainer: Any) -> dict[str, Any]:
    """A `/status` of a node that is well, but for what is given."""
    return {
        "node_id": "n:8250",
        "state": "online",
        "cluster_id": 7,
        "max_commit_ts": 50,
        "checkpoint": {"commit_ts": 40, "consistent": False},
        "lag_s": 1.5,
        "upstream": {"kind": "standalone", "parts": [], "tso": None},
        "blocked_by": "",
        "close_waits_for": "",
        "refuses_because": "",
        "gc": {"holds": {}, "held_by": [], "gc_ts": 0, "failed": ""},
        "late_commits": 0,
        "first_late": [],
        "shards": [],
        "drainer": {
            "state": "running",
            "node_state": "online",
            "error": "",
            "blocking": "",
            "sources": [],
            **drainer,
        },
    }


def shown(capsys: pytest.CaptureFixture[str], **drainer: Any) -> str:
    print_status(document(**drainer))
    return " ".join(capsys.readouterr().out.split())


def test_a_ddl_at_work_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    ddl = {
        "commit_ts": 41,
        "statement": "ALTER TABLE `t` ADD COLUMN [x] INT",
        "elapsed_s": 1274.2,
        "stage": "copy to tmp table",
        "percent": 43.0,
    }
    text = shown(capsys, ddl=ddl)
    assert "DDL at work for 1274 s, copy to tmp table 43 % (commit_ts 41):" in text
    assert "ADD COLUMN [x] INT" in text
    assert "stuck" not in text


def test_a_retry_says_when_it_is_and_how_often_it_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(
        capsys,
        state="retrying",
        error="root@db:3306 is read-only",
        retry_in_s=8.2,
        failed_in_a_row=5,
    )
    assert "retrying in 8 s, 5 failed in a row: root@db:3306 is read-only" in text


def test_a_stuck_replication_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stuck: error 1146" in shown(capsys, state="stuck", error="error 1146")


def test_who_keeps_old_binlogs_and_why_writes_stop_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = document()
    now["refuses_because"] = "only 5 bytes are free"
    now["gc"] = {"held_by": ["drainer", "export base [a]"], "failed": "bases/odd: no timestamp"}
    print_status(now)
    text = " ".join(capsys.readouterr().out.split())
    assert "refusing writes: only 5 bytes are free" in text
    assert "old binlogs are kept for: drainer, export base [a]" in text
    assert "nothing is deleted: bases/odd: no timestamp" in text
    assert "kept for" not in shown(capsys)
