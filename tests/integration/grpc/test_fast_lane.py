"""The fast lane: the same answers as grpclib's, whatever comes, and who is not taken by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import hypothesis
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.settings import SettingCodes
from hypothesis import Phase
from hypothesis import strategies as st

from binlogd.binlog import CommittedBinlog
from binlogd.errors import BinlogdError, Refused
from binlogd.grpc import frames
from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.calls import Call as FastCall
from binlogd.grpc.fastlane import FastLaneProtocol
from binlogd.grpc.lane import CallSink
from binlogd.grpc.prefix import prefixed
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server, ServerLimits
from binlogd.tso import Tso
from binlogd.wire import batch, codec
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump, nothing_to_do
from tests.support.pump_world import eventually
from tests.support.raw_http2 import WRITE, Answer, RawClient, call_headers

CLUSTER = 7
LIMITS = ServiceLimits(message_bytes_max=1 << 20)


@dataclass
class Running:
    """A server, and what its fast lane was given."""

    pump: MemoryPump
    service: PumpService
    server: Server
    address: tuple[str, int]
    fast: list[bytes]
    batches: list[int]
    clients: list[RawClient] = field(default_factory=list)

    async def client(self, *, receive_buffer: int | None = None) -> RawClient:
        client = RawClient()
        await client.connect(*self.address, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(
    *,
    fast_lane: bool = True,
    pump: MemoryPump | None = None,
    limits: ServiceLimits = LIMITS,
    http2_limits: Http2Limits | None = None,
    write: Callable[[Sequence[bytes]], object] | None = None,
) -> AsyncIterator[Running]:
    pump = pump or MemoryPump()
    service = PumpService(pump, Cluster(CLUSTER), limits)
    fast: list[bytes] = []
    batches: list[int] = []
    (path, sink) = next(iter(service.sinks().items()))

    async def watched(messages: Sequence[bytes]) -> Sequence[GRPCError | None]:
        fast.extend(messages)
        batches.append(len(messages))
        if write is not None:
            write(messages)
        return await sink.write(messages)

    sinks = {path: replace(sink, write=watched)}
    server = Server(
        [service, CisternService(nothing_to_do)],
        limits=ServerLimits(http2=http2_limits or Http2Limits()),
        sinks=sinks if fast_lane else None,
    )
    address = await server.start("127.0.0.1", 0)
    at = Running(pump, service, server, address, fast, batches)
    try:
        yield at
    finally:
        pump.gate.set()
        for client in at.clients:
            client.hang_up()
        await asyncio.sleep(0)
        await service.close()
        await server.close()


def request(start_ts: int, size: int = 40, cluster: int = CLUSTER) -> bytes:
    payload = prewrite_binlog(Tso(start_ts), prewrite_value=bytes(size))
    return codec.encode_write_request(cluster, payload)


# --- the same answers in both lanes ------------------------------------------------------------

ODD_HEADERS: list[dict[str, str | None]] = [
    {"te": None},
    {"content_type": "text/plain"},
    {"content_type": None},
    {"content_type": "application/grpc+json"},
    {"_method": "GET"},
    {"grpc_timeout": "soon"},
    {"grpc_timeout": "123456789S"},
    {"grpc_encoding": "identity"},
    {"grpc_encoding": "gzip"},
    {"grpc_encoding": "snappy"},
    {"x_trace_bin": "AAEC"},
    {"x_trace": "long"},  # nearly all that is decoded
    {"_path": "/binlog.Pump/Rewind"},
    {"_path": "/binlog.Cistern/Notify"},
]


def written(changed: dict[str, str | None]) -> list[tuple[str, str]]:
    long = "a" * 7_000
    changed = {name: long if value == "long" else value for name, value in changed.items()}
    return call_headers(WRITE, **changed)


PLAIN_HEADERS: list[dict[str, str | None]] = [
    {},
    {"content_type": "application/grpc+proto"},
    {"grpc_accept_encoding": "gzip"},
    {"x_one": "1"},
]
BODIES: dict[str, bytes] = {
    "fine": prefixed(request(1)),
    "large": prefixed(request(2, 300_000)),
    "in two frames": prefixed(request(3, 20_000)),
    "above the limit": prefixed(request(4, 1 << 20)),
    "another cluster": prefixed(request(5, cluster=8)),
    "a probe": prefixed(codec.encode_write_request(CLUSTER, b"")),
    "no binlog": prefixed(codec.encode_write_request(CLUSTER, b"\x22\x05ab")),
    "no request": prefixed(b"\x12\x05a"),
    "nothing": b"",
    "an empty message": bytes(5),
    "cut short": prefixed(request(6))[:-3],
    "a prefix cut short": b"\0\0\0",
    "too long": prefixed(request(7)) + b"more",
    "two messages": prefixed(request(8)) * 2,
    "a compressed flag": b"\1" + prefixed(request(9))[1:],
}


@dataclass(frozen=True)
class Call:
    headers: dict[str, str | None]
    timeout: str
    body: str
    frames: int
    how: str


def calls() -> st.SearchStrategy[list[Call]]:
    timeouts = st.sampled_from(["", "15S", "20000m"]) | st.integers(10**7, 10**8 - 1).map(
        lambda micros: f"{micros}u"
    )
    one = st.builds(
        Call,
        headers=st.sampled_from(PLAIN_HEADERS * 3 + ODD_HEADERS),
        timeout=timeouts,
        body=st.sampled_from(["fine"] * 8 + list(BODIES)),
        frames=st.sampled_from([1, 1, 1, 2, 5]),
        how=st.sampled_from(
            ["plain"] * 8
            + ["end alone", "padded", "priority", "ping", "window", "table", "trailers", "reset"]
            + ["empty frames"]
        ),
    )
    return st.lists(one, min_size=1, max_size=12)


def frames_of(call: Call, body: bytes) -> list[bytes]:
    size = min(-(-len(body) // call.frames) or 1, 16_000)
    pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    is_interspersed = call.how == "empty frames"
    return [each for piece in pieces for each in ((b"", piece) if is_interspersed else (piece,))]


def encode(client: RawClient, call: Call) -> None:
    headers = written(call.headers)
    if call.timeout and "grpc_timeout" not in call.headers:
        headers.append(("grpc-timeout", call.timeout))
    body = BODIES[call.body]
    stream = client.h2.get_next_available_stream_id()
    client.answers[stream] = Answer()
    if call.how == "priority" and "x_trace" not in call.headers:
        client.h2.send_headers(stream, headers, priority_weight=7)
    else:
        client.h2.send_headers(stream, headers)
    if call.how == "ping":
        client.h2.ping(b"abcdefgh")
    elif call.how == "window":
        client.h2.increment_flow_control_window(1000, stream)
    elif call.how == "table":
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 5 + len(body) % 9})
    if call.how == "reset":
        client.h2.send_data(stream, body[:3])
        client.h2.reset_stream(stream)
        del client.answers[stream]
        return
    pieces = frames_of(call, body)
    ends_alone = call.how in ("end alone", "trailers")
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1 and not ends_alone
        padding = 9 if call.how == "padded" else None
        client.h2.send_data(stream, piece, end_stream=is_last, pad_length=padding)
    if call.how == "end alone":
        client.h2.end_stream(stream)
    elif call.how == "trailers":
        client.h2.send_headers(stream, [("x-checksum", "1")], end_stream=True)


def summary(answer: Answer) -> tuple[object, ...]:
    headers = answer.headers
    return headers.get(":status"), *answer.outcome, answer.data, answer.reset, answer.is_over


async def answers_of(list_of_calls: list[Call], cuts: list[int], *, fast_lane: bool) -> object:
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        client.h2.outbound_flow_control_window = 1 << 30  # what the server gives, and more
        client.h2.remote_settings[SettingCodes.INITIAL_WINDOW_SIZE] = 1 << 22
        client.h2.remote_settings.acknowledge()
        for call in list_of_calls:
            encode(client, call)
        await client.send(cuts=cuts)
        await client.wait()
        stored = sorted(at.pump.stored)
        return {s: summary(a) for s, a in client.answers.items()}, client.goaway, stored


@hypothesis.settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(calls(), st.lists(st.sampled_from([1, 7, 100, 1000, 50_000]), max_size=3))
@hypothesis.example(  # an answer in several frames, and then a window that is smaller than one
    [
        Call({"x_trace": "long"}, "", "fine", frames=2, how="window"),
        Call({"x_trace_bin": "AAEC"}, "", "two messages", frames=1, how="end alone"),
        Call({"grpc_encoding": "gzip"}, "", "fine", frames=1, how="empty frames"),
        Call({"x_trace": "long"}, "", "a probe", frames=1, how="priority"),
        Call({"x_one": "1"}, "", "fine", frames=1, how="table"),
        Call({"grpc_encoding": "identity"}, "", "no binlog", frames=1, how="plain"),
    ],
    [7],
)
def test_a_call_gets_the_same_answer_in_either_lane(made: list[Call], cuts: list[int]) -> None:
    if sum(len(BODIES[call.body]) for call in made) > 100_000:
        cuts = [max(size, 1000) for size in cuts]
    with asyncio.Runner() as runner:
        fast = runner.run(answers_of(made, cuts, fast_lane=True))
        plain = runner.run(answers_of(made, cuts, fast_lane=False))
    assert fast == plain


# --- who is taken ------------------------------------------------------------------------------


async def test_calls_as_a_go_client_writes_them_are_taken_and_share_batches() -> None:
    async with running() as at:
        client, other = await at.client(), await at.client()
        for number in range(1, 41):
            timeout = [("grpc-timeout", f"{14_999_000 + number}u")]
            client.call(request(number), call_headers() + timeout)
        other.call(request(99))
        await client.send()
        await other.send()
        assert all(answer.is_ok for answer in await client.wait() + await other.wait())
        assert len(at.fast) == 41
        assert len(at.batches) < 10
        assert len(at.pump.stored) == 41


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        ("fine", True),
        ("in two frames", True),
        ("another cluster", True),
        ("a probe", True),
        ("no request", True),
        ("an empty message", True),
        ("large", True),
        ("above the limit", False),
        ("nothing", False),
        ("cut short", False),
        ("too long", False),
        ("a compressed flag", False),
    ],
)
async def test_what_is_odd_about_a_body_is_for_grpclib(body: str, is_taken: bool) -> None:  # noqa: FBT001
    async with running() as at:
        client = await at.client()
        client.h2.outbound_flow_control_window = 1 << 30
        client.h2.remote_settings[SettingCodes.INITIAL_WINDOW_SIZE] = 1 << 22
        client.h2.remote_settings.acknowledge()
        stream = client.open()
        client.body(stream, BODIES[body])
        await client.send()
        (answer,) = await client.wait()
        assert answer.is_over
        assert bool(at.fast) is is_taken
        again = client.call(request(50))
        await client.send()
        assert (await client.wait(again))[0].is_ok


async def test_a_message_above_half_the_window_of_its_stream_is_for_grpclib() -> None:
    async with running(http2_limits=Http2Limits(stream_window_bytes=400_000)) as at:
        client = await at.client()
        await client.pinged()
        for size, is_taken in (190_000, True), (210_000, False):
            at.fast.clear()
            stream = client.call(request(size, size))
            await client.send()
            assert (await client.wait(stream))[0].is_ok
            assert bool(at.fast) is is_taken


@pytest.mark.parametrize(
    "changed", [*ODD_HEADERS, {"content_length": str(len(prefixed(request(1))))}], ids=str
)
async def test_what_is_odd_about_headers_is_for_grpclib(changed: dict[str, str | None]) -> None:
    async with running() as at:
        client = await at.client()
        stream = client.call(request(1), written(changed))
        await client.send()
        await client.wait(stream)
        assert at.fast == []
        again = client.call(request(2))
        await client.send()
        assert (await client.wait(again))[0].is_ok


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
@pytest.mark.parametrize("wrong", [{"_path": None}, {"content_length": "5"}], ids=str)
async def test_headers_that_cannot_be_end_the_connection(
    wrong: dict[str, str | None], *, fast_lane: bool
) -> None:
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        client.call(request(1), written(wrong))
        await client.send()
        await client.wait_closed()
        assert client.goaway == frames.PROTOCOL_ERROR


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
@pytest.mark.parametrize("time_left", ["0S", "0m", "000m", "0000000u", "1n", "9u"])
async def test_a_call_whose_time_is_over_at_once_is_no_fault_of_ours(
    time_left: str, caplog: pytest.LogCaptureFixture, *, fast_lane: bool
) -> None:
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        stream = client.call(request(1), written({"grpc_timeout": time_left}))
        await client.send()
        (answer,) = await client.wait(stream)
    assert answer.headers["grpc-status"] in ("0", str(Status.DEADLINE_EXCEEDED.value))
    assert caplog.text == ""


async def test_a_call_that_is_reset_just_when_its_answer_can_go_out_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch is answered by a task of its own, which runs once more before it is cancelled."""
    message = batch.encode_batch(batch.Batch(1, CLUSTER, [prewrite_binlog(Tso(1))]))
    async with running() as at:
        client = await at.client()
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream = client.open(call_headers(batch.WRITE_BATCH))
        client.body(stream, prefixed(message), ends=False)
        await client.send()
        await eventually(lambda: bool(at.pump.stored))
        await client.pinged()
        client.h2.increment_flow_control_window(100, stream)
        client.h2.reset_stream(stream)
        await client.send()
        await client.pinged()
    assert caplog.text == ""


