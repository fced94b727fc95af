"""Who may act over HTTP, on a real port; what every answer tells a browser; what is too large."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from binlogd.pump.rpc.service import PumpService
from binlogd.routes.application import application
from binlogd.routes.events import Hub, event
from binlogd.routes.guard import Guard
from binlogd.server import Server
from tests.integration.test_service import Operations
from tests.memory_pump import Cluster, MemoryPump

TOKEN = "0123456789abcdef"
ACTIONS = (
    ("PUT", "/state/pump0/pause"),
    ("PUT", "/skips/7?reason=x"),
    ("POST", "/debug/gc/trigger"),
    ("POST", "/reload"),
    ("GET", "/debug/pprof/profile?seconds=0.01"),
    ("GET", "/debug/pprof/cmdline"),
    ("GET", "/debug/binlog/7"),
)
LOOKS = ("/status", "/metrics", "/livez", "/readyz", "/pumps", "/commit_ts", "/skips")


def address_of_this_machine() -> str:
    """One that is not a loopback address; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback addresses only")
        return str(probe.getsockname()[0])


@asynccontextmanager
async def guarded(token: str = "", socket_file: Path | None = None) -> AsyncIterator[int]:
    service = PumpService(MemoryPump(), Cluster(7))
    server = Server(
        [service],
        application(Operations(), Guard(lambda: token), Hub(lambda: event("past", b"[]"))),
    )
    _, port = await server.start("0.0.0.0", 0, socket_file)
    try:
        yield port
    finally:
        await service.close()
        await server.close()


async def ask(
    url: str,
    method: str = "GET",
    connector: aiohttp.BaseConnector | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def test_without_a_token_this_machine_may_act(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    async with guarded("", path) as port:
        for method, route in ACTIONS:
            status, _ = await ask(f"http://127.0.0.1:{port}{route}", method)
            assert status == 200, route
            status, _ = await ask(f"http://p{route}", method, aiohttp.UnixConnector(str(path)))
            assert status == 200, route


async def test_without_a_token_nobody_else_may() -> None:
    here = address_of_this_machine()
    async with guarded() as port:
        for method, route in ACTIONS:
            status, said = await ask(f"http://{here}:{port}{route}", method)
            assert status == 403, route
            assert "set security.admin-token" in said
        for route in LOOKS:
            assert (await ask(f"http://{here}:{port}{route}"))[0] == 200, route


async def test_with_a_token_it_is_needed_from_everywhere(tmp_path: Path) -> None:
    here, path = address_of_this_machine(), tmp_path / "p.sock"
    async with guarded(TOKEN, path) as port:
        for method, route in ACTIONS:
            for host in ("127.0.0.1", here):
                url = f"http://{host}:{port}{route}"
                assert (await ask(url, method))[0] == 401, route
                wrong = {"Authorization": f"Bearer {TOKEN}x"}
                assert (await ask(url, method, headers=wrong))[0] == 401, route
                basic = {"Authorization": f"Basic {TOKEN}"}
                assert (await ask(url, method, headers=basic))[0] == 401
                right = {"Authorization": f"Bearer {TOKEN}"}
                assert (await ask(url, method, headers=right))[0] == 200, route
            unix = aiohttp.UnixConnector(str(path))
            assert (await ask(f"http://p{route}", method, unix))[0] == 401, route
        for route in LOOKS:
            assert (await ask(f"http://{here}:{port}{route}"))[0] == 200, route


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Host": "evil.example"},  # a name that was bound anew
        {"X-Forwarded-For": "10.0.0.7"},
        {"Forwarded": "for=10.0.0.7"},
    ],
)
async def test_a_page_of_another_site_or_a_proxy_is_not_this_machine(
    headers: dict[str, str],
) -> None:
    async with guarded() as port:
        url = f"http://127.0.0.1:{port}/debug/gc/trigger"
        assert (await ask(url, "POST", headers=headers))[0] == 403


async def test_our_own_page_may_act() -> None:
    async with guarded() as port:
        origin = f"http://localhost:{port}"
        own = {"Origin": origin, "Host": f"localhost:{port}", "Sec-Fetch-Site": "same-origin"}
        assert (await ask(f"http://127.0.0.1:{port}/debug/gc/trigger", "POST", headers=own))[
            0
        ] == 200
    here = address_of_this_machine()
    async with guarded(TOKEN) as port:
        own = {"Origin": f"http://{here}:{port}", "Authorization": f"Bearer {TOKEN}"}
        assert (await ask(f"http://{here}:{port}/reload", "POST", headers=own))[0] == 200


async def test_every_answer_tells_browsers_to_take_nothing_from_elsewhere() -> None:
    async with guarded() as port, aiohttp.ClientSession() as session:
        for route in ("/status", "/nothing", "/debug/pprof/"):
            async with session.get(f"http://127.0.0.1:{port}{route}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'; ")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert answer.headers["Server"] == "binlogd"


async def test_what_is_too_large_is_refused() -> None:
    async with guarded() as port, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{port}"
        async with session.get(base + "/status", headers={"x": "y" * 9000}) as answer:
            assert answer.status == 400
        many = {f"x-{n}": "y" for n in range(100)}
        async with session.get(base + "/status", headers=many) as answer:
            assert answer.status == 400
        async with session.get(base + "/status?" + "y" * 9000) as answer:
            assert answer.status == 400
