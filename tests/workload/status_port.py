"""The DDL history as a TiDB gives it away: over HTTP, or as a file that is replaced whole."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


def write_history(path: Path, history: bytes) -> None:
    """Puts the JSON in place of what was there; a reader sees the one or the other, never half."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(history)
    os.replace(beside, path)


class StatusPort:
    """Serves `/ddl/history`: all jobs ascending; with `limit` the last ones, descending.

    Source: pingcap/tidb docs/tidb_http_api.md, server/http_handler.go (6.5).
    """

    def __init__(self, history: Callable[[], bytes]) -> None:
        self._history = history
        self.requests = 0

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        """Listens on a free port for as long as the context lasts; gives the URL of the route."""
        application = web.Application()
        application.router.add_get("/ddl/history", self._answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, 0)
            await site.start()
            port = runner.addresses[0][1]
            yield f"http://{host}:{port}/ddl/history"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        jobs = json.loads(self._history())
        limit, start = request.query.get("limit"), request.query.get("start_job_id")
        if start is not None and limit is None:
            return web.Response(status=400, text="start_job_id needs limit")
        if limit is not None:
            if start is not None:
                jobs = [job for job in jobs if job["id"] <= int(start)]
            jobs = jobs[::-1][: int(limit)]
        return web.json_response(jobs)
