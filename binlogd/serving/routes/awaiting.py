"""What answers at a node's port while its start waits for somebody.

Nothing is served then, and no binlog is taken: a node is in the registry before it is written to.
But whoever probes it hears that the process lives and what it waits for, instead of nothing, as
from a process that hangs. The original ends when PD does not answer its start; here it waits, so
that it says why. gRPC is refused as by a port that is closed.
"""

from __future__ import annotations

from typing import Self

import structlog
from aiohttp import web

from binlogd.errors import ConfigError
from binlogd.host.tls import ServerTls

log = structlog.get_logger(__name__)

_RETRY_AFTER_S = 1


class Awaiting:
    """A context: the port is opened when there is something to say, and given back at the end."""

    def __init__(self, host: str, port: int, tls: ServerTls | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._runner: web.AppRunner | None = None
        self._reason = ""

    async def __aenter__(self) -> Self:
        """Opens nothing yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Gives the port back, so that the node itself can listen."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def say(self, reason: str) -> None:
        """Answers with this from now on. Raises ConfigError when the address is taken."""
        self._reason = reason
        if self._runner is not None:
            return
        application = web.Application()
        application.router.add_get("/livez", self._alive)
        application.router.add_route("*", "/{path:.*}", self._starting)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = self._tls.listener() if self._tls is not None else None
        try:
            site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context)
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"addr {self._host}:{self._port}: cannot listen: {error.strerror or error}"
            ) from error
        log.info("port_answers_that_it_waits", host=self._host, port=self._port)

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _starting(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f"starting, and waiting: {self._reason}\n",
            status=503,
            headers={"Retry-After": str(_RETRY_AFTER_S)},
        )
