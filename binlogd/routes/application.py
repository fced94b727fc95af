"""The HTTP routes, and the originals' words for what they all share.

Source: tidb-binlog pump/server.go, drainer/server.go, pkg/util/http.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import web


@dataclass(frozen=True, slots=True)
class StateReply:
    """The answer to an operator's request, in the original's form; 200 is done, 3 is refused."""

    message: str
    code: int
    data: None = None


class Operations(Protocol):
    """What an operator can see and do over HTTP."""

    def status(self) -> Mapping[str, Any]:
        """What is said at /status, as JSON."""
        ...

    def metrics(self) -> bytes:
        """What is said at /metrics, as Prometheus text."""
        ...

    def unready(self) -> str:
        """Why no prewrite is taken now; empty if all is well."""
        ...

    async def change_state(self, node_id: str, action: str) -> StateReply:
        """Begins to pause or to close; returns as soon as that is decided."""
        ...


def application(operations: Operations) -> web.Application:
    """Everything that is answered over HTTP/1.1."""

    async def status(_: web.Request) -> web.Response:
        return _json(operations.status())

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

    async def change_state(request: web.Request) -> web.Response:
        reply = await operations.change_state(
            request.match_info["node_id"], request.match_info["action"]
        )
        return _json(msgspec.to_builtins(reply), indent=2)

    routes = web.Application(middlewares=[_in_the_originals_words])
    routes.router.add_get("/status", status)
    routes.router.add_get("/metrics", metrics)
    routes.router.add_get("/livez", alive)
    routes.router.add_get("/readyz", ready)
    routes.router.add_put("/state/{node_id}/{action}", change_state)
    return routes


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


def _json(content: Any, *, indent: int = 0) -> web.Response:
    text = msgspec.json.encode(content)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    return web.Response(
        body=text + b"\n", headers={"Content-Type": "application/json; charset=UTF-8"}
    )
