"""`/exports`: exports that this service does itself, asked for, looked at and cancelled."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from binlogd.errors import ConfigError, Refused
from binlogd.serving.answers import Trouble
from binlogd.snapshot.desk import Desk, Ticket, Wish

_OFF = (
    "this service does no exports: set export.dir, or run `binlogd export` beside it; it needs the"
    " extra `spark` and a Java runtime"
)
_ID_CHARS_MAX = 15


def add_exports(router: web.UrlDispatcher, desk: Desk | None) -> None:
    """Adds the routes; without a desk they say what to do."""

    async def ask(request: web.Request) -> web.Response:
        if desk is None:
            return _json(Trouble(_OFF), 503)
        try:
            wish = msgspec.json.decode(await request.read() or b"{}", type=Wish)
            return _json(desk.ask(wish), 202)
        except (msgspec.DecodeError, ConfigError) as error:
            return _json(Trouble(str(error)), 400)
        except Refused as error:
            return _json(Trouble(str(error)), 429)

    async def every(_: web.Request) -> web.Response:
        return _json(Trouble(_OFF), 503) if desk is None else _json(desk.tickets(), 200)

    async def one(request: web.Request) -> web.Response:
        number = _number(request)
        found = next((each for each in desk.tickets() if each.id == number), None) if desk else None
        return _found(found)

    async def cancel(request: web.Request) -> web.Response:
        return _found(desk.cancel(_number(request)) if desk is not None else None)

    router.add_post("/exports", ask)
    router.add_get("/exports", every)
    router.add_get("/exports/{id}", one)
    router.add_delete("/exports/{id}", cancel)


def _number(request: web.Request) -> int:
    text = request.match_info["id"]
    is_number = text.isascii() and text.isdigit() and len(text) <= _ID_CHARS_MAX
    return int(text) if is_number else 0


def _found(ticket: Ticket | None) -> web.Response:
    return _json(Trouble("no such export"), 404) if ticket is None else _json(ticket, 200)


def _json(content: Any, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content) + b"\n",
        status=status,
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )
