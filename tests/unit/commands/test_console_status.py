"""What `binlogd status` says about a replication that waits."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.commands.console import print_status
from binlogd.status import DdlAtWork, DrainerStatus, GcStatus
from binlogd.tso import Tso
from tests.support.statuses import drainer, well


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    print_status(well(drainer=drainer(**changes)))
    return " ".join(capsys.readouterr().out.split())


def test_a_ddl_at_work_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    ddl = DdlAtWork(
        commit_ts=Tso(41),
        statement="ALTER TABLE `t` ADD COLUMN [x] INT",
        elapsed_s=1274.2,
        stage="copy to tmp table",
        percent=43.0,
    )
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
    gc = GcStatus(held_by=["drainer", "export base [a]"], failed="bases/odd: no timestamp")
    print_status(well(refuses_because="only 5 bytes are free", gc=gc))
    text = " ".join(capsys.readouterr().out.split())
    assert "refusing writes: only 5 bytes are free" in text
    assert "old binlogs are kept for: drainer, export base [a]" in text
    assert "nothing is deleted: bases/odd: no timestamp" in text
    assert "kept for" not in shown(capsys)


@pytest.mark.parametrize(
    ("lag_s", "half", "words"),
    [
        (1.5, drainer(), "lag 1.500 s"),
        (None, drainer(), "lag nothing is applied yet"),
        (None, DrainerStatus(), "lag not replicating"),
    ],
)
def test_a_lag_that_is_not_known_is_no_number(
    capsys: pytest.CaptureFixture[str], lag_s: float | None, half: DrainerStatus, words: str
) -> None:
    print_status(well(lag_s=lag_s, drainer=half))
    assert words in " ".join(capsys.readouterr().out.split())
