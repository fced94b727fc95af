"""A connection that comes in the moment in which the server closes is ended like the others."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from pathlib import Path

import pytest
import uvloop

from binlogd.host.tls import ServerTls
from binlogd.serving.server import Server
from tests.support.certificates import Authority

TURNS = 8
"""Of the loop, within which a connection is accepted, known and looked at."""


async def closed_after(turns: int, tls: ServerTls | None) -> None:
    server = Server([], tls=tls)
    address = await server.start("127.0.0.1", 0)
    with socket.create_connection(address) as connected:
        connected.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        try:
            async with asyncio.timeout(60):
                heard = await asyncio.get_running_loop().sock_recv(connected, 1)
        except ConnectionResetError:
            heard = b""
        assert heard == b"", turns
        assert not server.places


@pytest.mark.parametrize("is_secured", [False, True])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_connects_while_the_server_closes_is_refused(
    loop: type[asyncio.AbstractEventLoop], *, is_secured: bool, tmp_path: Path
) -> None:
    tls = None
    if is_secured:
        authority = Authority(tmp_path)
        tls = ServerTls(authority.files(authority.issue("server")))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
        before = len(told)
        for turns in range(TURNS):
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(closed_after(turns, tls))
        gc.collect()
    assert [str(each.message) for each in told[before:]] == []
