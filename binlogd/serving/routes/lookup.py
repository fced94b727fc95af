"""`/transactions`: what somebody looks for in the log, as a readable change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.serving.answers import LookUp, Trouble
from binlogd.serving.finder import LIMIT_MAX, Question
from binlogd.settings.moment import first_ts, last_ts
from binlogd.tso import MAX_TS

TEXT_CHARS_MAX = 4_096
_LIMIT = 20
_PARAMETERS = {"table", "row", "from", "to", "limit"}

_LOOK_S = 0.1
"""Between two looks whether somebody waits for the answer."""

Find = Callable[[Question], Awaitable[LookUp]]


def add_lookup(router: web.UrlDispatcher, find: Find) -> None:
    """Adds the routes."""

    async def by_timestamp(request: web.Request) -> web.Response:
        return await _answer(request, _of_timestamp)

    async def by_query(request: web.Request) -> web.Response:
        return await _answer(request, _of_query)

    async def _answer(
        request: web.Request, question: Callable[[web.Request], Question]
    ) -> web.Response:
        try:
            return _json(await _while_awaited(request, find(question(request))), 200)
        except ConfigError as error:
            return _json(Trouble(str(error)), 400)
        except Refused as error:
            return _json(Trouble(str(error)), 429)
        except BinlogdError as error:
            return _json(Trouble(str(error)), 503)

    router.add_get("/transactions/{ts}", by_timestamp)
    router.add_get("/transactions", by_query)


async def _while_awaited(request: web.Request, looking: Awaitable[LookUp]) -> LookUp:
    """Ends a look-up that nobody waits for any more: its place is the next one's."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if request.transport is None or request.transport.is_closing():
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(_LOOK_S, look)

    try:
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(_LOOK_S, look)
            return await looking
    except TimeoutError:
        raise Refused("who asked has gone") from None
    finally:
        timer.cancel()


def _of_timestamp(request: web.Request) -> Question:
    text = request.match_info["ts"]
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_TS))
    if not is_number or not 0 < int(text) <= MAX_TS:
        raise ConfigError("a timestamp is a whole number like 412518831548007863")
    return Question(ts=int(text))


def _of_query(request: web.Request) -> Question:
    query = request.query
    unknown = sorted(set(query) - _PARAMETERS)
    if unknown:
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(_PARAMETERS))}"
        )
    if len(request.query_string) > TEXT_CHARS_MAX:
        raise ConfigError(f"the question is longer than {TEXT_CHARS_MAX} characters")
    start = first_ts(query["from"], "from") if query.get("from") else 0
    stop = last_ts(query["to"], "to") if query.get("to") else MAX_TS
    if start > stop:
        raise ConfigError("from lies behind to")
    row = dict(_condition(each) for each in query.getall("row", []))
    if row and not query.get("table"):
        raise ConfigError("row needs a table: table=shop.orders&row=id=42")
    return Question(
        table=query.get("table", ""), row=row, start=start, stop=stop, limit=_limit(query)
    )


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_LIMIT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= LIMIT_MAX:
        raise ConfigError(f"limit: expected a number from 1 to {LIMIT_MAX}")
    return limit


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column.strip():
        raise ConfigError(f"row {text!r}: expected COLUMN=VALUE, as in id=42")
    return column.strip(), value.strip()


def _json(document: Any, status: int) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(document) + b"\n",
        headers={"Content-Type": "application/json; charset=UTF-8", "Cache-Control": "no-store"},
    )
