"""`/exports`: exports that this service does itself, asked for, looked at and cancelled."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from binlogd.errors import ConfigError, Refused
from binlogd.serving.answers import Trouble
from binlogd.snapshot.export_queue import AskedExport, ExportJob, ExportQueue

_OFF = (
    "this service does no exports: set export.dir, or run `binlogd export` beside it; it needs the"
    " extra `spark` and a Java runtime"
)
_ID_CHARS_MAX = 15


def add_exports(router: web.UrlDispatcher, queue: ExportQueue | None) -> None:
    """Adds the routes; without a queue they say what to do."""

    async def ask(request: web.Request) -> web.Response:
        if queue is None:
            return _json(Trouble(_OFF), 503)
        try:
            asked = msgspec.json.decode(await request.read() or b"{}", type=AskedExport)
            return _json(queue.ask(asked), 202)
        except (msgspec.DecodeError, ConfigError) as error:
            return _json(Trouble(str(error)), 400)
        except Refused as error:
            return _json(Trouble(str(error)), 429)

    async def every(_: web.Request) -> web.Response:
        return _json(Trouble(_OFF), 503) if queue is None else _json(queue.jobs(), 200)

    async def one(request: web.Request) -> web.Response:
        number = _number(request)
        found = next((each for each in queue.jobs() if each.id == number), None) if queue else None
        return _found(found)

    async def cancel(request: web.Request) -> web.Response:
        return _found(queue.cancel(_number(request)) if queue is not None else None)

    router.add_post("/exports", ask)
    router.add_get("/exports", every)
    router.add_get("/exports/{id}", one)
    router.add_delete("/exports/{id}", cancel)


def _number(request: web.Request) -> int:
    text = request.match_info["id"]
    is_number = text.isascii() and text.isdigit() and len(text) <= _ID_CHARS_MAX
    return int(text) if is_number else 0


def _found(job: ExportJob | None) -> web.Response:
    return _json(Trouble("no such export"), 404) if job is None else _json(job, 200)


def _json(content: Any, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content) + b"\n",
        status=status,
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )
