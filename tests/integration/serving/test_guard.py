"""Who may act over HTTP, on a real port; what every answer tells a browser; what is too large."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

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
from tests.integration.serving.test_service import Operations
from tests.support.certificates import Authority
from tests.support.memory_pump import Cluster, MemoryPump

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
    names: Set[str] = frozenset(),
) -> AsyncIterator[int]:
    service = PumpService(MemoryPump(), Cluster(7))
    guard = Guard(lambda: token, lambda: who, lambda: names)
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


@pytest.mark.parametrize("token", ["", TOKEN])
async def test_no_address_lets_anybody_act(token: str, tmp_path: Path) -> None:
    """Not loopback, not the node's own, not the unix socket: browsers, proxies and the networks of
    containers are there as well."""
    here, path = address_of_this_machine(), tmp_path / "p.sock"
    async with guarded(token, path) as port:
        for method, route in ACTIONS:
            for host, source in (
                (f"127.0.0.1:{port}", here),
                (f"127.0.0.1:{port}", ""),
                (here, ""),
            ):
                url = f"http://{host if ':' in host else f'{host}:{port}'}{route}"
                connector = elsewhere(source) if source else None
                status, said = await ask(url, method, connector)
                assert status == 401, (route, host)
                assert "the file admin-token of its data-dir" in said
            unix = aiohttp.UnixConnector(str(path))
            assert (await ask(f"http://p{route}", method, unix))[0] == 401, route
        for route in LOOKS:
            assert (await ask(f"http://127.0.0.1:{port}{route}", "GET", elsewhere(here)))[0] == 200


REBOUND = ("evil.test", "evil.test:8250", "127.0.0.1.evil.test", "localhost.evil.test", "[::1].x.y")


@pytest.mark.parametrize("host", REBOUND)
async def test_a_name_that_was_bound_anew_reads_nothing(host: str, tmp_path: Path) -> None:
    """A GET of one site carries no Origin, and to plain HTTP no Sec-Fetch-Site."""
    async with guarded(TOKEN, tmp_path / "p.sock") as port:
        for route in (*LOOKS, "/", "/events", "/ddl/history", "/transactions"):
            status, said = await ask(f"http://127.0.0.1:{port}{route}", headers={"Host": host})
            if route in ("/livez", "/readyz"):
                assert status == 200, "probes call a node what they like"
            else:
                assert status == 403, route
                assert "security.host-names" in said
        right = {"Authorization": f"Bearer {TOKEN}", "Host": host}
        assert (await ask(f"http://127.0.0.1:{port}/reload", "POST", headers=right))[0] == 403


async def test_a_request_without_a_name_reads_nothing() -> None:
    async with guarded(TOKEN) as port:
        for head in (
            "GET /status HTTP/1.0\r\n",
            "GET /status HTTP/1.1\r\nHost: a\r\nHost: b.c\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}\r\n".encode())
            first = await reader.readline()
            assert first.split()[1] in (b"400", b"403"), first
            writer.close()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]:8250", "10.1.2.3:8250", "localhost:8250", "binlogd", "db7.corp.test"],
)
async def test_a_node_is_called_by_its_names(host: str) -> None:
    names = frozenset({"db7.corp.test"})
    async with guarded(TOKEN, names=names) as port:
        url = f"http://127.0.0.1:{port}/status"
        assert (await ask(url, headers={"Host": host}))[0] == 200
        assert (await ask(url, headers={"Host": f"{host.split(':')[0]}.evil.test"}))[0] == 403


@pytest.mark.parametrize("token", ["", TOKEN])
async def test_an_address_of_an_operator_changes_states_and_nothing_else(token: str) -> None:
    here = address_of_this_machine()
    async with guarded(token, who=operators([here], ())) as port:
        for method, route in ACTIONS:
            status, _ = await ask(f"http://127.0.0.1:{port}{route}", method, elsewhere(here))
            assert status == (200 if route.startswith("/state/") else 401), route
        url = f"http://127.0.0.1:{port}/state/pump0/close"
        assert (await ask(url, "PUT", elsewhere(here)))[0] == 200


@pytest.mark.parametrize("who", [["198.51.100.0/24"], ["fd00::/8"]])
async def test_another_address_than_that_of_an_operator_does_not(who: list[str]) -> None:
    here = address_of_this_machine()
    async with guarded(who=operators(who, ())) as port:
        url = f"http://127.0.0.1:{port}/state/pump0/pause"
        assert (await ask(url, "PUT", elsewhere(here)))[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Host": "evil.example"},  # a name that was bound anew
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "same-origin"},
        {"X-Forwarded-For": "198.51.100.7"},
        {"X-Forwarded-Proto": "http"},
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
        assert (await ask(url, "PUT", elsewhere(here), headers))[0] in (401, 403)


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
        {"Origin": "http://[nobody"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Host": "evil.example"},  # a name that was bound anew
    ],
)
async def test_a_page_of_another_site_does_not_act_even_with_the_token(
    headers: dict[str, str],
) -> None:
    async with guarded(TOKEN) as port:
        url = f"http://127.0.0.1:{port}/debug/gc/trigger"
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await ask(url, "POST", headers=headers | right))[0] == 403


async def test_our_own_page_acts_with_the_token() -> None:
    here = address_of_this_machine()
    async with guarded(TOKEN) as port:
        for name in ("localhost", "127.0.0.1", here):
            own = {"Origin": f"http://{name}:{port}", "Host": f"{name}:{port}"}
            right = {**own, "Sec-Fetch-Site": "same-origin", "Authorization": f"Bearer {TOKEN}"}
            url = f"http://127.0.0.1:{port}/reload"
            assert (await ask(url, "POST", headers=right))[0] == 200
            assert (await ask(url, "POST", headers=own))[0] == 401


@pytest.mark.parametrize("has_setting", [False, True])
async def test_a_proxy_that_hides_itself_is_nobody(*, has_setting: bool) -> None:
    """nginx's `proxy_pass` adds no header and speaks HTTP/1.0; here it is on this machine."""
    async with guarded(TOKEN, who=operators(["127.0.0.1"] if has_setting else [], ())) as port:
        for route in ("PUT /state/pump0/close", "PUT /skips/7", "GET /transactions"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{route} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b" 401 " in await reader.readline(), route
            writer.close()


async def test_the_original_s_binlogctl_is_given_what_go_prints_as_an_error() -> None:
    """It prints "success" whatever the status; Go's client refuses where a redirection leads."""
    go = {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}
    async with guarded(TOKEN) as port, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/state/pump0/pause"
        async with session.put(url, headers=go, allow_redirects=False) as answer:
            assert answer.status == 307
            place = unquote(answer.headers["Location"])
            assert place.startswith('refused:set-security.operators-from = ["127.0.0.1"]'), place
    async with guarded(TOKEN, who=operators(["127.0.0.1"], ())) as port:
        assert (await ask(f"http://127.0.0.1:{port}/state/pump0/pause", "PUT", headers=go))[
            0
        ] == 200


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
