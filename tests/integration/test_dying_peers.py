"""Calls to peers that die in the middle of them, or never answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from binlogd.client.notify import notify
from binlogd.client.pump_client import PumpClient, RemoteSource
from binlogd.errors import DrainerUnavailable, PumpUnavailable, UpstreamUnavailable
from binlogd.tso import NO_TS
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.wire.generated.etcdserverpb import RangeRequest

_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_GOAWAY = b"\0\0\x08\7\0\0\0\0\0" + bytes(8)
_HEADERS, _PREFACE_BYTES = 1, 24


@asynccontextmanager
async def member(*, dies: bool) -> AsyncIterator[tuple[str, int]]:
    """Takes a call, and never answers it; or says that it leaves, and goes with it."""

    ended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_SETTINGS)
        await reader.readexactly(_PREFACE_BYTES)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:  # until the peer leaves
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                if dies and head[3] == _HEADERS:
                    writer.write(_GOAWAY)
                    await writer.drain()
                    break
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield host, port
        await ended.wait()


async def test_a_member_that_dies_and_one_that_hangs_are_told_as_unavailable() -> None:
    async with (
        member(dies=True) as dead,
        member(dies=False) as mute,
        EtcdClient([dead, mute], deadline_s=1.0) as etcd,
    ):
        with pytest.raises(UpstreamUnavailable, match=r"no answer within [01]\.\d s"):
            await etcd.range(RangeRequest(key=b"a"))
        await etcd.close()  # so that the mute one sees its peer go
    _assert_undisturbed()


async def _watched(address: tuple[str, int]) -> None:
    async with EtcdClient([address]) as etcd:
        await anext(etcd.watch(b"a", b"", 1))


async def _written(address: tuple[str, int]) -> None:
    async with PumpClient(*address, cluster_id=1) as pump:
        await pump.probe()


async def _pulled(address: tuple[str, int]) -> None:
    async for _ in RemoteSource("pump", *address, cluster_id=1).pull(NO_TS):
        pass


async def _notified(address: tuple[str, int]) -> None:
    await notify("drainer", *address)


@pytest.mark.parametrize("call", [_watched, _written, _pulled, _notified])
async def test_who_asks_a_peer_that_dies_is_told_and_nothing_else_is_ended(
    call: Callable[[tuple[str, int]], Awaitable[None]],
) -> None:
    async with member(dies=True) as dead:
        with pytest.raises((UpstreamUnavailable, PumpUnavailable, DrainerUnavailable)):
            await call(dead)
    _assert_undisturbed()


def _assert_undisturbed() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "nobody has meant to end this task"
