"""The batched write: the same promises as the unary one, many binlogs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server as GrpcServer
from grpclib.server import Stream

from binlogd.client.batch_writer import BatchedPumpClient
from binlogd.client.pump_client import ClientLimits
from binlogd.errors import BinlogdError, DiskFull, Refused, Unforeseen
from binlogd.grpc.channel import BytesCodec
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import batch as wire
from binlogd.wire import codec, peek
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.generated import binlogd as pb
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


def prewrite(start_ts: int, size: int = 10) -> bytes:
    return prewrite_binlog(Tso(start_ts), prewrite_value=bytes(size))


@asynccontextmanager
async def serving(
    pump: MemoryPump, port: int = 0, limits: ServiceLimits | None = None
) -> AsyncIterator[tuple[PumpService, int]]:
    service = PumpService(pump, Cluster(CLUSTER), limits)
    server = Server([service], sinks=service.sinks())
    _, port = await server.start("127.0.0.1", port or free_port())
    try:
        yield service, port
    finally:
        await service.close()
        await server.close()


def client(port: int, cluster_id: int = CLUSTER) -> BatchedPumpClient:
    return BatchedPumpClient("127.0.0.1", port, cluster_id=cluster_id, limits=QUICK)


async def test_what_is_written_at_the_same_time_goes_in_one_batch() -> None:
    pump = MemoryPump()
    async with serving(pump) as (service, port), client(port) as writer:
        async with asyncio.TaskGroup() as group:
            for start_ts in range(1, 501):
                group.create_task(writer.write(prewrite(start_ts)))
        assert pump.stored == [prewrite(ts) for ts in range(1, 501)]
        assert pump.largest_batch > 100
        assert writer.statistics().written == 500
        assert service.statistics().writes == 500
        assert service.statistics().bytes_in_flight == 0


async def test_many_at_once_may_be_given_as_a_list() -> None:
    pump = MemoryPump()
    payloads = [prewrite(ts, 1000) for ts in range(1, 2001)] + [prewrite(9999, 3_000_000)]
    async with serving(pump) as (_, port), client(port) as writer:
        await writer.write_many(payloads)
        assert sorted(pump.stored) == sorted(payloads)
        assert 200 < pump.largest_batch < 300
        assert writer.statistics().written == 2001


async def test_one_that_is_refused_does_not_touch_its_neighbours() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port), client(port) as writer:
        results: list[Any] = []

        async def write(payload: bytes) -> None:
            try:
                await writer.write(payload)
            except Refused as error:
                results.append(error)

        bad = b"\x08\x01\x10\x05\x18\x06" + b"\x22\x05ab"
        with pytest.raises(BinlogdError):
            peek.peek(bad)
        async with asyncio.TaskGroup() as group:
            for payload in (prewrite(1), prewrite(2), prewrite(3)):
                group.create_task(write(payload))
        assert (results, len(pump.stored)) == ([], 3)
        batch = wire.Batch(5, CLUSTER, [prewrite(7), bad, prewrite(8)])
        answer = await raw_batch(port, wire.encode_batch(batch))
        assert answer.number == 5
        assert [(r.position, r.status) for r in answer.refusals] == [(1, Status.UNKNOWN.value)]
        assert answer.refusals[0].message == "unexpected EOF"
        assert len(pump.stored) == 5


async def test_a_fault_of_ours_is_not_taken_for_a_stream_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(_: bytes) -> wire.BatchAnswer:
        raise ValueError("a bug")

    monkeypatch.setattr(wire, "decode_answer", decode)
    async with serving(MemoryPump()) as (_, port), client(port) as writer:
        with pytest.raises(Unforeseen, match="ValueError: a bug"):
            await writer.write(prewrite(1))


async def test_another_cluster_is_refused_binlog_by_binlog() -> None:
    async with serving(MemoryPump()) as (_, port), client(port, cluster_id=5) as writer:
        with pytest.raises(Refused, match="cluster ID are mismatch, 5 vs 77"):
            await writer.write(prewrite(1))


async def test_what_may_pass_is_tried_again() -> None:
    class Flaky(MemoryPump):
        failures = 3

        async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
            if self.failures:
                self.failures -= 1
                return [DiskFull(1, 2)] * len(payloads)
            return await super().write(payloads)

    pump = Flaky()
    async with serving(pump) as (_, port), client(port) as writer:
        await writer.write_many([prewrite(1), prewrite(2)])
        assert sorted(pump.stored) == [prewrite(1), prewrite(2)]


async def test_a_client_outlives_the_restart_of_its_server() -> None:
    pump = MemoryPump()
    async with serving(pump) as (_, port):
        writer = client(port)
        await writer.write(prewrite(1))
    async with asyncio.TaskGroup() as group:
        late = group.create_task(writer.write(prewrite(2)))
        await eventually(lambda: writer.statistics().retried > 0)
        async with serving(pump, port):
            await late
    writer.close()
    assert set(pump.stored) == {prewrite(1), prewrite(2)}


async def test_a_service_that_closes_answers_the_batches_that_it_has_read() -> None:
    pump = MemoryPump()
    pump.gate.clear()
    async with serving(pump) as (service, port), client(port) as writer:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(writer.attempt(prewrite(1)))
            await eventually(lambda: service.statistics().writes_in_flight == 1)
            closing = group.create_task(service.close())
            await asyncio.sleep(0)
            assert not closing.done()
            pump.gate.set()
            await writing
        assert pump.stored == [prewrite(1)]


async def test_a_pump_that_knows_no_batches_is_written_to_one_by_one() -> None:
    taken: list[bytes] = []

    class Old:
        def __mapping__(self) -> dict[str, Handler]:
            path = "/binlog.Pump/WriteBinlog"
            return {path: Handler(self.write, Cardinality.UNARY_UNARY, bytes, bytes)}

        async def write(self, stream: Stream[bytes, bytes]) -> None:
            message = await stream.recv_message()
            taken.append(codec.decode_write_request(message or b"").payload)
            await stream.send_message(b"")

    server = GrpcServer([cast(Any, Old())], codec=BytesCodec())
    await server.start("127.0.0.1", 0)
    port = cast(Any, server._server).sockets[0].getsockname()[1]
    async with client(port) as writer:
        await writer.write(prewrite(1))
        await writer.write_many([prewrite(2), prewrite(3)])
    server.close()
    await server.wait_closed()
    assert sorted(taken) == [prewrite(1), prewrite(2), prewrite(3)]


async def raw_batch(port: int, *messages: bytes) -> wire.BatchAnswer:
    async with Channel("127.0.0.1", port, codec=BytesCodec()) as channel:
        method = (wire.WRITE_BATCH, Cardinality.STREAM_STREAM, bytes, bytes)
        async with channel.request(*method) as stream:
            for message in messages:
                await stream.send_message(message)
            await stream.end()
            answers = [wire.decode_answer(answer) async for answer in stream]
    return answers[0]


async def test_what_is_no_batch_ends_the_stream_and_what_came_before_is_written() -> None:
    pump = MemoryPump()
    limits = ServiceLimits(message_bytes_max=1000)
    async with serving(pump, limits=limits) as (service, port):
        good = wire.encode_batch(wire.Batch(1, CLUSTER, [prewrite(1)]))
        for bad, status in (
            (b"\x1a\x05ab", Status.INTERNAL),
            (bytes(1001), Status.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(GRPCError) as caught:
                await raw_batch(port, good, bad)
            assert caught.value.status is status
        assert pump.stored == [prewrite(1)] * 2
        assert service.statistics().bytes_in_flight == 0


async def test_other_languages_can_speak_to_it_by_its_proto() -> None:
    async def batches() -> AsyncIterator[pb.WriteBatch]:
        yield pb.WriteBatch(number=3, cluster_id=CLUSTER, payloads=[prewrite(1), b"\x08"])

    pump = MemoryPump()
    async with serving(pump) as (_, port), Channel("127.0.0.1", port) as channel:
        answers = [answer async for answer in pb.BatchWriterStub(channel).write(batches())]
        assert [(a.number, [(r.position, r.message) for r in a.refusals]) for a in answers] == [
            (3, [(1, "unexpected EOF")])
        ]
        assert pump.stored == [prewrite(1)]


async def test_a_batch_without_binlogs_is_answered() -> None:
    async with serving(MemoryPump()) as (_, port):
        assert await raw_batch(port, b"") == wire.BatchAnswer(0, [])


async def test_many_small_binlogs_count_as_what_they_take_in_memory() -> None:
    pump = MemoryPump()
    pump.gate.clear()
    async with serving(pump) as (service, port), asyncio.TaskGroup() as group:
        message = wire.encode_batch(wire.Batch(1, CLUSTER, [b""] * 10_000))
        group.create_task(raw_batch(port, message))
        await eventually(lambda: service.statistics().writes_in_flight == 10_000)
        assert service.statistics().bytes_in_flight > 100 * len(message)
        pump.gate.set()
        await eventually(lambda: service.statistics().bytes_in_flight == 0)