WRONG_TRAILERS = {
    "no end": ([("x-test", "ok")], 0),
    "a pseudo-header and no end": ([(":method", "POST")], 0),
    "a pseudo-header": ([(":method", "POST")], frames.END_STREAM),
}


def trailers_of(client: RawClient, stream: int, wrong: str) -> bytes:
    fields, flags = WRONG_TRAILERS[wrong]
    block = client.h2.encoder.encode(fields)
    return frames.frame(frames.HEADERS, frames.END_HEADERS | flags, stream, block)


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
@pytest.mark.parametrize("wrong", WRONG_TRAILERS)
@pytest.mark.parametrize("cuts", [[], [1], [7]], ids=str)
async def test_trailers_that_cannot_be_end_the_connection_however_they_come(
    cuts: list[int], wrong: str, *, fast_lane: bool
) -> None:
    """Source: RFC 9113, 8.1."""
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        stream = client.open()
        client.body(stream, prefixed(request(1))[:-1], ends=False)
        await client.send(client.taken() + trailers_of(client, stream, wrong), cuts)
        await client.wait_closed()
        assert client.goaway == frames.PROTOCOL_ERROR
        assert not at.pump.stored


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
@pytest.mark.parametrize("wrong", WRONG_TRAILERS)
async def test_what_follows_on_a_call_that_was_no_grpc_and_is_answered_costs_the_others_nothing(
    wrong: str, *, fast_lane: bool
) -> None:
    """Its stream is closed, and is reset for each frame. Source: RFC 9113, 5.1 and 8.1. So it is
    with two cases of h2spec where the answer comes first."""
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        stream = client.open(written({"content_type": None}))
        await client.send()
        assert (await client.wait(stream))[0].headers[":status"] == "415"
        await client.send(frames.frame(frames.DATA, 0, stream, b"test"))
        await client.send(trailers_of(client, stream, wrong))
        again = client.call(request(2))
        await client.send()
        assert (await client.wait(again))[0].is_ok


