"""`--wait` until a running binlogd vouches for a moment; SIGTERM ends a command in good order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat

import msgspec
import pytest

from binlogd.commands.export import waited
from binlogd.commands.options import load_setup
from binlogd.errors import Refused
from binlogd.host.loop import EndedByTerm, ended_by_term
from binlogd.settings.setup import Setup
from binlogd.tso import Tso
from tests.support.statuses import well

WANTED = Tso(40)


@contextmanager
def vouching(moments: Iterator[int], asked: list[int]) -> Iterator[Setup]:
    """A service whose resolved timestamp goes on with each question."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(next(moments))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(well(max_commit_ts=Tso(asked[-1]))))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Status)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        setup = load_setup(None, addr=f"127.0.0.1:{server.server_port}")
        yield Setup(msgspec.structs.replace(setup.config, binlog_socket=""))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_moment_is_waited_for_until_it_is_decided() -> None:
    asked: list[int] = []
    with vouching(iter(range(10, 100, 10)), asked) as setup:
        assert asyncio.run(waited(setup, WANTED, 60)) == WANTED
    assert asked == [10, 20, 30, 40]


def test_a_moment_that_does_not_come_is_told_with_how_far_it_is() -> None:
    with (
        vouching(repeat(39), []) as setup,
        pytest.raises(Refused, match=r"after 0\.3 s everything is decided up to 39 only"),
    ):
        asyncio.run(waited(setup, WANTED, 0.3))


def test_sigterm_cancels_a_command_that_then_tidies_up() -> None:
    tidied: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            tidied.append("all")

    with pytest.raises(EndedByTerm, match="nothing was published"):
        asyncio.run(ended_by_term(work()))
    assert tidied == ["all"]
