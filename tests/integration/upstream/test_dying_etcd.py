"""etcd's client between members that die, hang or keep silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from binlogd.errors import UpstreamUnavailable
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.wire.generated.etcdserverpb import RangeRequest

_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_HEADERS, _PREFACE_BYTES = 1, 24


@asynccontextmanager
async def member(*, dies: bool) -> AsyncIterator[tuple[str, int]]:
    """Takes a call, and never answers it; or goes with it."""

    ended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_SETTINGS)
        await reader.readexactly(_PREFACE_BYTES)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:  # until the peer leaves
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                if dies and head[3] == _HEADERS:
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
    async with member(dies=True) as dead, member(dies=False) as mute:
        async with EtcdClient([dead, mute], deadline_s=1.0) as etcd:
            with pytest.raises(UpstreamUnavailable, match="no answer within 1 s"):
                await etcd.range(RangeRequest(key=b"a"))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "nobody has meant to end this task"


async def test_a_watch_whose_member_dies_leaves_its_reader_as_it_was() -> None:
    async with member(dies=True) as dead, EtcdClient([dead], deadline_s=5.0) as etcd:
        with pytest.raises(UpstreamUnavailable, match="onnection lost"):
            await anext(etcd.watch(b"a", b"", 1))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "nobody has meant to end this task"