async def test_a_body_in_frames_of_one_byte_and_an_end_alone_are_taken() -> None:
    async with running() as at:
        client = await at.client()
        stream = client.open()
        for byte in prefixed(request(1)):
            client.h2.send_data(stream, bytes([byte]))
        client.h2.end_stream(stream)
        await client.send()
        assert (await client.wait())[0].is_ok
        assert at.fast == [request(1)]


async def test_a_prefix_in_two_frames_before_one_as_large_as_may_be_is_cut_off() -> None:
    async with running() as at:
        client = await at.client()
        stream, whole = client.open(), prefixed(request(1, 40_000))
        for begin, end in ((0, 0), (0, 2), (2, 2 + frames.FRAME_BYTES_MAX), (16_386, len(whole))):
            client.body(stream, whole[begin:end], ends=end == len(whole))
        await client.send()
        assert (await client.wait())[0].is_ok
        assert at.fast == [request(1, 40_000)]


@pytest.mark.parametrize("much_bytes", [20, 1 << 16])
async def test_large_messages_of_several_calls_are_whole_however_their_frames_come(
    monkeypatch: pytest.MonkeyPatch, much_bytes: int
) -> None:
    monkeypatch.setattr("binlogd.grpc.fastlane._MUCH_BYTES", much_bytes)
    async with running() as at:
        client = await at.client()
        await client.pinged()
        made = {client.open(): request(number, 300_000) for number in (1, 2, 3)}
        for begin in range(0, 310_000, 7_000):
            for stream, message in made.items():
                piece = prefixed(message)[begin : begin + 7_000]
                if piece:
                    client.body(stream, piece, ends=begin + 7_000 >= len(message) + 5)
        await client.send(cuts=(1, 8, 30, 100_003, 7_000, 250_000))
        assert all(answer.is_ok for answer in await client.wait(*made))
        assert sorted(at.fast) == sorted(made.values())


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
@pytest.mark.parametrize(
    ("increment", "error"),
    [(0, frames.PROTOCOL_ERROR), (frames.WINDOW_BYTES_MAX, frames.FLOW_CONTROL_ERROR)],
)
async def test_a_window_of_the_connection_that_cannot_be_ends_it(
    fast_lane: bool,  # noqa: FBT001
    increment: int,
    error: int,
) -> None:
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        await client.pinged()
        await client.send(frames.window_update(0, increment))
        await client.wait_closed()
        assert client.goaway == error


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
async def test_an_empty_frame_is_not_the_end_of_a_message(fast_lane: bool) -> None:  # noqa: FBT001
    async with running(fast_lane=fast_lane) as at:
        client = await at.client()
        stream = client.open()
        for begin in range(0, len(BODIES["fine"]), 9):
            client.h2.send_data(stream, b"")
            client.h2.send_data(stream, BODIES["fine"][begin : begin + 9])
        client.h2.end_stream(stream)
        await client.send()
        assert (await client.wait(stream))[0].is_ok


