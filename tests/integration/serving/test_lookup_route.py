"""`/transactions`: what is asked of the log, and what is refused with a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from binlogd.errors import Refused, Unavailable
from binlogd.host.child import Died
from binlogd.serving.answers import LookUp, Question
from binlogd.serving.routes.application import add_lookup
from binlogd.serving.server import Server
from binlogd.settings.quantities import first_ts, last_ts
from binlogd.tso import MAX_TS
from tests.support.statuses import NOTHING_FOUND


class Asked:
    """A log that remembers what it was asked, and may have a reason not to answer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.questions: list[Question] = []
        self._error = error

    async def find(self, question: Question) -> LookUp:
        self.questions.append(question)
        if self._error is not None:
            raise self._error
        return NOTHING_FOUND


@asynccontextmanager
async def served(asked: Asked) -> AsyncIterator[aiohttp.ClientSession]:
    routes = web.Application()
    add_lookup(routes.router, asked.find)
    server = Server([], routes)
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            yield session
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/transactions/412518831548007863", Question(ts=412518831548007863)),
        ("/transactions", Question()),
        ("/transactions?limit=3", Question(limit=3)),
        (
            "/transactions?table=a.b&row=id%3D1&row=n%20%3D%20x%3Dy",
            Question(table="a.b", row={"id": "1", "n": "x=y"}),
        ),
        (
            "/transactions?from=2024-05-01T00:00:00Z&to=2024-05-02",
            Question(start=first_ts("2024-05-01", ""), stop=last_ts("2024-05-02", "")),
        ),
    ],
)
async def test_a_question_is_understood(path: str, question: Question) -> None:
    asked = Asked()
    async with served(asked) as session, session.get(path) as answer:
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
    assert asked.questions == [question]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/transactions/x", "a timestamp is a whole number"),
        ("/transactions/0", "a timestamp is a whole number"),
        (f"/transactions/{MAX_TS + 1}", "a timestamp is a whole number"),
        (f"/transactions/{'9' * 5000}", "a timestamp is a whole number"),
        ("/transactions?tabel=a", "unknown: tabel; there are from, limit, row, table, to"),
        ("/transactions?limit=101", "a number from 1 to 100"),
        ("/transactions?limit=x", "a number from 1 to 100"),
        ("/transactions?row=id=1", "row needs a table"),
        ("/transactions?table=a&row=id", "expected COLUMN=VALUE"),
        ("/transactions?table=a&row=id=1&row=v=2&row=ID=3", "row: ID stands there twice"),
        ("/transactions?table=a&table=b", "table: stands there twice"),
        ("/transactions?from=yesterday", "neither a TSO"),
        ("/transactions?from=2024-05-02&to=2024-05-01", "from lies behind to"),
        (f"/transactions?table={'a' * 5000}", "longer than 4096 characters"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_never_asked(path: str, words: str) -> None:
    asked = Asked()
    async with served(asked) as session, session.get(path) as answer:
        assert answer.status == 400
        assert words in (await answer.json())["message"]
    assert asked.questions == []


@pytest.mark.parametrize(
    ("error", "status"), [(Refused("another is going on"), 429), (Unavailable("no room"), 503)]
)
async def test_a_log_that_cannot_answer_says_why(error: Exception, status: int) -> None:
    async with served(Asked(error)) as session, session.get("/transactions") as answer:
        assert answer.status == status
        assert (await answer.json()) == {"message": str(error)}


async def test_a_look_up_ends_with_who_asked() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Endless(Asked):
        async def find(self, question: Question) -> LookUp:
            begun.set()
            try:
                return await asyncio.Future()
            finally:
                ended.set()

    async with served(Endless()) as session:
        asking = asyncio.create_task(session.get("/transactions"))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(120):
            await ended.wait()


async def test_a_look_up_that_dies_is_a_fault_of_ours_and_its_traceback_is_not_the_answer() -> None:
    asked = Asked(Died(1, "Traceback (most recent call last):\nValueError: no"))
    async with served(asked) as session, session.get("/transactions") as answer:
        assert answer.status == 500
        assert "Traceback" not in await answer.text()
