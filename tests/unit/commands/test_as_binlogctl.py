"""The lines that scripts written for binlogctl look for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from binlogd.cli import as_go_reads_flags, command_line
from binlogd.commands.ctl import LogLines, log_line
from binlogd.errors import ConfigError, NotRunning
from binlogd.ports import NodeStatus
from binlogd.tso import Tso, compose

HEAD = r"\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3} \+08:00\] \[(INFO|FATAL)\] \[<unknown>\] "


@pytest.fixture(autouse=True)
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines without their heads."""
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(HEAD, line) for line in lines), lines
    return [re.sub(HEAD, "", line) for line in lines]


def test_a_node_is_written_as_go_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    heard = compose(1_556_443_797_999, 7)
    node = NodeStatus("pumps", "pump0", "10.0.0.1:8250", "online", Tso(408012403141509121), heard)
    LogLines().listed([node])
    assert said(capsys) == [
        '["query node"] [type=pump] [node="{NodeID: pump0, Addr: 10.0.0.1:8250, State: online,'
        ' MaxCommitTS: 408012403141509121, UpdateTime: 2019-04-28 17:29:57 +0800 CST}"]'
    ]


def test_what_was_done_is_said_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LogLines()
    lines.marked([])
    lines.acted("pump0", "close", {"message": "apply action close success!"}, is_done=True)
    lines.acted("d", "pause", {"message": "this pump's state is paused"}, is_done=False)
    lines.saved(Tso(7), Path("binlog_position/savepoint"))
    lines.encrypted("YWJj")
    assert said(capsys) == [
        '["Apply action on node success"] [action=close] [NodeID=pump0]',
        '["fail to execute command"] [command=pause] [error="this pump\'s state is paused"]',
        '["save meta"] [meta="commitTS: 7"] [file=binlog_position/savepoint]',
        '["encrypt text"] [encrypted=YWJj]',
    ]


def test_a_failure_is_a_line_and_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, LogLines().failures("update-pump"):
        raise ConfigError('state "x" is illegal')
    assert ended.value.exit_code == 1
    assert said(capsys) == [
        '["fail to execute command"] [command=update-pump] [error="state \\"x\\" is illegal"]'
    ]


def test_a_value_can_end_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_line("INFO", "x", one="a\nb", two="[]", three="", four="ü")
    assert said(capsys) == ['[x] [one="a\\nb"] [two="[]"] [three=""] [four=ü]']


def test_flags_may_say_that_they_are_true() -> None:
    words = ["ctl", "-cmd", "pumps", "-show-offline-nodes=true", "-V=false"]
    assert as_go_reads_flags(words) == ["ctl", "-cmd", "pumps", "-show-offline-nodes"]
    assert as_go_reads_flags(["ctl", "--show-offline-nodes=false"]) == ["ctl"]
    other = ["dump", "-show-offline-nodes=true"]
    assert as_go_reads_flags(other) == other


@pytest.mark.parametrize("word", ["pumps", "update-drainer", "generate_meta", "encrypt"])
def test_an_address_is_refused_where_no_node_is_asked(word: str) -> None:
    with pytest.raises(ConfigError, match=f"^--addr: not with {word}, which asks no node"):
        told("ctl", word, "--addr", "127.0.0.1:1")


def test_the_address_that_is_given_is_asked_whatever_a_pd_says() -> None:
    with pytest.raises(NotRunning, match=r"127\.0\.0\.1:1/status"):
        told("ctl", "pause", "--node-id", "a", "--addr", "127.0.0.1:1", "--pd-urls", "127.0.0.1:2")


def test_certificates_without_a_ca_are_no_tls_and_refused() -> None:
    with pytest.raises(ConfigError, match="--ssl-ca: is missing; without it there is no TLS"):
        told("ctl", "pumps", "--pd-urls", "127.0.0.1:2", "--ssl-cert", "c.pem", "-ssl-key", "k.pem")


def told(*words: str) -> None:
    CliRunner().invoke(command_line(["ctl"]), list(words), catch_exceptions=False)
