"""A route that fails as nobody foresaw is answered and noted, and binlogs are taken meanwhile."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from binlogd.client.pump_client import PumpClient
from binlogd.errors import UpstreamUnavailable
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from tests.integration.serving.test_service import CLUSTER, MAY_ACT, Running, running


class Faulty:
    """Stands in for a method; raises whatever it is given."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *_: object) -> object:
        raise self._error


async def answer(at: Running, path: str) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession(headers=MAY_ACT) as session,
        session.get(f"http://{at.host}:{at.port}{path}") as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("status", "/status", "GET /status"),
        ("metrics", "/metrics", "GET /metrics"),
        ("nodes", "/pumps", "GET /pumps"),
        ("binlog_text", "/debug/binlog/7", "GET /debug/binlog/{ts}"),
    ],
)
async def test_a_route_that_fails_is_answered_and_noted_and_the_pump_acknowledges(
    method: str, path: str, route: str
) -> None:
    async with running() as at:
        setattr(at.operations, method, Faulty(ValueError("nobody thought of this")))
        status, said = await answer(at, path)
        async with PumpClient(at.host, at.port, cluster_id=CLUSTER) as client:
            await client.write(prewrite_binlog(Tso(1), prewrite_key=b"k"))
    assert (status, said["code"]) == (500, 3)
    assert "not foreseen" in str(said["message"])
    assert at.operations.failed == [route]


async def test_an_upstream_that_does_not_answer_is_no_fault_of_ours() -> None:
    async with running() as at:
        at.operations.ddl_history = Faulty(UpstreamUnavailable("gone"))  # type: ignore[method-assign, assignment]  # raises
        status, said = await answer(at, "/ddl/history")
    assert (status, "gone" in str(said["message"])) == (503, True)
    assert at.operations.failed == []


async def test_a_body_that_cannot_be_unpacked_is_no_fault_of_ours() -> None:
    async def reading() -> bytes:
        raise web.RequestPayloadError("400, message:\n  Can not decode content-encoding: gzip")

    async with running() as at:
        at.operations.ddl_history = reading  # type: ignore[method-assign, assignment]  # raises
        status, said = await answer(at, "/ddl/history")
    assert (status, at.operations.failed) == (400, [])
    assert said == {
        "message": "the body cannot be read: 400, message: Can not decode content-encoding: gzip"
    }
