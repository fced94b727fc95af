"""The write client and the remote source against a real port: retries, restarts, endings."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from grpclib.const import Cardinality, Handler
from grpclib.server import Server as GrpcServer
from grpclib.server import Stream

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.client.pump_client import ClientLimits, PumpClient, RemoteSource
from binlogd.errors import (
    BinlogdError,
    CorruptRecord,
    DiskFull,
    MalformedBinlog,
    PumpUnavailable,
    Refused,
)
from binlogd.grpc.channel import BytesCodec
from binlogd.merge.stream import merged
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import NodeState
from binlogd.serving.server import Server
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.ports import free_port
from tests.support.pump_world import eventually

CLUSTER = 77
QUICK = ClientLimits(
    deadline_s=60,
    prewrite_retry_s=60,
    prewrite_retry_interval_s=0.01,
    outcome_retry_s=60,
    outcome_retry_interval_s=0.01,
)


@asynccontextmanager
async def serving(pump: MemoryPump, port: int = 0) -> AsyncIterator[tuple[str, int]]:
    service = PumpService(pump, Cluster(CLUSTER), ServiceLimits(message_bytes_max=1 << 24))
    server = Server([service])
    address = await server.start("127.0.0.1", port or free_port())
    try:
        yield address
    finally:
        await service.close()
        await server.close()


def client(port: int, limits: ClientLimits = QUICK, cluster_id: int = CLUSTER) -> PumpClient:
    return PumpClient("127.0.0.1", port, cluster_id=cluster_id, limits=limits)


def prewrite(start_ts: int) -> bytes:
    return prewrite_binlog(Tso(start_ts), prewrite_key=b"k", prewrite_value=b"rows")


def commit(start_ts: int, commit_ts: int) -> bytes:
    return commit_binlog(Tso(start_ts), Tso(commit_ts))


class Flaky(MemoryPump):
    """Refuses the first writes for a reason that passes."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        if self.failures:
            self.failures -= 1
            return [DiskFull(1, 2)] * len(payloads)
        return await super().write(payloads)


async def test_writes_share_one_connection_and_arrive_once() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port), client(port) as writer:
        async with asyncio.TaskGroup() as group:
            for start_ts in range(1, 201):
                group.create_task(writer.write(prewrite(start_ts)))
        await writer.probe()
        assert sorted(pump.stored) == sorted(prewrite(ts) for ts in range(1, 201))
        assert writer.statistics().reconnected == 0


@pytest.mark.parametrize("payload", [prewrite(1), rollback_binlog(Tso(1))])
async def test_what_may_pass_is_tried_again(payload: bytes) -> None:
    pump = Flaky(3)
    async with serving(pump) as (_, port), client(port) as writer:
        await writer.write(payload)
        assert pump.stored == [payload]
        assert writer.statistics().retried == 3


async def test_a_prewrite_is_given_up_when_its_time_is_over_and_the_reason_is_told() -> None:
    pump = MemoryPump()
    pump.state = NodeState.PAUSED
    limits = ClientLimits(prewrite_retry_s=0.05, prewrite_retry_interval_s=0.01)
    async with serving(pump) as (_, port), client(port, limits) as writer:
        with pytest.raises(PumpUnavailable, match="no online: paused"):
            await writer.write(prewrite(1))
        assert writer.statistics().given_up == 1


async def test_what_never_passes_is_refused_at_once() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port):
        async with client(port, cluster_id=5) as stranger:
            with pytest.raises(Refused, match="cluster ID are mismatch, 5 vs 77"):
                await stranger.write(prewrite(1))
        async with client(port) as writer:
            with pytest.raises(Refused, match="message larger than max"):
                await writer.write(prewrite_binlog(Tso(1), prewrite_value=bytes(1 << 24)))
            with pytest.raises(MalformedBinlog):
                await writer.write(b"\x08")
            await writer.write(prewrite(2))
            assert writer.statistics().retried == 0


async def test_a_call_that_ends_well_without_an_answer_says_nothing_about_the_binlog() -> None:
    class Silent:
        def __mapping__(self) -> dict[str, Handler]:
            path = "/binlog.Pump/WriteBinlog"
            return {path: Handler(self.write, Cardinality.UNARY_STREAM, bytes, bytes)}

        async def write(self, stream: Stream[bytes, bytes]) -> None:
            await stream.recv_message()

    server = GrpcServer([cast(Any, Silent())], codec=BytesCodec())
    port = free_port()
    await server.start("127.0.0.1", port)
    async with client(port) as writer:
        with pytest.raises(PumpUnavailable, match="it ended the call without an answer"):
            await writer.attempt(prewrite(1))
    server.close()
    await server.wait_closed()


