"""What `binlogd status` says about a replication that waits."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.commands.nodes import show_nodes
from binlogd.commands.status_screen import print_status
from binlogd.ports import NodeStatus
from binlogd.settings.quantities import wall_clock
from binlogd.status import (
    DdlAtWork,
    DrainerStatus,
    GcStatus,
    SavedCheckpoint,
    SourceStatus,
    UpstreamPart,
    UpstreamStatus,
)
from binlogd.tso import Tso
from binlogd.upstream.entry import DRAINER
from tests.support.statuses import drainer, well

PHYSICAL = wall_clock(Tso(1 << 58))


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    print_status(well(drainer=drainer(**changes)))
    return " ".join(capsys.readouterr().out.split())


def test_names_and_addresses_of_nodes_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    name, host = "pump-1.example.com:8250-drainer", "10.0.0.17:8250"
    found = NodeStatus(DRAINER, name, host, "paused", Tso(470611451867561985), Tso(1 << 58))
    show_nodes([found], as_json=False)
    text = capsys.readouterr().out
    assert name in text
    assert host in text
    assert "…" not in text, "nothing is cut"


def test_a_row_of_a_table_is_one_line_where_no_terminal_breaks_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show_nodes(
        [NodeStatus(DRAINER, "n", "h:1", "paused", Tso(1 << 58), Tso(1 << 58))], as_json=False
    )
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["drainer", "n", "h:1", "paused", "?", str(1 << 58), PHYSICAL]
    error = "a reason of many words " * 20
    print_status(well(drainer=drainer(state="stuck"), refuses_because=error))
    said = capsys.readouterr().out.splitlines()
    assert any("everything up to" in line and line.split()[-1].isdigit() for line in said)


def test_brackets_of_an_address_or_a_message_are_shown_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    name, host, trouble = "[fd00::a]:8250", "[fd00::b]:8250", "see [security] and [/etc/tls]"
    source = SourceStatus(
        name=name,
        state="online",
        resolved_ts=Tso(4),
        lag_s=None,
        binlogs_waiting=0,
        silent_s=3.0,
        trouble=trouble,
    )
    part = UpstreamPart(name="pd", address=host, trouble=trouble)
    print_status(
        well(
            blocked_by=f"{name} holds it",
            close_waits_for=f"{name} reads",
            drainer=drainer(sources=[source]),
            upstream=UpstreamStatus(kind="pd", parts=[part]),
        )
    )
    text = " ".join(capsys.readouterr().out.split())
    assert f"pd at {host}" in text
    assert f"pd: {trouble}" in text
    assert f"source {name} (online)" in text
    assert f"({trouble})" in text
    assert f"waiting: {name} holds it" in text
    assert f"closing: {name} reads" in text
    assert f"trouble {name} online" in text, "the table of the Pumps that are pulled"
    show_nodes([NodeStatus(DRAINER, name, host, "paused", Tso(5), Tso(1 << 58))], as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert f"drainer {name} {host} paused" in text


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


def test_nothing_is_inconsistent_before_the_first_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_status(well(checkpoint=SavedCheckpoint(error="it is locked")))
    text = " ".join(capsys.readouterr().out.split())
    assert "the checkpoint is not saved: it is locked" in text
    assert "applied up to nothing yet saved up to nothing yet" in text
    assert "consistent" not in text
    print_status(well(drainer=drainer(applied_ts=Tso(45))))
    text = " ".join(capsys.readouterr().out.split())
    assert "applied up to 45 saved up to 40, consistent: False" in text


def test_who_is_asked_is_told_with_the_version_that_it_tells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = [UpstreamPart(name="pd", leader="pd-0", address="pd:2379"), UpstreamPart(name="tikv")]
    print_status(well(upstream=UpstreamStatus(kind="pd", parts=parts)))
    assert "upstream pd, pd pd-0 at pd:2379, tikv" in " ".join(capsys.readouterr().out.split())
    parts[1] = UpstreamPart(name="tikv", version="7.1.5")
    print_status(well(upstream=UpstreamStatus(kind="pd", parts=parts)))
    assert "at pd:2379, tikv 7.1.5" in " ".join(capsys.readouterr().out.split())
