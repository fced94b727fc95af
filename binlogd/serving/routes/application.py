"""The HTTP routes of both halves on one address, and the originals' words for what they share.

Where Pump and Drainer have a route of the same name, one document has the keys of both (/status),
or the node id in the path says which half is meant (/state). docs/HTTP.md has every shape.

Source: tidb-binlog pump/server.go, drainer/server.go, pkg/util/http.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from binlogd.errors import BinlogdError
from binlogd.placement.stand_in import PdFace
from binlogd.serving.answers import LookUp, Reply
from binlogd.serving.finder import Question
from binlogd.serving.routes.events import Hub
from binlogd.serving.routes.exports import add_exports
from binlogd.serving.routes.guard import Guard, add_headers, guarding
from binlogd.serving.routes.lookup import add_lookup
from binlogd.serving.routes.openapi import add_description
from binlogd.serving.routes.page import add_page
from binlogd.serving.routes.pd_api import add_pd
from binlogd.serving.routes.profiling import add_profiling
from binlogd.snapshot.export_queue import ExportQueue
from binlogd.status import NodeEntry, Status, document
from binlogd.upstream.store import SkipEntry

_TS_MAX = (1 << 63) - 1
_BODY_BYTES_MAX = 64 << 10


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Operations(Protocol):
    """What an operator can see and do over HTTP."""

    async def status(self) -> Status:
        """What is said at /status."""
        ...

    def metrics(self) -> bytes:
        """What is said at /metrics, as Prometheus text."""
        ...

    def unready(self) -> str:
        """Why no prewrite is taken now; empty if all is well."""
        ...

    async def nodes(self, kind: str) -> Sequence[NodeEntry]:
        """The registered "pumps" or "drainers". Raises UpstreamUnavailable."""
        ...

    async def change_state(self, node_id: str, action: str) -> Reply:
        """Begins to pause, close or resume; returns as soon as that is decided."""
        ...

    def applied_ts(self) -> Reply:
        """What is said at /commit_ts."""
        ...

    async def binlog_text(self, ts: int) -> str:
        """The binlog of a timestamp in words. Raises Corrupt or Unavailable."""
        ...

    def reload(self) -> Reply:
        """Reads the configuration again, and takes from it what can change while it runs."""
        ...

    async def find(self, question: Question) -> LookUp:
        """Transactions of the log. Raises Refused, Unavailable."""
        ...

    async def ddl_history(self) -> Sequence[bytes]:
        """The JSON of every DDL job that is known. Raises UpstreamUnavailable."""
        ...

    def trigger_gc(self) -> bool:
        """Begins to collect garbage; False if that is going on already."""
        ...

    async def skip(self, commit_ts: int, reason: str) -> Reply:
        """Passes over a transaction from now on. Raises UpstreamUnavailable."""
        ...

    def route_failed(self, route: str, error: Exception) -> BinlogdError:
        """Takes note of a fault that nobody foresaw; what to say of it."""
        ...

    def decided_skips(self) -> Sequence[SkipEntry]:
        """What was skipped so far."""
        ...


def application(
    operations: Operations,
    guard: Guard,
    hub: Hub,
    queue: ExportQueue | None = None,
    pd: Callable[[], PdFace] | None = None,
) -> web.Application:
    """Everything that is answered over HTTP/1.1; `hub` is who listens to events, `queue` who
    exports and `pd` what is said in the place of a PD, where somebody stands in for one."""
    routes = web.Application(
        middlewares=[_never_in_silence(operations), _in_the_originals_words, guarding(guard)],
        client_max_size=_BODY_BYTES_MAX,
    )
    routes.on_response_prepare.append(add_headers)
    _add_health(routes.router, operations)
    _add_looking(routes.router, operations)
    _add_acting(routes.router, operations)
    add_profiling(routes.router)
    add_lookup(routes.router, operations.find)
    add_exports(routes.router, queue)
    add_pd(routes.router, pd)
    add_page(routes.router)
    add_description(routes.router)
    routes.router.add_get("/events", hub.events)
    return routes


def _never_in_silence(operations: Operations) -> Any:
    """What no route answers for is noted for operators, and answered: receiving goes on."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except BinlogdError as error:
            return _failed(error, 503)
        except Exception as error:  # noqa: BLE001 - whoever asks and operators hear it
            resource = request.match_info.route.resource
            name = resource.canonical if resource is not None else "unknown"
            return _failed(operations.route_failed(f"{request.method} {name}", error), 500)

    return answered


