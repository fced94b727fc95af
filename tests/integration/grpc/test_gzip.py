"""Compression as gRPC clients ask for it: whoever sends gzip is answered in gzip."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.grpc.compression import Inflater, NotGzip, deflated
from binlogd.grpc.messages import compressed, inflated
from binlogd.grpc.prefix import prefixed
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.raw_http2 import WRITE, RawClient, call_headers

CLUSTER = 7
PULL = "/binlog.Pump/PullBinlogs"


@dataclass
class Running:
    pump: MemoryPump
    service: PumpService
    client: RawClient
    target: str

    async def call(self, body: bytes, encoding: str = "gzip", path: str = WRITE) -> int:
        stream = self.client.open(call_headers(path, grpc_encoding=encoding))
        self.client.body(stream, body)
        await self.client.send()
        return stream


@asynccontextmanager
async def running(limits: ServiceLimits | None = None) -> AsyncIterator[Running]:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(CLUSTER), limits)
    server = Server([service], sinks=service.sinks())
    host, port = await server.start("127.0.0.1", 0)
    client = RawClient()
    await client.connect(host, port)
    try:
        yield Running(pump, service, client, f"{host}:{port}")
    finally:
        client.hang_up()
        await service.close()
        await server.close()


def request(start_ts: int, size: int = 1000) -> bytes:
    payload = prewrite_binlog(Tso(start_ts), prewrite_value=bytes(size))
    return codec.encode_write_request(CLUSTER, payload)


def squeezed(message: bytes) -> bytes:
    compressed = gzip.compress(message, mtime=0)
    return b"\1" + len(compressed).to_bytes(4, "big") + compressed


async def test_a_compressed_write_is_taken_and_answered_compressed() -> None:
    async with running() as at:
        stream = await at.call(squeezed(request(1)))
        (answer,) = await at.client.wait(stream)
        assert answer.outcome == ("0", None)
        assert answer.headers["grpc-encoding"] == "gzip"
        assert answer.data[0] == 1
        assert gzip.decompress(answer.data[5:]) == b""
        assert at.pump.stored == [codec.decode_write_request(request(1)).payload]
        assert at.service.statistics().bytes_in_flight == 0


async def test_a_message_may_be_plain_although_compression_was_agreed_on() -> None:
    async with running() as at:
        stream = await at.call(prefixed(request(1)))
        assert (await at.client.wait(stream))[0].outcome == ("0", None)


async def test_a_puller_who_sends_gzip_gets_gzip_and_all_of_it() -> None:
    expected = [
        CommittedBinlog(Tso(ts), Tso(ts + 1), prewrite_binlog(Tso(ts), prewrite_value=value))
        for ts, value in ((1, b"a" * 10), (3, b"b" * 2_000_000), (5, b"c" * 300), (7, b""))
    ]
    async with running() as at:
        at.pump.source.add(*expected)
        stream = await at.call(squeezed(codec.encode_pull_request(CLUSTER, Tso(0))), path=PULL)
        answer = at.client.answers[stream]
        found: list[CommittedBinlog] = []
        while len(found) < len(expected):
            await at.client._receive()
            data = answer.data
            while len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5], "big"):
                size = int.from_bytes(data[1:5], "big")
                assert data[0] == 1
                found.append(codec.decode_pull_answer(gzip.decompress(data[5 : 5 + size])))
                data = data[5 + size :]
            answer.data = data
        assert found == expected
        assert answer.headers["grpc-encoding"] == "gzip"
        assert at.service.statistics().bytes_sent < 20_000


@pytest.mark.parametrize(
    ("body", "encoding", "outcome"),
    [
        (prefixed(b""), "snappy", ("12", "Decompressor is not installed for grpc-encoding")),
        (squeezed(b"x"), "identity", ("13", "compressed flag set with identity or empty encoding")),
        (b"\7\0\0\0\0", "gzip", ("13", "received unexpected payload format 7")),
        (b"\1\0\0\0\3abc", "gzip", ("13", "failed to decompress the received message")),
        (b"\1\0\0\0\0", "gzip", ("13", "failed to decompress the received message")),
        (squeezed(bytes(70_000)), "gzip", ("8", "after decompression larger than max")),
    ],
)
async def test_what_cannot_be_read_is_refused_in_the_words_of_the_original(
    body: bytes, encoding: str, outcome: tuple[str, str]
) -> None:
    async with running(ServiceLimits(message_bytes_max=60_000)) as at:
        stream = await at.call(body, encoding)
        status, message = (await at.client.wait(stream))[0].outcome
        assert status == outcome[0]
        assert outcome[1] in (message or "")
        again = at.client.call(request(1))
        await at.client.send()
        assert (await at.client.wait(again))[0].is_ok


async def test_a_bomb_does_not_take_more_than_the_room_for_writes() -> None:
    limits = ServiceLimits(bytes_in_flight_max=1 << 20)
    async with running(limits) as at:
        stream = await at.call(squeezed(bytes(64 << 20)))
        status, _ = (await at.client.wait(stream))[0].outcome
        assert status == "14"
        assert at.service.statistics().bytes_in_flight == 0


async def test_another_implementation_of_grpc_reads_and_writes_the_same() -> None:
    async with running() as at:
        at.pump.source.add(
            *(
                CommittedBinlog(Tso(ts), Tso(ts + 1), commit_binlog(Tso(ts), Tso(ts + 1)))
                for ts in range(1, 200, 2)
            )
        )
        async with grpc.aio.insecure_channel(at.target) as channel:
            gzipped = grpc.Compression.Gzip
            write = channel.unary_unary(WRITE)
            pull = channel.unary_stream(PULL)
            assert await write(request(1, 5000), compression=gzipped) == b""
            assert await write(request(2, 5000)) == b""
            stream = pull(codec.encode_pull_request(CLUSTER, Tso(0)), compression=gzipped)
            found = [codec.decode_pull_answer(await stream.read()).start_ts for _ in range(100)]
            assert found == list(range(1, 200, 2))
            stream.cancel()
        assert len(at.pump.stored) == 2


# --- the bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step_bytes", [1, 7, 1000])
def test_what_is_deflated_is_inflated_in_steps_of_any_size(step_bytes: int) -> None:
    parts = [b"abc" * 500, b"", bytes(3000)]
    packed = b"".join(deflated(parts))
    assert gzip.decompress(packed) == b"".join(parts)
    inflater = Inflater()
    steps = list(inflater.steps(packed + packed, step_bytes))
    inflater.end()
    assert max(map(len, steps)) <= step_bytes
    assert b"".join(steps) == b"".join(parts) * 2


@pytest.mark.parametrize(
    "damage", [b"", b"abc", gzip.compress(b"x" * 100, mtime=0)[:-4], zlib.compress(b"x")]
)
def test_what_is_no_gzip_or_ends_early_is_damaged(damage: bytes) -> None:
    def read() -> None:
        inflater = Inflater()
        list(inflater.steps(damage, 100))
        inflater.end()

    with pytest.raises(NotGzip):
        read()


async def test_compressing_a_large_message_lets_others_have_their_turn() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:  # until cancelled
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.get_running_loop().create_task(count())
    packed = await compressed([b"head", bytes(8 << 20), b"tail"])
    counting.cancel()
    assert turns >= (8 << 20 >> 18) - 2  # the first steps are a small message's
    assert gzip.decompress(packed[5:]) == b"head" + bytes(8 << 20) + b"tail"


async def test_a_message_of_many_empty_gzips_lets_others_have_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    members = 50_000
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(other())
        await asyncio.sleep(0)
        begun_at = turns
        assert await inflated(gzip.compress(b"", mtime=0) * members, 1 << 20) == b""
        assert turns - begun_at > members // 100
        beside.cancel()


def test_inflating_copies_what_is_unread_in_small_pieces_only() -> None:
    """The library copies the rest of its input at each stop: that must not grow with a message."""
    inflater = Inflater()
    message = gzip.compress(b"", mtime=0) * 2_000
    longest = 0
    for _ in inflater.steps(message, 1 << 10):
        longest = max(longest, len(inflater._engine.unused_data))
    inflater.end()
    assert 0 < longest <= 8 << 10
