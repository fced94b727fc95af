"""What a client of the original sees of the port: statuses, texts, streams, limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.settings import SettingCodes
from structlog.testing import capture_logs

from binlogd.binlog import CommittedBinlog
from binlogd.errors import BinlogdError, ConfigError, CorruptRecord, RecordTooLarge, Refused
from binlogd.grpc.channel import BytesCodec
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import NodeState
from binlogd.serving.answers import LookUp, Question, Reply
from binlogd.serving.routes.application import application
from binlogd.serving.routes.events import Hub, event
from binlogd.serving.routes.guard import Guard
from binlogd.serving.server import Server, ServerLimits
from binlogd.status import NodeEntry
from binlogd.status import Status as NodeStands
from binlogd.telemetry.faults import unforeseen
from binlogd.tso import Tso
from binlogd.upstream.store import SkipEntry
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated import binlog as pb
from binlogd.wire.joining import join
from tests.support.memory_pump import Cluster, MemoryPump, nothing_to_do
from tests.support.pump_world import eventually
from tests.support.raw_http2 import RawClient, call_headers
from tests.support.statuses import NOTHING_FOUND, well

CLUSTER = 6791641053252586769
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

TOKEN = "a-token-of-the-tests"
MAY_ACT = {"Authorization": f"Bearer {TOKEN}"}


class Operations:
    def __init__(self) -> None:
        self.reason = ""
        self.collects = False
        self.failed: list[str] = []

    async def status(self) -> NodeStands:
        return well(max_commit_ts=Tso(412518831548007863))

    def metrics(self) -> bytes:
        return b"binlog_pump_loss_binlog_count 0\n"

    def unready(self) -> str:
        return self.reason

    async def nodes(self, kind: str) -> list[NodeEntry]:
        return [NodeEntry(node_id=kind)] if kind == "pumps" else []

    async def change_state(self, node_id: str, action: str) -> Reply:
        if action != "pause":
            return Reply(f"invalide action {action}", 3)
        return Reply(f"apply action {action} success!", 200)

    def applied_ts(self) -> Reply:
        return Reply("get drainer's latest ts success!", 200, {"ts": 7})

    async def binlog_text(self, ts: int) -> str:
        raise Refused("not found")

    def reload(self) -> Reply:
        return Reply("nothing to take has changed", 200)

    async def find(self, question: Question) -> LookUp:
        return NOTHING_FOUND

    def trigger_gc(self) -> bool:
        return not self.collects

    async def skip(self, commit_ts: int, reason: str) -> Reply:
        return Reply(f"commit_ts {commit_ts} is passed over: {reason}", 200)

    async def ddl_history(self) -> list[bytes]:
        return [b'{"id": 3}']

    def route_failed(self, route: str, error: Exception) -> BinlogdError:
        self.failed.append(route)
        return unforeseen(route, error)

    def decided_skips(self) -> list[SkipEntry]:
        return [SkipEntry(Tso(7), "", 0)]


@dataclass
class Running:
    pump: MemoryPump
    service: PumpService
    server: Server
    operations: Operations
    host: str
    port: int


@asynccontextmanager
async def running(
    *,
    cluster_id: int | None = CLUSTER,
    service_limits: ServiceLimits | None = None,
    server_limits: ServerLimits | None = None,
    fast_lane: bool = True,
) -> AsyncIterator[Running]:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(cluster_id), service_limits)
    operations = Operations()
    server = Server(
        [service, CisternService(nothing_to_do)],
        application(operations, Guard(lambda: TOKEN), Hub(lambda: event("past", b"[]"))),
        server_limits,
        sinks=service.sinks() if fast_lane else None,
    )
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield Running(pump, service, server, operations, host, port)
    finally:
        await service.close()
        await server.close()


@asynccontextmanager
async def pump_stub(to: Running) -> AsyncIterator[pb.PumpStub]:
    async with Channel(to.host, to.port) as channel:
        yield pb.PumpStub(channel)


def request(payload: bytes, cluster_id: int = CLUSTER) -> pb.WriteBinlogReq:
    return pb.WriteBinlogReq(cluster_id=cluster_id, payload=payload)


def pull_request(after: int = 0, cluster_id: int = CLUSTER) -> pb.PullBinlogReq:
    return pb.PullBinlogReq(cluster_id=cluster_id, start_from=pb.Pos(offset=after))


def prewrite(start_ts: int) -> bytes:
    return prewrite_binlog(Tso(start_ts), prewrite_key=b"k", prewrite_value=b"rows")


def commit(start_ts: int, commit_ts: int) -> bytes:
    return commit_binlog(Tso(start_ts), Tso(commit_ts))


async def refused(stub: pb.PumpStub, message: pb.WriteBinlogReq) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await stub.write_binlog(message)
    return caught.value


# --- WriteBinlog -------------------------------------------------------------------------


async def test_a_binlog_that_is_taken_is_answered_with_an_empty_message() -> None:
    async with running() as at, pump_stub(at) as stub:
        assert (await stub.write_binlog(request(prewrite(1)))).errmsg == ""
        assert at.pump.stored == [prewrite(1)]


async def test_a_probe_is_answered_and_stores_nothing() -> None:
    async with running() as at, pump_stub(at) as stub:
        await stub.write_binlog(request(b""))
        assert at.pump.stored == []


async def test_another_cluster_is_refused_in_the_words_of_the_original() -> None:
    async with running() as at, pump_stub(at) as stub:
        error = await refused(stub, request(prewrite(1), cluster_id=7))
        assert (error.status, error.message) == (
            Status.UNKNOWN,
            f"cluster ID are mismatch, 7 vs {CLUSTER}",
        )
        assert at.service.statistics().writes_lost == 0


async def test_a_payload_that_does_not_decode_is_refused_in_the_words_of_the_original() -> None:
    async with running() as at, pump_stub(at) as stub:
        error = await refused(stub, request(b"\x22\x05ab"))
        assert (error.status, error.message) == (Status.UNKNOWN, "unexpected EOF")
        assert at.service.statistics().writes_lost == 1


async def test_only_prewrites_and_probes_are_refused_while_not_online() -> None:
    async with running() as at, pump_stub(at) as stub:
        await stub.write_binlog(request(prewrite(1)))
        at.pump.state = NodeState.CLOSING
        for payload in (prewrite(2), b""):
            error = await refused(stub, request(payload))
            assert (error.status, error.message) == (Status.UNKNOWN, "no online: closing")
        await stub.write_binlog(request(commit(1, 3)))
        pulled = await anext(stub.pull_binlogs(pull_request()))
        assert pulled.entity.meta.commit_ts == 3, "who reads gets what there is"


async def test_the_first_writer_says_which_cluster_it_is_but_garbage_and_probes_do_not() -> None:
    async with running(cluster_id=None) as at, pump_stub(at) as stub:
        await stub.write_binlog(request(b"", cluster_id=5))
        await refused(stub, request(b"\x08", cluster_id=6))
        await stub.write_binlog(request(prewrite(1), cluster_id=7))
        error = await refused(stub, request(prewrite(2), cluster_id=8))
        assert error.message == "cluster ID are mismatch, 8 vs 7"


async def test_an_oversize_message_is_refused_by_its_prefix_and_the_connection_lives() -> None:
    limits = ServiceLimits(message_bytes_max=1000)
    async with running(service_limits=limits) as at, pump_stub(at) as stub:
        error = await refused(stub, request(b"\x2a" + b"x" * 5000))
        assert error.status is Status.RESOURCE_EXHAUSTED
        assert error.message is not None
        assert "message larger than max" in error.message
        await stub.write_binlog(request(prewrite(1)))


async def test_a_record_that_the_log_refuses_as_too_large_says_so() -> None:
    class Full(MemoryPump):
        async def write(self, payloads: Any) -> Any:
            return [RecordTooLarge(9, 8)] * len(payloads)

    service = PumpService(Full(), Cluster(CLUSTER))
    (outcome,) = await service.write_binlogs([codec.encode_write_request(CLUSTER, prewrite(1))])
    assert outcome is not None
    assert outcome.status is Status.RESOURCE_EXHAUSTED
    assert outcome.message == "grpc: received message larger than max (9 vs. 8)"


async def test_a_request_that_is_no_message_is_an_internal_error() -> None:
    service = PumpService(MemoryPump(), Cluster(CLUSTER))
    (outcome,) = await service.write_binlogs([b"\x12\x05a"])
    assert outcome is not None
    assert outcome.status is Status.INTERNAL
    assert outcome.message == "grpc: error unmarshalling request: unexpected EOF"


async def test_a_batch_gets_one_outcome_for_each_message_in_order() -> None:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(CLUSTER))
    messages = [
        codec.encode_write_request(CLUSTER, prewrite(1)),
        codec.encode_write_request(3, prewrite(2)),
        codec.encode_write_request(CLUSTER, b"\x08"),
        codec.encode_write_request(CLUSTER, commit(1, 4)),
    ]
    outcomes = await service.write_binlogs(messages)
    assert [outcome and outcome.message for outcome in outcomes] == [
        None,
        f"cluster ID are mismatch, 3 vs {CLUSTER}",
        "unexpected EOF",
        None,
    ]
    assert pump.largest_batch == 3


async def test_writers_are_held_back_by_bytes_in_flight_and_refused_when_too_much_waits() -> None:
    limits = ServiceLimits(bytes_in_flight_max=5000, bytes_waiting_max=5000)
    async with running(service_limits=limits) as at, pump_stub(at) as stub:
        at.pump.gate.clear()
        async with asyncio.TaskGroup() as group:
            held = group.create_task(stub.write_binlog(request(b"\x2a\xa0\x1f" + b"x" * 4000)))
            await eventually(lambda: at.service.statistics().writes_in_flight == 1)
            waits = group.create_task(stub.write_binlog(request(b"\x2a\xa0\x1f" + b"x" * 4000)))
            await eventually(lambda: at.service.statistics().writes_held_back == 1)
            assert at.service.statistics().writes_in_flight == 1
            error = await refused(stub, request(b"\x2a\xa0\x1f" + b"x" * 4000))
            assert error.status is Status.UNAVAILABLE
            at.pump.gate.set()
            await held
            await waits
        await stub.write_binlog(request(b"\x2a\xa0\x1f" + b"x" * 4000))
        assert at.service.statistics().bytes_in_flight == 0


async def test_a_write_that_takes_a_second_is_told() -> None:
    class Slow(MemoryPump):
        async def write(self, payloads: Any) -> Any:
            await asyncio.sleep(1.01)
            return await super().write(payloads)

    with capture_logs() as logged:
        await PumpService(Slow(), Cluster(CLUSTER)).write_payloads(CLUSTER, [prewrite(1)])
    (slow,) = logged
    assert (slow["event"], slow["size_bytes"]) == ("write_was_slow", len(prewrite(1)))
    assert slow["took_s"] >= 1.0


async def test_more_calls_than_grpclib_allows_by_itself_are_in_flight_at_once() -> None:
    async with running() as at, pump_stub(at) as stub:
        await stub.write_binlog(request(prewrite(1000)))  # before that, it may have a quarter
        at.pump.gate.clear()
        async with asyncio.TaskGroup() as group:
            for start_ts in range(1, 501):
                group.create_task(stub.write_binlog(request(prewrite(start_ts))))
            await eventually(lambda: at.service.statistics().writes_in_flight == 500)
            at.pump.gate.set()
        statistics = at.service.statistics()
        assert (len(at.pump.stored), statistics.writes) == (501, 501)
        assert sum(statistics.write_seconds["succ"].counts) == 501


# --- PullBinlogs -------------------------------------------------------------------------


def binlogs(first: int, count: int, size: int = 10) -> list[CommittedBinlog]:
    return [
        CommittedBinlog(Tso(ts), Tso(ts + 1), commit_binlog(Tso(ts), Tso(ts + 1)) + b"")
        if size == 10
        else CommittedBinlog(
            Tso(ts), Tso(ts + 1), prewrite_binlog(Tso(ts), prewrite_value=b"x" * size)
        )
        for ts in range(first, first + 2 * count, 2)
    ]


async def test_a_puller_gets_commits_with_their_rows_and_then_what_is_written_later() -> None:
    async with running() as at, pump_stub(at) as writer, pump_stub(at) as reader:
        await writer.write_binlog(request(prewrite(1)))
        await writer.write_binlog(request(commit(1, 2)))
        stream = reader.pull_binlogs(pull_request())
        entity = (await anext(stream)).entity
        assert entity.payload == join(prewrite(1), commit(1, 2))
        assert (entity.meta.start_ts, entity.meta.commit_ts) == (1, 2)
        assert (entity.checksum, entity.pos.offset) == (b"", 0)
        await writer.write_binlog(request(prewrite(3)))
        await writer.write_binlog(request(commit(3, 4)))
        assert (await anext(stream)).entity.meta.commit_ts == 4


async def test_a_puller_gets_only_what_comes_after_its_position() -> None:
    async with running() as at, pump_stub(at) as stub:
        at.pump.source.add(*binlogs(1, 100))
        stream = stub.pull_binlogs(pull_request(after=100))
        assert [(await anext(stream)).entity.meta.commit_ts for _ in range(3)] == [102, 104, 106]


@pytest.mark.parametrize(("count", "size"), [(5000, 10), (40, 100_000), (2, 6_000_000)])
async def test_a_long_stream_arrives_whole_and_in_order(count: int, size: int) -> None:
    expected = binlogs(1, count, size)
    async with running() as at, pump_stub(at) as stub:
        at.pump.source.add(*expected)
        stream = stub.pull_binlogs(pull_request())
        for binlog in expected:
            entity = (await anext(stream)).entity
            assert entity.meta.commit_ts == binlog.commit_ts
            assert entity.payload == binlog.payload


async def test_a_puller_of_another_cluster_is_refused() -> None:
    async with running() as at, pump_stub(at) as stub:
        with pytest.raises(GRPCError) as caught:
            await anext(stub.pull_binlogs(pull_request(cluster_id=9)))
        assert caught.value.message == f"cluster ID are mismatch, 9 vs {CLUSTER}"
        assert sum(at.service.statistics().pull_seconds["fail"].counts) == 1


async def test_streams_end_with_ok_when_the_service_closes() -> None:
    async with running() as at, pump_stub(at) as stub:
        at.pump.source.add(*binlogs(1, 1))
        stream = stub.pull_binlogs(pull_request())
        await anext(stream)
        await at.service.close()
        assert [message async for message in stream] == []
        assert at.service.statistics().pullers == 0


async def test_a_source_that_fails_ends_the_stream_with_its_reason() -> None:
    async with running() as at, pump_stub(at) as stub:
        stream = stub.pull_binlogs(pull_request())
        at.pump.source.fail(CorruptRecord("value/000001.vlog", 44, "checksum mismatch"))
        with pytest.raises(GRPCError) as caught:
            await anext(stream)
        assert (caught.value.message or "").startswith("value/000001.vlog at offset 44: checksum")


async def test_a_puller_that_leaves_is_forgotten() -> None:
    async with running() as at:
        async with pump_stub(at) as stub:
            at.pump.source.add(*binlogs(1, 1))
            await anext(stub.pull_binlogs(pull_request()))
            assert at.service.statistics().pullers == 1
        await eventually(lambda: at.service.statistics().pullers == 0)


async def test_a_puller_that_does_not_read_holds_nobody_up() -> None:
    async with running() as at, pump_stub(at) as writer, pump_stub(at) as reader:
        at.pump.source.add(*binlogs(1, 200, 100_000))  # 20 MB, more than any window
        stream = reader.pull_binlogs(pull_request())
        await anext(stream)
        for start_ts in range(1, 50):
            await writer.write_binlog(request(prewrite(start_ts)))
        assert at.service.statistics().bytes_sent < 20_000_000


async def test_a_puller_never_starves_writers() -> None:
    """Its window never closes; a write still waits for a few of its chunks only."""
    async with running() as at, pump_stub(at) as writer:
        at.pump.source.add(*binlogs(1, 400, 250_000))  # 100 MB
        puller = RawClient()
        await puller.connect(at.host, at.port)
        puller.h2.increment_flow_control_window(1 << 30)
        puller.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
        message = codec.encode_pull_request(CLUSTER, Tso(0))
        puller.call(message, call_headers("/binlog.Pump/PullBinlogs"))
        await puller.send()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(puller.wait())
            await eventually(lambda: at.service.statistics().bytes_sent > 0)
            most = 0
            for start_ts in range(1, 21):
                before = at.service.statistics().bytes_sent
                await writer.write_binlog(request(prewrite(start_ts)))
                most = max(most, at.service.statistics().bytes_sent - before)
            assert most < 20 << 20
            reading.cancel()
        puller.hang_up()


# --- Cistern -----------------------------------------------------------------------------


async def test_notify_is_answered_and_the_stubs_are_empty() -> None:
    async with running() as at, Channel(at.host, at.port) as channel:
        stub = pb.CisternStub(channel)
        assert await stub.notify(pb.NotifyReq()) == pb.NotifyResp()
        assert (await stub.dump_ddl_jobs(pb.DumpDdlJobsReq())).ddljobs == []
        assert [m async for m in stub.dump_binlog(pb.DumpBinlogReq())] == []


async def test_an_unknown_method_is_unimplemented() -> None:
    async with running() as at, Channel(at.host, at.port) as channel:
        with pytest.raises(GRPCError) as caught:
            await pb.PumpStub(channel)._unary_unary(
                "/binlog.Pump/Rewind", pb.NotifyReq(), pb.NotifyResp
            )
        assert caught.value.status is Status.UNIMPLEMENTED


# --- the port ----------------------------------------------------------------------------


async def test_http_and_grpc_share_the_port() -> None:
    async with running() as at, pump_stub(at) as stub, aiohttp.ClientSession() as session:
        base = f"http://{at.host}:{at.port}"
        await stub.write_binlog(request(prewrite(1)))
        async with session.get(f"{base}/status") as answer:
            assert answer.status == 200
            text = await answer.text()
            assert text.startswith('{"state":"online",')
            assert '"max_commit_ts":412518831548007863,' in text
            assert text.endswith('"ErrMsg":""}\n')
        async with session.get(f"{base}/metrics") as answer:
            assert await answer.text() == "binlog_pump_loss_binlog_count 0\n"
            assert answer.content_type == "text/plain"
        await stub.write_binlog(request(prewrite(2)))


async def test_state_changes_answer_as_the_original_does() -> None:
    async with running() as at, aiohttp.ClientSession(headers=MAY_ACT) as session:
        base = f"http://{at.host}:{at.port}"
        async with session.put(f"{base}/state/me:8250/pause") as answer:
            assert (await answer.text()).splitlines() == [
                "{",
                '  "message": "apply action pause success!",',
                '  "code": 200,',
                '  "data": null',
                "}",
            ]
            assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
        async with session.put(f"{base}/state/me:8250/jump") as answer:
            assert (await answer.json())["message"] == "invalide action jump"
        async with session.get(f"{base}/state/me:8250/pause") as answer:
            assert (answer.status, await answer.text()) == (405, "")
        async with session.get(f"{base}/nowhere") as answer:
            assert (answer.status, await answer.text()) == (404, "404 page not found\n")


async def test_garbage_is_collected_or_it_is_said_that_it_is_already() -> None:
    async with running() as at, aiohttp.ClientSession(headers=MAY_ACT) as session:
        url = f"http://{at.host}:{at.port}/debug/gc/trigger"
        for at.operations.collects, said in (
            (False, "trigger gc success\n"),
            (True, "gc is working\n"),
        ):
            async with session.post(url) as answer:
                assert (answer.status, await answer.text()) == (200, said)


async def test_readiness_gives_its_reason() -> None:
    async with running() as at, aiohttp.ClientSession() as session:
        base = f"http://{at.host}:{at.port}"
        async with session.get(f"{base}/livez") as answer:
            assert answer.status == 200
        async with session.get(f"{base}/readyz") as answer:
            assert answer.status == 200
        at.operations.reason = "no online: closing"
        async with session.get(f"{base}/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "no online: closing\n")


async def raw_connection(to: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(to.host, to.port)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "opening",
    [
        b"\x16\x03\x01\x02\x00",
        b"PROPFIND / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/1.1\r\n",
        b"\x00" * 64,
        b"hello\n",
    ],
)
async def test_what_speaks_neither_is_closed(opening: bytes) -> None:
    async with running() as at:
        reader, writer = await raw_connection(at)
        writer.write(opening)
        assert await read_to_end(reader) == b""
        await hang_up(writer)


@pytest.mark.parametrize(
    "begin", [b"", PREFACE[:7], b"GET ", b"GET /status HTTP/1.1\r\nHost: x\r\nSlow: "]
)
async def test_a_connection_that_says_too_little_is_closed_in_time(begin: bytes) -> None:
    """A thousand of them would keep everybody else out."""
    limits = ServerLimits(sniff_timeout_s=0.05)
    async with running(server_limits=limits) as at:
        reader, writer = await raw_connection(at)
        writer.write(begin)
        assert await read_to_end(reader) == b""
        await hang_up(writer)


async def test_a_head_without_end_is_refused() -> None:
    async with running() as at:
        reader, writer = await raw_connection(at)
        writer.write(b"GET / HTTP/1.1\r\nLong: " + bytes(b"x" * (100 << 10)))
        assert (await read_to_end(reader)).startswith(b"HTTP/1.0 400")
        await hang_up(writer)


async def test_an_opening_may_come_byte_by_byte() -> None:
    async with running() as at:
        reader, writer = await raw_connection(at)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 200 OK")
        await hang_up(writer)


def held_open(limit: str) -> ServerLimits:
    """Room for two connections, in all or of one address."""
    if limit == "in all":
        return ServerLimits(connections_max=2)
    return ServerLimits(connections_per_client_max=2)


@pytest.mark.parametrize("limit", ["in all", "of one address"])
async def test_the_connection_that_is_idle_for_the_longest_time_makes_room(limit: str) -> None:
    async with running(server_limits=held_open(limit)) as at:
        first, used = await raw_connection(at), await raw_connection(at)
        await eventually(lambda: len(at.server.places) == 2)
        for each in (first, used):
            each[1].write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await each[0].readline()).startswith(b"HTTP/1.1 200")
            await each[0].readuntil(b"\r\n\r\n")
        newest = await raw_connection(at)
        assert await read_to_end(first[0]) in (b"", b"ok\n", b"ok")
        newest[1].write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await newest[0].readline()).startswith(b"HTTP/1.1 200")
        used[1].write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP/1.1 200" in await used[0].readuntil(b"\r\n\r\n")
        assert len(at.server.places) == 2
        for _, writer in (first, used, newest):
            await hang_up(writer)


@pytest.mark.parametrize("limit", ["in all", "of one address"])
@pytest.mark.parametrize("fast_lane", [True, False])
async def test_no_room_is_made_by_a_pull_or_a_write_or_a_listener(
    limit: str, *, fast_lane: bool
) -> None:
    async with running(server_limits=held_open(limit), fast_lane=fast_lane) as at:
        at.pump.gate.clear()
        pulling, writing = RawClient(), RawClient()
        for client, path, message in (
            (pulling, "/binlog.Pump/PullBinlogs", bytes(pull_request())),
            (writing, "/binlog.Pump/WriteBinlog", bytes(request(prewrite(1)))),
        ):
            await client.connect(at.host, at.port)
            client.call(message, call_headers(path))
            await client.send()
            await client.pinged()
        newest = await raw_connection(at)
        assert await read_to_end(newest[0]) == b""
        at.pump.gate.set()
        assert (await writing.wait(1))[0].is_ok
        pulling.hang_up()
        await eventually(lambda: len(at.server.places) == 1)
        listening = await raw_connection(at)
        listening[1].write(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        await listening[0].readuntil(b"event: past")
        another = await raw_connection(at)  # the one that wrote has nothing open any more
        await writing.wait_closed()
        assert writing.goaway == 0
        writing.hang_up()
        for _, writer in (newest, listening, another):
            await hang_up(writer)


async def test_strangers_make_room_before_those_who_have_written() -> None:
    async with running(server_limits=ServerLimits(connections_max=2)) as at, pump_stub(at) as stub:
        await stub.write_binlog(request(prewrite(1)))
        before: RawClient | None = None
        for _ in range(4):  # each is the newest when it comes
            client = RawClient()
            await client.connect(at.host, at.port)
            await client.pinged()
            if before is not None:
                await before.wait_closed()
                before.hang_up()
            before = client
        await stub.write_binlog(request(prewrite(2)))
        assert len(at.server.places) == 2
        client.hang_up()


async def pulling(at: Running, address: str) -> RawClient:
    """A pull that has begun, or was refused, from an address of this machine."""
    client = RawClient()
    await client.connect(at.host, at.port, local_address=address)
    client.call(bytes(pull_request()), call_headers("/binlog.Pump/PullBinlogs"))
    await client.send()
    async with asyncio.timeout(60):
        while not client.answers[1].headers:
            await client.pinged()
    return client


async def test_the_address_that_has_most_pulls_gives_one_up() -> None:
    async with running(service_limits=ServiceLimits(pullers_max=3)) as at, pump_stub(at) as stub:
        greedy = [await pulling(at, "127.0.0.2") for _ in range(3)]
        drainer = await pulling(at, "127.0.0.3")
        (gone,) = await greedy[0].wait(1)
        assert gone.headers["grpc-status"] == "8"
        assert "127.0.0.2 has more of them" in gone.headers["grpc-message"]
        again = await pulling(at, "127.0.0.2")
        assert again.answers[1].outcome == ("8", "3 streams are served already")
        assert at.service.statistics().pullers == 3
        await stub.write_binlog(request(prewrite(1)))
        await stub.write_binlog(request(commit(1, 2)))
        await eventually(lambda: at.service.statistics().binlogs_sent == 3)
        for client in (*greedy, drainer, again):
            client.hang_up()


async def test_the_pull_to_which_nothing_was_sent_for_the_longest_time_goes_first() -> None:
    async with running(service_limits=ServiceLimits(pullers_max=2)) as at, pump_stub(at) as stub:
        stuck = RawClient()
        stuck.holds_back = True
        reads = await pulling(at, "127.0.0.2")
        await stuck.connect(at.host, at.port, local_address="127.0.0.2")
        stuck.call(bytes(pull_request()), call_headers("/binlog.Pump/PullBinlogs"))
        await stuck.send()
        await eventually(lambda: at.service.statistics().pullers == 2)
        rows = bytes(100_000)  # more than the window of one who holds it back
        await stub.write_binlog(request(prewrite_binlog(Tso(1), prewrite_value=rows)))
        await stub.write_binlog(request(commit(1, 2)))
        async with asyncio.timeout(60):
            while len(reads.answers[1].data) < len(rows):
                await reads.pinged()
        newcomer = await pulling(at, "127.0.0.3")
        await reads.pinged()
        assert not reads.answers[1].is_over
        assert (await stuck.wait(1))[0].headers["grpc-status"] == "8"
        for client in (reads, stuck, newcomer):
            client.hang_up()


async def test_pulls_by_the_port_leave_the_unix_socket_its_places(tmp_path: Path) -> None:
    service = PumpService(MemoryPump(), Cluster(CLUSTER), ServiceLimits(pullers_max=1))
    server = Server([service])
    host, port = await server.start("127.0.0.1", 0, tmp_path / "s")
    async with Channel(host, port) as by_port, Channel(path=str(tmp_path / "s")) as by_socket:
        pulls = [
            asyncio.ensure_future(anext(pb.PumpStub(channel).pull_binlogs(pull_request())))
            for channel in (by_port, by_socket)
        ]
        await eventually(lambda: service.statistics().pullers == 2)
        with pytest.raises(GRPCError, match="1 streams are served already"):
            await anext(pb.PumpStub(by_port).pull_binlogs(pull_request()))
        await service.close()
        await server.close()
        for pull in pulls:
            with pytest.raises((StopAsyncIteration, StreamTerminatedError)):
                await pull


async def test_whoever_fills_the_port_leaves_the_unix_socket_its_places(tmp_path: Path) -> None:
    server = Server([], limits=ServerLimits(connections_max=2))
    host, port = await server.start("127.0.0.1", 0, tmp_path / "s")
    try:
        filled = [await asyncio.open_connection(host, port) for _ in range(3)]
        assert await filled[0][0].read() == b"", "one of its own had to go"
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"404" in await reader.readline()
        for each in (writer, *(opened for _, opened in filled)):
            await hang_up(each)
    finally:
        await server.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 100,
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xff",
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    ],
)
async def test_garbage_after_the_preface_gets_a_goaway_and_hurts_nobody(garbage: bytes) -> None:
    async with running() as at, pump_stub(at) as stub:
        await stub.write_binlog(request(prewrite(1)))
        reader, writer = await raw_connection(at)
        writer.write(PREFACE + garbage)
        answer = await read_to_end(reader)
        assert b"\x07\x00\x00\x00\x00\x00" in answer  # a GOAWAY frame's head
        await hang_up(writer)
        await stub.write_binlog(request(prewrite(2)))


async def test_an_unknown_frame_type_is_ignored() -> None:
    async with running() as at:
        reader, writer = await raw_connection(at)
        settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        unknown = b"\x00\x00\x02\x77\x00\x00\x00\x00\x00hi"
        ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh"
        writer.write(PREFACE + settings + unknown + ping)
        answer = await reader.readuntil(b"abcdefgh")
        assert b"\x00\x00\x08\x06\x01" in answer
        await hang_up(writer)


async def test_a_port_in_use_is_a_configuration_error_that_names_it() -> None:
    async with running() as at:
        second = Server([])
        with pytest.raises(ConfigError, match=f"addr: 127.0.0.1:{at.port} is in use"):
            await second.start("127.0.0.1", at.port)


async def test_an_address_that_is_not_ours_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:1"):
        await Server([]).start("192.0.2.1", 1)


async def test_closing_the_server_ends_open_calls() -> None:
    async with running() as at, pump_stub(at) as stub:
        stream = stub.pull_binlogs(pull_request())
        at.pump.source.add(*binlogs(1, 1))
        await anext(stream)
        await at.server.close()
        with pytest.raises((StreamTerminatedError, GRPCError)):
            await anext(stream)


async def test_a_message_that_ends_early_is_refused() -> None:
    async def cut_short(channel: Channel) -> None:
        async with channel.request(
            "/binlog.Pump/WriteBinlog", Cardinality.UNARY_UNARY, bytes, bytes
        ) as stream:
            await stream.send_request()
            await stream._stream.send_data(b"\x00\x00\x00\x00\x09abc", end_stream=True)
            stream._end_done = True
            await stream.recv_message()

    async with running() as at, Channel(at.host, at.port, codec=BytesCodec()) as channel:
        with pytest.raises(GRPCError) as caught:
            await cut_short(channel)
        assert caught.value.status is Status.INTERNAL
        assert caught.value.message == "unexpected EOF"
