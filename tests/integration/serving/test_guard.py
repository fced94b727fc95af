"""Who may act over HTTP, on a real port; what every answer tells a browser; what is too large."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import structlog

from binlogd.host.tls import ClientTls, ServerTls
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.routes.application import application
from binlogd.serving.routes.events import Hub, event
from binlogd.serving.routes.guard import Guard
from binlogd.serving.server import Server
from binlogd.settings.operators import Operators, operators
from tests.certificates import Authority
from tests.integration.serving.test_service import Operations
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


NOBODY = Operators()


@asynccontextmanager
async def guarded(
    token: str = "",
    socket_file: Path | None = None,
    who: Operators = NOBODY,
    tls: ServerTls | None = None,
) -> AsyncIterator[int]:
    service = PumpService(MemoryPump(), Cluster(7))
    guard = Guard(lambda: token, lambda: who)
    routes = application(Operations(), guard, Hub(lambda: event("past", b"[]")))
    server = Server([service], routes, tls=tls)
    _, port = await server.start("0.0.0.0", 0, socket_file)
    try:
        yield port
    finally:
        await service.close()
        await server.close()


def elsewhere(source: str) -> aiohttp.BaseConnector:
    """Connects from `source`: asked at a loopback address, that is another machine's."""
    return aiohttp.TCPConnector(local_addr=(source, 0))


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
            status, said = await ask(f"http://127.0.0.1:{port}{route}", method, elsewhere(here))
            assert status == 403, route
            assert "set security.admin-token" in said
            is_state = route.startswith("/state/")
            assert (f'security.operators-from = [\\"{here}\\"]' in said) is is_state, said
        for route in LOOKS:
            assert (await ask(f"http://127.0.0.1:{port}{route}", "GET", elsewhere(here)))[0] == 200


async def test_a_machine_that_asks_its_own_address_is_itself() -> None:
    here = address_of_this_machine()
    async with guarded() as port:
        for method, route in ACTIONS:
            assert (await ask(f"http://{here}:{port}{route}", method))[0] == 200, route
        url = f"http://{here}:{port}/reload"
        for headers in ({"Origin": f"http://{here}:{port}"}, {"Via": "1.1 proxy"}):
            assert (await ask(url, "POST", headers=headers))[0] == 403, headers


@pytest.mark.parametrize("token", ["", TOKEN])
async def test_an_address_of_an_operator_changes_states_and_nothing_else(token: str) -> None:
    here = address_of_this_machine()
    async with guarded(token, who=operators([here], ())) as port:
        for method, route in ACTIONS:
            status, _ = await ask(f"http://127.0.0.1:{port}{route}", method, elsewhere(here))
            refused = 401 if token else 403
            assert status == (200 if route.startswith("/state/") else refused), route
        url = f"http://127.0.0.1:{port}/state/pump0/close"
        assert (await ask(url, "PUT", elsewhere(here)))[0] == 200


@pytest.mark.parametrize("who", [["198.51.100.0/24"], ["fd00::/8"]])
async def test_another_address_than_that_of_an_operator_does_not(who: list[str]) -> None:
    here = address_of_this_machine()
    async with guarded(who=operators(who, ())) as port:
        url = f"http://127.0.0.1:{port}/state/pump0/pause"
        assert (await ask(url, "PUT", elsewhere(here)))[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Host": "evil.example"},  # a name that was bound anew
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "same-origin"},
        {"X-Forwarded-For": "198.51.100.7"},
        {"X-Real-IP": "198.51.100.7"},
        {"Via": "1.1 squid"},
    ],
)
async def test_a_browser_or_a_proxy_at_the_address_of_an_operator_does_not(
    headers: dict[str, str],
) -> None:
    here = address_of_this_machine()
    async with guarded(who=operators([here], ())) as port:
        url = f"http://127.0.0.1:{port}/state/pump0/pause"
        assert (await ask(url, "PUT", elsewhere(here), headers))[0] == 403


async def test_the_certificate_of_an_operator_acts_and_that_of_a_tidb_does_not(
    tmp_path: Path,
) -> None:
    here, authority = address_of_this_machine(), Authority(tmp_path)
    files = replace(authority.files(authority.issue("node")), asks_for_certificate=True)
    ops, tidb = (authority.files(authority.issue(name, name)) for name in ("ops", "tidb"))
    who = operators((), ["ops"])
    async with guarded(TOKEN, who=who, tls=ServerTls(files)) as port:
        for shown, status in ((ops, 200), (tidb, 401), (authority.files(), 401)):
            for method, route in ACTIONS:
                tls = ClientTls(shown).fresh()
                connector = aiohttp.TCPConnector(ssl=tls, local_addr=(here, 0))
                url = f"https://127.0.0.1:{port}{route}"
                assert (await ask(url, method, connector))[0] == status, (shown, route)
        connector = aiohttp.TCPConnector(ssl=ClientTls(ops).fresh())
        by_proxy = {"X-Forwarded-For": "198.51.100.7"}
        url = f"https://127.0.0.1:{port}/reload"
        assert (await ask(url, "POST", connector, by_proxy))[0] == 401


async def test_the_log_names_the_setting_that_would_have_let_binlogctl_through() -> None:
    here = address_of_this_machine()
    async with guarded() as port:
        with structlog.testing.capture_logs() as events:
            await ask(f"http://127.0.0.1:{port}/state/pump0/pause", "PUT", elsewhere(here))
    refused = [each for each in events if each["event"] == "action_refused"]
    assert refused[0]["client"] == here
    assert refused[0]["setting"].startswith(f'security.operators-from = ["{here}"]')


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
