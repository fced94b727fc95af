"""What every command does towards people: no log unless asked for, and a word after Ctrl-C."""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType

import pytest
import structlog
import typer
from typer.testing import CliRunner

from binlogd.cli import COMMANDS, command_line, main, submitted
from binlogd.commands.manner import KEEP_A_LOG, LogLevelOption, with_manners


def test_what_spark_submit_decides_is_refused_by_the_pipeline_that_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        submitted("pipeline", ["--source=x", "--into=delta:x", "--checkpoint=x", "--cores=4"])
    assert ended.value.code == 2
    assert "--cores: not under spark-submit" in capsys.readouterr().err


def worked() -> None:
    log = structlog.get_logger("work")
    log.info("segment_linked", fid=3)
    log.warning("ddl_changed", commit_ts=7, left_out="TTL")
    sys.stdout.write("done\n")


def leveled(log_level: LogLevelOption = None) -> None:
    sys.stdout.write(f"{log_level}\n")


def stopped() -> None:
    raise KeyboardInterrupt


class InterruptedImport(ModuleType):
    """Somebody presses Ctrl-C while it is looked at."""

    def __getattr__(self, name: str) -> object:
        if name == "txn":
            raise KeyboardInterrupt
        raise AttributeError(name)


def said(function: object, name: str, *words: str) -> tuple[int, str, str]:
    cli = typer.Typer()
    assert callable(function)
    cli.command()(with_manners(name, function))
    done = CliRunner().invoke(cli, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_command_says_its_answer_and_what_is_doubtful_and_logs_when_asked() -> None:
    warned = "warning: ddl_changed: commit_ts 7, left_out TTL\n"
    assert said(worked, "restore") == (0, "done\n", warned)
    code, out, log = said(worked, "restore", "--log-level", "info")
    assert (code, out) == (0, "done\n")
    assert [line[:10] for line in log.splitlines()] == ['{"fid": 3,', '{"commit_t']


@pytest.mark.parametrize("name", sorted(KEEP_A_LOG))
def test_a_command_that_keeps_a_log_is_told_the_level_that_was_named(name: str) -> None:
    assert said(leveled, name, "--log-level", "debug") == (0, "debug\n", "")
    assert said(leveled, name) == (0, "None\n", "")


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve"}))
def test_ctrl_c_says_in_a_sentence_what_is_left(name: str) -> None:
    code, out, told = said(stopped, name)
    assert (code, out) == (130, "")
    assert told.startswith("cancelled: ")
    assert len(told.splitlines()) == 1


def test_ctrl_c_before_a_command_begins_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "binlogd.commands.txn", InterruptedImport("txn"))
    monkeypatch.setattr(sys, "argv", ["binlogd", "txn", "7"])
    umask = os.umask(0)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        os.umask(umask)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "binlogd: cancelled: nothing was begun\n"


def test_every_command_shows_how_it_is_called() -> None:
    for name in COMMANDS:
        shown = CliRunner().invoke(command_line([name]), [name, "--help"], env={"COLUMNS": "120"})
        called = rf"^ +(?:xdg-open ...)?binlogd {name}\b"
        assert re.search(called, shown.output, re.MULTILINE), name


def test_every_command_has_a_short_help_and_a_level_for_its_log() -> None:
    for name in COMMANDS:
        shown = CliRunner().invoke(command_line([name]), [name, "-h"], env={"COLUMNS": "120"})
        assert shown.exit_code == 0, shown.output
        assert "--log-level" in shown.output, name
