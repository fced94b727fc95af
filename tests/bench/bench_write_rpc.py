"""Writing over loopback: what a call costs, through grpclib, through the fast lane, in batches.

Each slot writes a prewrite and then its commit; 4 shards, fdatasync on, everything behind it (peek,
log, index, watermark). The client is a second process that writes frames by hand, with the header
blocks of a Go client that sets a deadline, so that the server is what is measured. `echo` is
grpclib with a handler that answers at once. CPU is that of the server's process, threads included,
and what repeats; rates depend on who else uses the machine. In turn, best of ROUNDS.
Run: python -m tests.bench.bench_write_rpc [name of a case]
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time, time
from typing import Any, cast

import structlog
import uvloop
from grpclib.const import Cardinality, Handler
from grpclib.server import Server as GrpcServer
from grpclib.server import Stream
from hpack import Encoder

from binlogd.app import GIL_SWITCH_S
from binlogd.cli import let_young_objects_gather
from binlogd.grpc import frames
from binlogd.grpc.channel import BytesCodec
from binlogd.grpc.prefix import MessageCutter, prefixed
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.tso import Tso, compose
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.wire import batch as batch_wire
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.bench.port_load import CLUSTER, behind_port

SECONDS = 1.0
WARM_UP_SECONDS = 0.5
ROUNDS = 2
BATCH = 128
GO_PUMP_US = {200: 32.5, 1024: 39.0}
"""CPU of the Go Pump for a binlog of a prewrite and commit pair, 64 in flight, such a machine."""


@dataclass(frozen=True)
class Case:
    """What the client does; `server` is what it does it to."""

    name: str
    server: str = "fast"
    connections: int = 1
    in_flight: int = 64  # calls, or binlogs in batches
    size: int = 200  # of a prewrite
    is_batched: bool = False
    batch: int = BATCH


CASES = [
    Case("grpclib", server="grpclib"),
    Case("echo", server="echo"),
    Case("unary"),
    Case("unary_c4", connections=4),
    Case("unary_c16", connections=16),
    Case("unary_256", in_flight=256),
    Case("unary_c4_256", connections=4, in_flight=256),
    Case("unary_1k", size=1024),
    Case("unary_1k_c4", connections=4, size=1024),
    Case("unary_1k_c16", connections=16, size=1024),
    Case("unary_1k_c4_256", connections=4, in_flight=256, size=1024),
    Case("batched", in_flight=512, is_batched=True),
    Case("batched_c4", connections=4, in_flight=2048, is_batched=True),
    Case("batched_c16", connections=16, in_flight=8192, is_batched=True),
    Case("batched_1k", in_flight=512, size=1024, is_batched=True),
]


def main() -> None:
    """Prints one JSON line for each figure."""
    if len(sys.argv) > 2:
        uvloop.run(_client(int(sys.argv[1]), Case(**json.loads(sys.argv[2]))))
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sys.setswitchinterval(GIL_SWITCH_S)  # as the appliance does
    gc.freeze()
    let_young_objects_gather()
    wanted = [case for case in CASES if case.name in sys.argv[1:2] or len(sys.argv) == 1]
    uvloop.run(_measure(wanted))


async def _measure(cases: list[Case]) -> None:
    base: dict[str, float] = {}
    for case in cases:
        best: dict[str, float] = {}
        for _ in range(ROUNDS):
            async with _SERVERS[case.server]() as port:
                result = await run_client(port, case)
            cpu_us = min(result["cpu_us"], best.get("cpu_us", result["cpu_us"]))
            best = max(best, result, key=lambda one: one.get("per_s", 0)) | {"cpu_us": cpu_us}
        base = base or best
        _report(f"write_rpc_{case.name}", best["per_s"], "binlogs/s", base["per_s"])
        _report(f"write_rpc_{case.name}_cpu", best["cpu_us"], "us/binlog", base["cpu_us"])
        if case.server == "fast":
            go_us = GO_PUMP_US[case.size]
            _report(f"write_rpc_{case.name}_cpu_to_go", best["cpu_us"], "us/binlog", go_us)
        _report(f"write_rpc_{case.name}_p50", best["p50_ms"], "ms", base["p50_ms"])
        _report(f"write_rpc_{case.name}_p99", best["p99_ms"], "ms", base["p99_ms"])


def _report(bench: str, value: float, unit: str, base: float) -> None:
    line = {"bench": bench, "value": round(value, 3), "unit": unit, "ratio": round(value / base, 3)}
    print(json.dumps(line), flush=True)


async def run_client(port: int, case: Case) -> dict[str, float]:
    """Figures of one run against a port."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.bench_write_rpc",
        str(port),
        json.dumps(asdict(case)),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    await child.stdout.readline()  # warm
    begin_cpu = process_time()
    measured = json.loads(await child.stdout.readline())
    cpu_s = process_time() - begin_cpu
    await child.wait()
    assert measured["failed"] == 0, f"{measured['failed']} failed"
    return {
        "per_s": measured["binlogs"] / measured["took_s"],
        "cpu_us": cpu_s * 1e6 / measured["binlogs"],
        "p50_ms": measured["p50_ms"],
        "p99_ms": measured["p99_ms"],
    }