async def test_a_table_made_smaller_is_for_grpclib_from_then_on() -> None:
    async with running() as at:
        client = await at.client()
        client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 100})
        client.call(request(1))
        await client.send()
        assert (await client.wait())[0].is_ok
        assert at.fast == []


async def test_a_message_that_finds_no_room_is_for_grpclib_which_waits() -> None:
    async with running(limits=replace(LIMITS, bytes_in_flight_max=300)) as at:
        at.pump.gate.clear()
        client = await at.client()
        client.call(request(1, 200))
        await client.send()
        await eventually(lambda: len(at.fast) == 1)
        client.call(request(2, 200))
        await client.send()
        await eventually(lambda: at.service.statistics().writes_held_back == 1)
        at.pump.gate.set()
        assert all(answer.is_ok for answer in await client.wait())
        assert at.fast == [request(1, 200)]


class Wordy(MemoryPump):
    """Refuses everything, at length."""

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        return [Refused("100 % schön\n" * 2000)] * len(payloads)


# --- ends of calls -----------------------------------------------------------------------------


async def test_a_call_that_is_reset_before_its_end_is_not_written() -> None:
    async with running() as at:
        client = await at.client()
        stream = client.open()
        client.body(stream, prefixed(request(1))[:20], ends=False)
        client.h2.reset_stream(stream)
        await client.send()
        await client.pinged()
        assert at.pump.stored == []