async def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        limits = ClientLimits(prewrite_retry_s=0.05, prewrite_retry_interval_s=0.01)
        async with client(reserved.getsockname()[1], limits) as writer:
            with pytest.raises(PumpUnavailable, match=r"pump 127\.0\.0\.1"):
                await writer.write(prewrite(1))


async def test_a_client_outlives_the_restart_of_its_server() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port):
        writer = client(port)
        await writer.write(prewrite(1))
    async with asyncio.TaskGroup() as group:
        late = group.create_task(writer.write(commit(1, 2)))
        await eventually(lambda: writer.statistics().retried > 0)
        async with serving(pump, port):
            await late
    assert pump.stored == [prewrite(1), commit(1, 2)]
    writer.close()


# --- RemoteSource ------------------------------------------------------------------------


def binlogs(count: int, size: int = 20) -> list[CommittedBinlog]:
    return [
        CommittedBinlog(
            Tso(ts - 1), Tso(ts), prewrite_binlog(Tso(ts - 1), prewrite_value=bytes(size))
        )
        for ts in range(2, 2 * count + 1, 2)
    ]


def source(port: int, cluster_id: int = CLUSTER) -> RemoteSource:
    return RemoteSource("far", "127.0.0.1", port, cluster_id=cluster_id, limits=QUICK)


async def first(source: RemoteSource, count: int, after: Tso = NO_TS) -> list[CommittedBinlog]:
    found: list[CommittedBinlog] = []
    pulls: Any = source.pull(after)
    async with aclosing(pulls):
        async for pulled in pulls:
            last = pulled.binlogs[-1].commit_ts if pulled.binlogs else after
            assert pulled.resolved_ts == last
            found += pulled.binlogs
            if len(found) >= count:
                break
    return found


@pytest.mark.parametrize(("count", "size"), [(3000, 20), (60, 100_000), (3, 9_000_000)])
async def test_a_remote_source_gives_what_the_pump_has(count: int, size: int) -> None:
    pump = MemoryPump()
    expected = binlogs(count, size)
    pump.source.add(*expected)
    async with serving(pump) as (_, port):
        assert await first(source(port), count) == expected
        assert await first(source(port), count - 1, expected[0].commit_ts) == expected[1:]


async def test_a_pump_that_answers_is_known_to_be_there_before_it_has_anything_to_tell() -> None:
    async with serving(MemoryPump()) as (_, port), aclosing(source(port).pull(Tso(7))) as pulls:
        assert await anext(pulls) == Pulled((), Tso(7))


async def test_remote_sources_merge_like_local_ones() -> None:
    left, right = MemoryPump(), MemoryPump()
    everything = binlogs(500)
    left.source.add(*everything[::2])
    right.source.add(*everything[1::2])
    async with serving(left) as (_, port), serving(right) as (_, other):
        sources = [source(port), RemoteSource("other", "127.0.0.1", other, cluster_id=CLUSTER)]
        found: list[CommittedBinlog] = []
        async with merged(sources, NO_TS) as stream:
            while len(found) < 499:
                found += (await anext(stream)).binlogs
        assert found[:499] == everything[:499]


async def ending(pulls: AsyncIterator[Pulled]) -> None:
    async for _ in pulls:
        pass


async def test_a_stream_that_ends_is_unavailable_for_whatever_reason() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port):
        with pytest.raises(PumpUnavailable, match="cluster ID are mismatch, 5 vs 77"):
            await ending(source(port, cluster_id=5).pull(NO_TS))
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(first(source(port), 1))
            pump.source.add(*binlogs(1))
            await pulling
        pump.source.fail(CorruptRecord("value/000000.vlog", 7, "checksum mismatch"))
        with pytest.raises(PumpUnavailable, match="checksum mismatch"):
            await ending(source(port).pull(NO_TS))
    with pytest.raises(PumpUnavailable):
        await ending(source(port).pull(NO_TS))


async def test_a_pump_that_closes_ends_the_stream() -> None:
    pump = MemoryPump()
    pump.source.add(*binlogs(1))
    async with serving(pump) as (_, port):
        pulls: Any = source(port).pull(NO_TS)
        assert not (await anext(pulls)).binlogs
        assert len((await anext(pulls)).binlogs) == 1
    with pytest.raises(PumpUnavailable):
        await anext(pulls)


async def test_a_connection_that_is_lost_at_the_deadline_is_a_failure_and_no_cancellation() -> None:
    """A busy machine has both in one turn of the loop; the task ended as if it were cancelled."""
    limits = ClientLimits(deadline_s=0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with PumpClient(*listening.getsockname(), cluster_id=1, limits=limits) as client:
            asking = asyncio.create_task(client.probe())
            listening.setblocking(False)
            accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            await asyncio.sleep(0.1)
            accepted.close()
            time.sleep(0.5)  # noqa: ASYNC251 - the machine is busy
            with pytest.raises(PumpUnavailable):
                await asking
