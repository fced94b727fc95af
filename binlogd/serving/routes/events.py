"""`/events`: how it stands, told once a second to whoever listens (server-sent events).

Invariant. Whoever comes listens. Where LISTENERS_MAX do already, the oldest of the address that has
most goes, and a browser comes back by itself. Listeners cost the process no more than LISTENERS_MAX
queues of QUEUED_MAX events, each of which is one byte string for all of them. Who does not read as
fast as it is told is let go of.
Source: WHATWG HTML, server-sent events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog
from aiohttp import web

from binlogd.host.peers import counted_as, heaviest

LISTENERS_MAX = 32
QUEUED_MAX = 8
RETRY_MS = 2_000
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would gather events otherwise
}

log = structlog.get_logger(__name__)


def event(name: str, data: bytes) -> bytes:
    """One event; `data` is a line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class Hub:
    """Everybody who listens. `opening` is what a new listener is told first."""

    def __init__(self, opening: Callable[[], bytes]) -> None:
        self._opening = opening
        self._listeners: dict[asyncio.Queue[bytes | None], web.Request] = {}
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """How many there are."""
        return len(self._listeners)

    def publish(self, message: bytes) -> None:
        """Tells everybody; lets go of those who are behind."""
        for queue, request in list(self._listeners.items()):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._let_go(queue, request, f"{queue.qsize()} events behind")

    def close(self) -> None:
        """Lets everybody go, because the process ends."""
        self._is_closed = True
        for queue in self._listeners:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def _make_room(self) -> None:
        counts = Counter(map(_address, self._listeners.values()))
        most = heaviest(counts)
        queue, request = next(  # the oldest, as they came in this order
            each for each in self._listeners.items() if _address(each[1]) == most
        )
        self._let_go(queue, request, f"another came, and {most or 'the unix socket'} has most")

    def _let_go(self, queue: asyncio.Queue[bytes | None], request: web.Request, cause: str) -> None:
        log.info("listener_dropped", peer=request.remote, cause=cause)
        del self._listeners[queue]
        if not queue.full():  # else there is something to fail on
            queue.put_nowait(None)
        if request.transport is not None:
            request.transport.abort()

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Answers until the listener or the process goes."""
        if self._is_closed:
            return web.Response(
                status=503, text="the process is ending; /status tells the same once\n"
            )
        opening = self._opening()  # should it fail, no answer has begun
        if len(self._listeners) >= LISTENERS_MAX:
            self._make_room()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED_MAX)
        self._listeners[queue] = request
        response = web.StreamResponse(headers=_HEADERS)
        try:
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % RETRY_MS + opening)
            while (message := await queue.get()) is not None:
                await response.write(message)
        except ConnectionError:
            log.debug("listener_left", peer=request.remote)
        finally:
            self._listeners.pop(queue, None)
        return response


def _address(request: web.Request) -> str:
    return counted_as(request.remote or "")