async def test_a_call_that_is_reset_after_its_end_is_written_and_not_answered() -> None:
    async with running() as at:
        at.pump.gate.clear()
        client = await at.client()
        stream = client.call(request(1))
        await client.send()
        await eventually(lambda: len(at.fast) == 1)
        client.h2.reset_stream(stream)
        later = client.call(request(2))
        await client.send()
        await client.pinged()
        at.pump.gate.set()
        assert (await client.wait(later))[0].is_ok
        assert client.answers[stream] == Answer()
        assert len(at.pump.stored) == 2


async def test_data_after_the_end_resets_the_stream_alone() -> None:
    async with running() as at:
        at.pump.gate.clear()
        client = await at.client()
        stream, other = client.call(request(1)), client.call(request(2))
        await client.send(client.taken() + frames.frame(frames.DATA, 0, stream, b"more"))
        await eventually(lambda: len(at.fast) == 2)
        at.pump.gate.set()
        first, second = await client.wait(stream, other)
        assert first.reset == frames.STREAM_CLOSED
        assert second.is_ok


async def test_a_window_update_of_nothing_resets_the_stream_alone() -> None:
    async with running() as at:
        client = await at.client()
        stream, other = client.open(), client.call(request(2))
        await client.send(client.taken() + frames.window_update(stream, 0))
        first, second = await client.wait(stream, other)
        assert first.reset == frames.PROTOCOL_ERROR
        assert second.is_ok


async def test_a_sink_that_breaks_is_an_unknown_error_and_the_next_call_is_served() -> None:
    def broken(messages: Sequence[bytes]) -> None:
        if messages == [request(1)]:
            raise ValueError("a bug")

    async with running(write=broken) as at:
        client = await at.client()
        client.call(request(1))
        await client.send()
        (answer,) = await client.wait()
        assert answer.outcome == ("2", "Internal Server Error")
        again = client.call(request(2))
        await client.send()
        assert (await client.wait(again))[0].is_ok


async def test_a_fault_in_the_answer_of_one_connection_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken: list[FastLaneProtocol] = []
    acknowledge = FastLaneProtocol.acknowledge

    def acknowledged(protocol: FastLaneProtocol, calls: list[FastCall]) -> None:
        broken.append(protocol)
        if protocol is broken[0]:
            raise ValueError("a bug")
        acknowledge(protocol, calls)

    monkeypatch.setattr(FastLaneProtocol, "acknowledge", acknowledged)
    async with running() as at:
        at.pump.gate.clear()
        first, second = await at.client(), await at.client()
        first.call(request(1))
        await first.send()
        await eventually(lambda: at.batches == [1])
        second.call(request(2))
        await second.send()
        at.pump.gate.set()
        assert (await second.wait())[0].is_ok
        assert len(at.pump.stored) == 2


async def test_a_message_of_an_error_is_written_as_grpc_writes_it() -> None:
    async with running(pump=Wordy()) as at, running(pump=Wordy(), fast_lane=False) as plain:
        outcomes = []
        for each in (at, plain):
            client = await each.client()
            client.call(request(1))
            await client.send()
            outcomes.append((await client.wait())[0].outcome)
        assert outcomes[0] == outcomes[1]
        assert str(outcomes[0][1]).startswith("100 %25 sch%C3%B6n%0A")


# --- limits ------------------------------------------------------------------------------------


async def test_answers_wait_for_the_window_of_the_connection() -> None:
    async with running() as at:
        large = prewrite_binlog(Tso(1), prewrite_value=bytes(100_000))
        at.pump.source.add(CommittedBinlog(Tso(1), Tso(2), large))
        client = await at.client()
        client.holds_back = True
        pull = client.call(
            codec.encode_pull_request(CLUSTER, Tso(0)), call_headers("/binlog.Pump/PullBinlogs")
        )
        await client.send()
        while len(client.answers[pull].data) < 65_535:  # the window of a connection at first
            await client.pinged()
        writes = [client.call(request(number)) for number in (1, 2, 3)]
        await client.send()
        await eventually(lambda: len(at.pump.stored) == 3)
        await client.pinged()
        assert not any(client.answers[stream].is_over for stream in writes)
        client.h2.increment_flow_control_window(12)
        await client.send()
        await client.pinged()
        assert sum(client.answers[stream].is_ok for stream in writes) == 2
        client.h2.increment_flow_control_window(5)
        await client.send()
        assert all(answer.is_ok for answer in await client.wait(*writes))
        assert len(at.fast) == 3