def _failed(error: BinlogdError, status: int) -> web.Response:
    answer = _reply(Reply.refused(error))
    answer.set_status(status)
    return answer


def _add_health(router: web.UrlDispatcher, operations: Operations) -> None:
    async def status(_: web.Request) -> web.Response:
        return _json(document(await operations.status()))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=operations.metrics(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = operations.unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    router.add_get("/status", status)
    router.add_get("/metrics", metrics)
    router.add_get("/livez", alive)
    router.add_get("/readyz", ready)


def _add_looking(router: web.UrlDispatcher, operations: Operations) -> None:
    async def nodes(request: web.Request) -> web.Response:
        try:
            return _json(await operations.nodes(request.path.strip("/")) or None)
        except BinlogdError as error:
            return web.Response(text=f"can't provide service: {error}\n")

    async def commit_ts(_: web.Request) -> web.Response:
        return _reply(operations.applied_ts())

    async def binlog(request: web.Request) -> web.Response:
        ts = request.match_info["ts"]
        number = _timestamp(ts)
        if number is None:
            return web.Response(text=f"invalid parameter ts: {ts}\n")
        try:
            return web.Response(text=await operations.binlog_text(number))
        except BinlogdError as error:
            return web.Response(text=f"fail read binlog by ts: {ts}: {error}\n")

    async def ddl_history(_: web.Request) -> web.Response:
        jobs = await operations.ddl_history()
        return web.Response(body=b"[" + b",".join(jobs) + b"]\n", content_type="application/json")

    router.add_get("/ddl/history", ddl_history)
    router.add_get("/pumps", nodes)
    router.add_get("/drainers", nodes)
    router.add_get("/commit_ts", commit_ts)
    router.add_get("/debug/binlog/{ts}", binlog)


def _add_acting(router: web.UrlDispatcher, operations: Operations) -> None:
    async def change_state(request: web.Request) -> web.Response:
        return _reply(
            await operations.change_state(
                request.match_info["node_id"], request.match_info["action"]
            )
        )

    async def reload(_: web.Request) -> web.Response:
        return _reply(operations.reload())

    async def trigger_gc(_: web.Request) -> web.Response:
        began = operations.trigger_gc()
        return web.Response(text="trigger gc success\n" if began else "gc is working\n")

    async def skip(request: web.Request) -> web.Response:
        ts, reason = request.match_info["ts"], request.query.get("reason", "")
        number = _timestamp(ts)
        if not number:
            return _reply(Reply.refused(f"invalid parameter ts: {ts}"))
        try:
            return _reply(await operations.skip(number, reason))
        except BinlogdError as error:
            return _reply(Reply.refused(error))

    async def skips(_: web.Request) -> web.Response:
        return _json(operations.decided_skips())

    router.add_get("/skips", skips)
    router.add_put("/skips/{ts}", skip)
    router.add_put("/state/{node_id}/{action}", change_state)
    router.add_post("/debug/gc/trigger", trigger_gc)
    router.add_post("/reload", reload)


@web.middleware
async def _in_the_originals_words(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found\n")
    except web.HTTPMethodNotAllowed as error:
        return web.Response(status=405, headers={"Allow": ", ".join(sorted(error.allowed_methods))})


def _timestamp(text: str) -> int | None:
    """A timestamp in decimal digits, of which Python would refuse thousands with an error."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_TS_MAX))):
        return None
    number = int(text)
    return number if number <= _TS_MAX else None


def _reply(reply: Reply) -> web.Response:
    return _json(reply, indent=2)


def _json(content: Any, *, indent: int = 0) -> web.Response:
    text = msgspec.json.encode(content)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    return web.Response(
        body=text + b"\n", headers={"Content-Type": "application/json; charset=UTF-8"}
    )
