"""Commands that ask a node and get an answer that is none of its: somebody else listens there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from binlogd.commands import running
from binlogd.commands.running import document_at, get_status, page_address, put
from binlogd.commands.status import status
from binlogd.errors import NotRunning, Unavailable
from binlogd.settings.config import Config
from binlogd.settings.setup import Setup
from binlogd.upstream.store import SkipEntry

ASKING: list[Callable[[Setup], Any]] = [
    get_status,
    lambda setup: put(setup, "/state/n/pause"),
    lambda setup: document_at(setup, "/skips", list[SkipEntry]),
    lambda setup: document_at(setup, "/status", dict[str, Any]),
]


@pytest.mark.parametrize("body", [b"", b"<html>", b"1", b'"x"', b"null", b"[1]", b"[[]]", b"\xff"])
@pytest.mark.parametrize("ask", ASKING)
def test_it_is_said_that_no_binlogd_answers(
    ask: Callable[[Setup], Any], body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "asked", lambda *_: (200, body))
    with pytest.raises(NotRunning, match="an answer 200 that is none of binlogd's"):
        ask(Setup(Config()))


def test_a_refusal_is_told_and_is_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not answered acts on the data directory; who is refused does not."""
    body = b'{"message": "not by this name", "code": 3}'
    monkeypatch.setattr(running, "asked", lambda *_: (403, body))
    with pytest.raises(Unavailable, match="refuses: not by this name"):
        document_at(Setup(Config()), "/skips", list[SkipEntry])


def test_what_says_nothing_of_the_request_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "asked", lambda *_: (200, b'{"message": "It works!"}'))
    with pytest.raises(NotRunning):
        put(Setup(Config()), "/skips/1")


@pytest.mark.parametrize("body", [b"{}", b'{"drainer": null}', b'{"drainer": {"state": "x"}}'])
def test_a_status_of_any_form_is_passed_on_as_json(
    body: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "asked", lambda *_: (200, body))
    status(as_json=True, fail_if_stuck=True, config_file=None, addr="127.0.0.1:1", watch=False)
    assert capsys.readouterr().out.encode() == body + b"\n"


@pytest.mark.parametrize(
    ("addr", "page"),
    [
        *((f"{each}:8250", "http://127.0.0.1:8250") for each in ("0.0.0.0", "0", "*")),
        ("[::]:8250", "http://[::1]:8250"),
        ("db.example:1", "http://db.example:1"),
    ],
)
def test_a_node_that_listens_everywhere_is_asked_on_this_machine(addr: str, page: str) -> None:
    assert page_address(Setup(Config(addr=addr))) == page