async def test_a_ping_of_who_writes_is_answered_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("binlogd.grpc.pongs._PONG_S", 3_600)
    async with running() as at:
        client, silent = await at.client(), await at.client()
        first = client.call(request(1))
        await client.send()
        assert (await client.wait(first))[0].is_ok
        client.h2.ping(b"abcdefgh")
        client.h2.update_settings({SettingCodes.MAX_FRAME_SIZE: 20_000})
        await client.send()
        assert "PingAckReceived" not in await client.names_until("SettingsAcknowledged")
        second = client.call(request(2))
        await client.send()
        names = await client.names_until("PingAckReceived")
        assert names.index("StreamEnded") < names.index("PingAckReceived")
        assert client.answers[second].is_ok
        await silent.pinged()  # at once


async def test_an_answer_waits_for_the_window_of_its_stream() -> None:
    async with running() as at:
        client = await at.client()
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        first, second = client.call(request(1)), client.call(request(2))
        await client.send()
        await eventually(lambda: len(at.pump.stored) == 2)
        await client.pinged()
        assert not client.answers[first].is_over
        client.h2.increment_flow_control_window(5, first)
        await client.send()
        assert (await client.wait(first))[0].is_ok
        assert not client.answers[second].is_over
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 9})
        client.h2.increment_flow_control_window(9, second)  # h2 gives room only after the answer
        await client.send(client.taken()[:15])
        assert (await client.wait(second))[0].is_ok
        assert len(at.fast) == 2


async def test_who_sends_more_than_the_window_allows_is_sent_away() -> None:
    limits = Http2Limits(connection_window_bytes=100_000)
    async with running(http2_limits=limits) as at:
        at.pump.gate.clear()
        client = await at.client()
        client.h2.outbound_flow_control_window = 1 << 30
        for number in range(1, 9):
            client.call(request(number, 15_000))
        await client.send()
        await client.wait_closed()
        assert client.goaway == frames.FLOW_CONTROL_ERROR


async def test_the_window_comes_back_when_binlogs_are_durable() -> None:
    limits = Http2Limits(connection_window_bytes=100_000)
    async with running(http2_limits=limits) as at:
        client = await at.client()
        await client.pinged()  # the greeting is here, and with it the window
        for number in range(1, 101):
            while client.h2.outbound_flow_control_window < 15_100:
                await client._receive()
            client.call(request(number, 15_000))
            await client.send()
        assert all(answer.is_ok for answer in await client.wait())
        assert len(at.fast) == 100


async def test_messages_that_come_beside_each_other_may_be_more_than_the_window() -> None:
    """Else each has a part of it, and none the rest."""
    limits = Http2Limits(connection_window_bytes=100_000)
    async with running(http2_limits=limits) as at:
        client = await at.client()
        await client.pinged()
        message = prefixed(request(1, 60_000))
        streams = [client.open() for _ in range(6)]
        for begin in range(0, len(message), 10_000):
            for stream in streams:
                while client.h2.outbound_flow_control_window < 10_000:
                    await client._receive()
                piece = message[begin : begin + 10_000]
                client.body(stream, piece, ends=begin + 10_000 >= len(message))
                await client.send()
        assert all(answer.is_ok for answer in await client.wait(*streams))
        assert at.fast == [request(1, 60_000)] * 6
        await eventually(lambda: client.h2.outbound_flow_control_window > 0)


async def test_what_was_given_back_of_a_message_is_not_given_back_again() -> None:
    """A call that is begun, given up or handed to grpclib in its middle: the peer's window is never
    larger than at the beginning."""
    limits = Http2Limits(connection_window_bytes=100_000)
    async with running(http2_limits=limits) as at:
        client = await at.client()
        await client.pinged()
        message = prefixed(request(1, 60_000))
        for how in ("reset", "odd") * 4:
            stream = client.open()
            for begin in range(0, 50_000, 10_000):
                client.body(stream, message[begin : begin + 10_000], ends=False)
            if how == "reset":
                client.h2.reset_stream(stream)
            else:
                client.body(stream, b"", ends=True)
            await client.send()
            await client.pinged()
            assert client.h2.outbound_flow_control_window <= 100_000
        while client.h2.outbound_flow_control_window < 60_000:
            await client._receive()
        last = client.call(request(2, 50_000))
        await client.send()
        assert (await client.wait(last))[0].is_ok