# --- the servers ---------------------------------------------------------------------------


class _Echo:
    def __mapping__(self) -> dict[str, Handler]:
        return {
            "/binlog.Pump/WriteBinlog": Handler(self.answer, Cardinality.UNARY_UNARY, bytes, bytes)
        }

    async def answer(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(b"")


@asynccontextmanager
async def _echo() -> AsyncIterator[int]:
    server = GrpcServer([cast(Any, _Echo())], codec=BytesCodec())
    await server.start("127.0.0.1", 0)
    sockets = cast(Any, server._server).sockets
    try:
        yield sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def pump_behind_port(*, fast_lane: bool = True) -> AsyncIterator[int]:
    """The front half of the appliance on a new data directory."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tso, disk = ObservedTso(), PosixDisk()
        store = await UpstreamStore.open(directory / "upstream.db")
        pump = await Pump.open(
            directory,
            shards=4,
            tso=tso,
            txn_status=LocalTxnStatus(tso, rolls_back_abandoned=False),
            clock=WallClock(),
            disk=disk,
            options=PumpOptions(),
        )
        cluster = await StoredClusterIdentity.open(store, CLUSTER)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump.run())
            try:
                async with behind_port(pump, cluster, fast_lane=fast_lane) as port:
                    yield port
            finally:
                await pump.close()
                await store.close()
                disk.close()


_SERVERS: dict[str, Callable[[], AbstractAsyncContextManager[int]]] = {
    "echo": _echo,
    "grpclib": lambda: pump_behind_port(fast_lane=False),
    "fast": pump_behind_port,
}


# --- the client ------------------------------------------------------------------------------

_BLOCKS = 40_000
_GREETING = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0) + frames.window_update(0, 1 << 30)


def _blocks(path: str, count: int) -> list[bytes]:
    """Header blocks of calls one after the other; the last one can be repeated.

    A deadline of 15 s is written in microseconds, another value in most calls.
    """
    seed, encoder = random.Random(1), Encoder()
    timeouts = [f"{14_999_990 - seed.randrange(120)}u" for _ in range(count)] + ["15S"] * 2
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:8250"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.75.0"),
        ("te", "trailers"),
    ]
    return [encoder.encode([*fields, ("grpc-timeout", timeout)]) for timeout in timeouts]


class _Load:
    """The binlogs that all connections write, and what became of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.took: list[tuple[float, int]] = []
        self.failed = 0
        self.is_sending = True
        self.ts = int(compose(1_700_000_000_000))
        self.blocks = _blocks("/binlog.Pump/WriteBinlog", 0 if case.is_batched else _BLOCKS)
        self.value = random.Random(1).randbytes(case.size - 40)

    def prewrite(self) -> tuple[bytes, int]:
        """A new transaction, with a timestamp as PD would give it now."""
        self.ts = max(self.ts + 1, int(compose(int(time() * 1000))))
        payload = prewrite_binlog(
            Tso(self.ts), prewrite_key=b"t_row_key", prewrite_value=self.value
        )
        return payload, self.ts

    def commit(self, start_ts: int) -> bytes:
        """Its end."""
        self.ts += 1
        return commit_binlog(Tso(start_ts), Tso(self.ts))


class _Connection(asyncio.Protocol):
    """Frames in, frames out; a subclass knows what they are about."""

    def __init__(self, load: _Load, slots: int) -> None:
        self.load = load
        self.slots = slots
        self.is_over = asyncio.Event()
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(_GREETING + self.begin())

    def begin(self) -> bytes:
        raise NotImplementedError

    def frame(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        raise NotImplementedError

    @property
    def open(self) -> int:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        at, out = 0, []
        while len(data) - at >= 9:
            word, flags, stream = frames.frame_head.unpack_from(data, at)
            stop = at + 9 + (word >> 8)
            if stop > len(data):
                break
            kind = word & 0xFF
            if kind == frames.SETTINGS and not flags:
                out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.PING and not flags:
                out.append(frames.frame(frames.PING, frames.ACK, 0, data[at + 9 : stop]))
            else:
                out.append(self.frame(kind, flags, stream, data[at + 9 : stop]))
            at = stop
        self._buffer = data[at:]
        if any(out):
            self.transport.write(b"".join(out))
        if not self.open:
            self.is_over.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.load.failed += self.open
        self.is_over.set()


class _Unary(_Connection):
    """Keeps calls in flight; an answer to a slot's prewrite is followed by its commit."""

    def begin(self) -> bytes:
        self._number = 0
        self._calls: dict[int, tuple[float, int]] = {}  # stream: begin, start_ts or 0
        self._answered: set[int] = set()
        return b"".join(self._call(0) for _ in range(self.slots))

    @property
    def open(self) -> int:
        return len(self._calls)

    def _call(self, start_ts: int) -> bytes:
        if start_ts:
            payload, start_ts = self.load.commit(start_ts), 0
        else:
            payload, start_ts = self.load.prewrite()
        number, self._number = self._number, self._number + 1
        block = self.load.blocks[min(number, len(self.load.blocks) - 1)]
        stream = 2 * number + 1
        self._calls[stream] = (perf_counter(), start_ts)
        message = prefixed(codec.encode_write_request(CLUSTER, payload))
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block) + frames.frame(
            frames.DATA, frames.END_STREAM, stream, message
        )

    def frame(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        if kind == frames.DATA:
            self._answered.add(stream)
        elif kind == frames.HEADERS and flags & frames.END_STREAM:
            begin, start_ts = self._calls.pop(stream)
            self.load.took.append((perf_counter() - begin, 1))
            self.load.failed += stream not in self._answered
            self._answered.discard(stream)
            if self.load.is_sending:
                return self._call(start_ts)
        return b""


class _Batches(_Connection):
    """Keeps batches in flight on one stream; prewrites are followed by their commits."""

    def begin(self) -> bytes:
        self._number = 0
        self._cutter = MessageCutter(1 << 20)
        self._batches: dict[int, tuple[float, list[int]]] = {}
        return frames.frame(
            frames.HEADERS, frames.END_HEADERS, 1, _blocks(batch_wire.WRITE_BATCH, 0)[0]
        ) + b"".join(self._batch([]) for _ in range(max(1, self.slots // self.load.case.batch)))

    @property
    def open(self) -> int:
        return len(self._batches)

    def _batch(self, starts: list[int]) -> bytes:
        load, payloads = self.load, []
        if starts:
            payloads, starts = [load.commit(start_ts) for start_ts in starts], []
        else:
            for _ in range(load.case.batch):
                payload, start_ts = load.prewrite()
                payloads.append(payload)
                starts.append(start_ts)
        self._number += 1
        self._batches[self._number] = (perf_counter(), starts)
        message = prefixed(
            batch_wire.encode_batch(batch_wire.Batch(self._number, CLUSTER, payloads))
        )
        return b"".join(
            frames.frame(frames.DATA, 0, 1, message[at : at + 16_384])
            for at in range(0, len(message), 16_384)
        )

    def frame(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        out = []
        if kind == frames.DATA:
            out.append(frames.window_update(1, len(body)))
            for message in self._cutter.feed(body):
                answer = batch_wire.decode_answer(message)
                begin, starts = self._batches.pop(answer.number)
                self.load.failed += len(answer.refusals)
                self.load.took.append((perf_counter() - begin, self.load.case.batch))
                if self.load.is_sending:
                    out.append(self._batch(starts))
        return b"".join(out)


async def _client(port: int, case: Case) -> None:
    loop = asyncio.get_running_loop()
    load = _Load(case)
    kind = _Batches if case.is_batched else _Unary
    connections: list[_Connection] = []
    for _ in range(case.connections):
        connection: _Connection = kind(load, max(1, case.in_flight // case.connections))
        connections.append(connection)
        await loop.create_connection(lambda made=connection: made, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.sleep(WARM_UP_SECONDS)
    print("warm", flush=True)
    load.took.clear()
    begin_s = perf_counter()
    await asyncio.sleep(SECONDS)
    took_s = perf_counter() - begin_s
    took = sorted(load.took)
    print(
        json.dumps(
            {
                "binlogs": sum(count for _, count in took),
                "took_s": took_s,
                "failed": load.failed,
                "p50_ms": took[len(took) // 2][0] * 1e3,
                "p99_ms": took[len(took) * 99 // 100][0] * 1e3,
            }
        ),
        flush=True,
    )
    load.is_sending = False
    async with asyncio.timeout(10):
        for connection in connections:
            await connection.is_over.wait()
            connection.transport.close()


if __name__ == "__main__":
    main()
