"""Requests by HTTP: whom they trust, and when that is read."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from binlogd.host.http import trust_read_late
from tests.support.certificates import Authority

_ASK = """
import asyncio, sys
from binlogd.host.http import NoAnswer, http_session
from aiohttp import connector

def known():
    return connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509_ca"]

async def ask(url):
    async with http_session(10.0, None) as session:
        return (await session.ask("GET", url, bytes_max=100)).body.decode()

before = known()
try:
    print(before, asyncio.run(ask(sys.argv[1])), known())
except NoAnswer as error:
    print(before, "untrusted" if error.is_untrusted else error, known())
"""


@asynccontextmanager
async def served(authority: Authority, *, moved: bool = False) -> AsyncIterator[str]:
    """A URL by TLS; with `moved` one without, which sends on to it."""

    async def told(_: web.Request) -> web.Response:
        return web.Response(text="told")

    async def sent_on(_: web.Request) -> web.Response:
        raise web.HTTPFound(by_tls)

    pair = authority.issue("server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)
    async with _listening(told, tls) as port:
        by_tls = f"https://127.0.0.1:{port}/"
        if not moved:
            yield by_tls
            return
        async with _listening(sent_on, None) as plain:
            yield f"http://127.0.0.1:{plain}/"


@asynccontextmanager
async def _listening(
    answer: Callable[[web.Request], Awaitable[web.Response]], tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/", answer)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    try:
        yield server.port or 0
    finally:
        await server.close()


async def _asked(url: str, trusted: Authority) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _ASK, url),
        env=os.environ | {"SSL_CERT_FILE": str(trusted.file)},
        stdout=PIPE,
    )
    told, _ = await process.communicate()
    return told.decode().strip()


def test_who_makes_a_context_meanwhile_has_a_plain_one_with_its_first_socket() -> None:
    with trust_read_late():
        made = ssl.create_default_context()
    with socket.socket() as plain, made.wrap_socket(plain, server_hostname="here"):
        assert type(made) is ssl.SSLContext
    assert type(ssl.create_default_context()) is ssl.SSLContext


@pytest.mark.parametrize("moved", [False, True])
async def test_whom_this_machine_trusts_is_read_at_the_first_handshake(
    tmp_path: Path, *, moved: bool
) -> None:
    """A machine may trust a hundred: 0.1 s, which a start without such a request does without."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    async with served(ours, moved=moved) as url:
        assert await _asked(url, ours) == "0 told 1"
        assert await _asked(url, other) == "0 untrusted 1"