async def test_a_ping_is_answered_though_no_call_is() -> None:
    async with running() as at:
        at.pump.gate.clear()
        client = await at.client()
        stream = client.call(request(1))
        await client.send()
        for _ in range(3):
            await client.pinged()
        assert at.fast == [request(1)]
        assert not client.answers[stream].is_over
        at.pump.gate.set()
        assert (await client.wait(stream))[0].is_ok


async def test_more_streams_than_allowed_are_refused_one_by_one() -> None:
    async with running(http2_limits=Http2Limits(streams_max=10)) as at:
        at.pump.gate.clear()
        client = await at.client()
        streams = [client.call(request(number)) for number in range(1, 16)]
        await client.send()
        await eventually(lambda: len(at.fast) == 10)
        refused = await client.wait(*streams[10:])
        assert {answer.reset for answer in refused} == {frames.REFUSED_STREAM}
        at.pump.gate.set()
        assert all(answer.is_ok for answer in await client.wait(*streams[:10]))


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])
async def test_what_all_connections_leave_unread_has_a_limit_together(fast_lane: bool) -> None:  # noqa: FBT001
    """Each of them stays within its windows. The one that holds most of it is sent away, and
    whoever writes meanwhile does not notice."""
    limits = Http2Limits(unread_bytes_max=1_000_000)
    async with running(fast_lane=fast_lane, http2_limits=limits) as at:
        pullers = [await at.client() for _ in range(3)]
        for puller, extra in zip(pullers, (250_000, 600_000, 250_000), strict=True):
            await puller.pinged()  # the greeting is here, and with it the windows
            stream = puller.open(call_headers("/binlog.Pump/PullBinlogs"))
            pull = prefixed(codec.encode_pull_request(CLUSTER, Tso(0)))
            puller.body(stream, pull + bytes(extra), ends=False)
            await puller.send()
            if puller is not pullers[2]:
                await puller.pinged()
        await pullers[1].wait_closed()
        assert pullers[1].goaway == 11  # ENHANCE_YOUR_CALM
        for other in (pullers[0], pullers[2], await at.client()):
            await other.pinged()
            stream = other.call(request(1, 300_000))
            await other.send()
            assert (await other.wait(stream))[0].is_ok
        assert at.service.statistics().pullers == 2
        for puller in pullers:
            puller.hang_up()
        await eventually(lambda: at.server._grpc._unread.size == 0)


@pytest.mark.parametrize("encoding", [None, "gzip"])
async def test_a_message_that_does_not_arrive_gives_its_room_back(encoding: str | None) -> None:
    """Whoever announces much and sends nothing would keep all others from writing."""
    limits = replace(LIMITS, bytes_in_flight_max=1 << 20, arrival_s=1.0)
    async with running(limits=limits) as at:
        client, other = await at.client(), await at.client()
        headers = call_headers(grpc_encoding=encoding) if encoding else call_headers()
        slow = client.open(headers)
        prefix = bytes([encoding is not None]) + (1 << 20).to_bytes(4, "big")
        client.body(slow, prefix + b"a little", ends=False)
        await client.send()
        await eventually(lambda: at.service.statistics().bytes_in_flight > 1 << 20)
        stream = other.call(request(1))
        await other.send()
        assert (await other.wait(stream))[0].is_ok
        (answer,) = await client.wait(slow)
        assert answer.outcome[0] == str(Status.DEADLINE_EXCEEDED.value)
        assert at.service.statistics().bytes_in_flight == 0


async def test_a_message_in_pieces_has_its_room_from_its_announcement_on() -> None:
    """What many connections have begun and not ended counts as what is written does."""
    limits = replace(LIMITS, bytes_in_flight_max=500_000, bytes_waiting_max=1, arrival_s=60.0)
    async with running(limits=limits) as at:
        message = prefixed(request(1, 100_000))
        clients = [await at.client() for _ in range(5)]
        streams = []
        for client in clients:
            streams.append(client.open())
            client.body(streams[-1], message[:10], ends=False)
            await client.send()
            await client.pinged()
        assert 400_000 < at.service.statistics().bytes_in_flight <= 500_000
        late = clients[4]
        await late.send()
        (refused,) = await late.wait(streams[4])
        assert refused.outcome[0] == str(Status.UNAVAILABLE.value)
        for client, stream in list(zip(clients, streams, strict=True))[:4]:
            client.body(stream, message[10:])
            await client.send()
            assert (await client.wait(stream))[0].is_ok
        assert at.fast == [request(1, 100_000)] * 4
        assert at.service.statistics().bytes_in_flight == 0


async def test_what_was_begun_and_does_not_come_gives_its_room_back() -> None:
    limits = replace(LIMITS, bytes_in_flight_max=1 << 20, arrival_s=1.0)
    async with running(limits=limits) as at:
        client = await at.client()
        reset, lost, slow = client.open(), client.open(), client.open()
        for stream in (reset, lost, slow):
            client.body(stream, prefixed(request(1, 100_000))[:10], ends=False)
        await client.send()
        await client.pinged()
        assert at.service.statistics().bytes_in_flight > 300_000
        client.h2.reset_stream(reset)
        await client.send()
        (answer,) = await client.wait(slow)
        assert answer.outcome[0] == str(Status.DEADLINE_EXCEEDED.value)
        assert at.fast == []
        client.hang_up()
        await eventually(lambda: at.service.statistics().bytes_in_flight == 0)


@pytest.mark.parametrize("fast_lane", [True, False], ids=["fast", "grpclib"])
@pytest.mark.parametrize("said", [b"", b"\0\0"], ids=["nothing", "half a prefix"])
@pytest.mark.parametrize("path", [WRITE, "/binlog.Pump/PullBinlogs"], ids=["a write", "a pull"])
async def test_a_call_that_is_begun_and_left_is_ended(
    path: str, said: bytes, *, fast_lane: bool
) -> None:
    """Else each of them keeps one of the connection's streams for ever."""
    limits = replace(LIMITS, arrival_s=0.1)
    async with running(limits=limits, fast_lane=fast_lane) as at:
        client = await at.client()
        left = client.open(call_headers(path))
        if said:
            client.body(left, said, ends=False)
        await client.send()
        (answer,) = await client.wait(left)
        assert answer.outcome[0] == str(Status.DEADLINE_EXCEEDED.value)
        assert (answer.outcome[1] or "").startswith("no whole message came within")
        assert at.fast == []
        stream = client.call(request(1))
        await client.send()
        assert (await client.wait(stream))[0].is_ok, "the connection is as good as before"
        assert at.service.statistics().bytes_in_flight == 0


async def test_calls_that_are_reset_count_as_long_as_somebody_works_on_them() -> None:
    """Else a peer that resets all it sends could have any number of them written at once."""
    async with running(http2_limits=Http2Limits(streams_max=10)) as at:
        at.pump.gate.clear()
        client = await at.client()
        for number in range(1, 31):
            client.h2.reset_stream(client.call(request(number)))
        await client.send()
        await client.pinged()
        assert len(at.fast) == 10
        at.pump.gate.set()
        await eventually(lambda: len(at.pump.stored) == 10)
        streams = [client.call(request(number)) for number in range(31, 41)]
        await client.send()
        assert all(answer.is_ok for answer in await client.wait(*streams))


async def test_a_peer_that_does_not_read_is_not_read() -> None:
    """Its answers would pile up here; and what it sends stays in its own socket."""
    async with running(pump=Wordy()) as at:
        client = await at.client(receive_buffer=4096)
        assert client._writer is not None
        stream = client.call(request(1, 4))
        opening = client.taken()
        written = bytearray(_calls_in(opening))
        client._writer.write(opening)
        written_before = -1
        while at.service.statistics().writes > written_before:  # until it takes nothing more
            written_before = at.service.statistics().writes
            batch = []
            for _ in range(500):
                stream += 2
                batch.append(_renumbered(written, stream))
            client._writer.write(b"".join(batch))
            await asyncio.sleep(0.1)
        assert at.service.statistics().writes < (stream - 1) // 2


def _calls_in(opening: bytes) -> bytes:
    """The frames after the greeting."""
    at = len(frames.PREFACE)
    while at < len(opening):
        word, _, stream = frames.frame_head.unpack_from(opening, at)
        if stream:
            return opening[at:]
        at += 9 + (word >> 8)
    return b""


def _renumbered(written: bytearray, stream: int) -> bytes:
    at = 0
    while at < len(written):
        word, flags, _ = frames.frame_head.unpack_from(written, at)
        frames.frame_head.pack_into(written, at, word, flags, stream)
        at += 9 + (word >> 8)
    return bytes(written)


def test_a_path_without_a_service_is_a_mistake() -> None:
    async def make() -> None:
        service = PumpService(MemoryPump(), Cluster(CLUSTER))
        sink = service.sinks()[WRITE.encode()]
        with pytest.raises(AssertionError, match="no service has"):
            Server([service], sinks={b"/binlog.Pump/Nothing": sink})

    asyncio.run(make())


def test_a_sink_is_what_the_service_offers() -> None:
    async def make() -> None:
        service = PumpService(MemoryPump(), Cluster(CLUSTER), LIMITS)
        (sink,) = service.sinks().values()
        assert isinstance(sink, CallSink)
        assert sink.message_bytes_max == LIMITS.message_bytes_max
        assert sink.room() == LIMITS.bytes_in_flight_max

    asyncio.run(make())
