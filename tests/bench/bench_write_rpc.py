"""WriteBinlog over loopback: the whole appliance's front half against grpclib answering by itself.

64 unary calls in flight on one connection, each slot writes a prewrite of some 200 bytes and then
its commit; 4 shards, fdatasync on. The client is a second process that writes frames by hand, so
that the server is what is measured. In the same run, in turn: grpclib with a handler that answers
at once (`echo`), then the port with a Pump behind it (`pump`). CPU is that of the server's process,
threads included. Run: python -m tests.bench.bench_write_rpc
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

import uvloop
from grpclib.const import Cardinality, Handler
from grpclib.server import Server as GrpcServer
from grpclib.server import Stream

from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.pump.messages import BytesCodec
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.service import PumpService
from binlogd.server import Server
from binlogd.tso import Tso, compose
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.wire import codec, peek

IN_FLIGHT = 64
SECONDS = 2.0
WARM_UP_SECONDS = 0.5
ROUNDS = 3
VALUE_BYTES = 160
CLUSTER = 6791641053252586769


def main() -> None:
    """Prints one JSON line for each figure."""
    if len(sys.argv) > 1:
        asyncio.run(_client(int(sys.argv[1])))
        return
    uvloop.run(_measure())


async def _measure() -> None:
    best: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for name, serving in (("echo", _echo), ("pump", _pump)):
            async with serving() as port:
                result = await _run_client(port)
            if result["calls_per_s"] > best.get(name, {}).get("calls_per_s", 0):
                best[name] = result
    ratio = best["pump"]["calls_per_s"] / best["echo"]["calls_per_s"]
    for name, result in best.items():
        _report(f"write_rpc_{name}", result["calls_per_s"], "calls/s")
        _report(f"write_rpc_{name}_cpu", result["cpu_us"], "us/call")
        _report(f"write_rpc_{name}_p50", result["p50_ms"], "ms")
        _report(f"write_rpc_{name}_p99", result["p99_ms"], "ms")
    _report("write_rpc_pump_to_echo", ratio, "ratio")


def _report(bench: str, value: float, unit: str) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit}), flush=True)


async def _run_client(port: int) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bench_write_rpc", str(port), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    await child.stdout.readline()  # warm
    begin_cpu = process_time()
    measured = json.loads(await child.stdout.readline())
    cpu_s = process_time() - begin_cpu
    await child.wait()
    assert measured["failed"] == 0, f"{measured['failed']} calls failed"
    return {
        "calls_per_s": measured["calls"] / measured["took_s"],
        "cpu_us": cpu_s * 1e6 / measured["calls"],
        "p50_ms": measured["p50_ms"],
        "p99_ms": measured["p99_ms"],
    }


# --- the two servers -----------------------------------------------------------------------


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
async def _pump() -> AsyncIterator[int]:
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
        service = PumpService(pump, await StoredClusterIdentity.open(store, CLUSTER))
        server = Server([service], sinks=service.sinks())
        async with asyncio.TaskGroup() as group:
            group.create_task(pump.run())
            _, port = await server.start("127.0.0.1", 0)
            try:
                yield port
            finally:
                await service.close()
                await server.close()
                await pump.close()
                await store.close()
                disk.close()


# --- the client ------------------------------------------------------------------------------

_HEAD = struct.Struct(">IBI")
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body) << 8 | kind, flags, stream) + body


def _block() -> bytes:
    """Request headers, none of them indexed: the same bytes for every call."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/binlog.Pump/WriteBinlog"),
        (b":authority", b"127.0.0.1"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"bench"),
        (b"te", b"trailers"),
    ]
    return b"".join(
        b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )


class _Client(asyncio.Protocol):
    """Keeps calls in flight; an answer to a slot's prewrite is followed by its commit."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.failed = 0
        self.is_over = asyncio.Event()
        self._buffer = b""
        self._block = _block()
        self._stream = -1
        self._open: dict[int, tuple[float, int]] = {}  # stream: begin, start_ts or 0
        self._answered: set[int] = set()
        self._ts = compose(1_700_000_000_000)
        self._value = random.Random(1).randbytes(VALUE_BYTES)
        self._freed = 0
        self.is_sending = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 30)))
            + b"".join(self._call(0) for _ in range(IN_FLIGHT))
        )

    def _call(self, start_ts: int) -> bytes:
        self._ts = Tso(self._ts + 1)
        if start_ts:
            payload, start_ts = peek.commit_binlog(Tso(start_ts), self._ts), 0
        else:
            start_ts = self._ts
            payload = peek.prewrite_binlog(
                Tso(start_ts), prewrite_key=b"t_row_key", prewrite_value=self._value
            )
        self._stream += 2
        self._open[self._stream] = (perf_counter(), start_ts)
        message = codec.prefixed(codec.encode_write_request(CLUSTER, payload))
        return _frame(_HEADERS, 4, self._stream, self._block) + _frame(
            _DATA, 1, self._stream, message
        )

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        at, out = 0, []
        while len(data) - at >= 9:
            word, flags, stream = _HEAD.unpack_from(data, at)
            stop = at + 9 + (word >> 8)
            if stop > len(data):
                break
            kind = word & 0xFF
            if kind == _DATA:
                self._answered.add(stream)
            elif kind == _HEADERS and flags & 1:
                begin, start_ts = self._open.pop(stream)
                self.took.append(perf_counter() - begin)
                self.failed += stream not in self._answered
                self._answered.discard(stream)
                if self.is_sending:
                    out.append(self._call(start_ts))
            elif kind == _SETTINGS and not flags & 1:
                out.append(_frame(_SETTINGS, 1, 0, b""))
            elif kind == _PING and not flags & 1:
                out.append(_frame(_PING, 1, 0, data[at + 9 : stop]))
            at = stop
        self._buffer = data[at:]
        if out:
            self._transport.write(b"".join(out))
        if not self._open:
            self.is_over.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.failed += len(self._open)
        self.is_over.set()


async def _client(port: int) -> None:
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(_Client, "127.0.0.1", port)
    await asyncio.sleep(WARM_UP_SECONDS)
    print("warm", flush=True)
    client.took.clear()
    begin_s = perf_counter()
    await asyncio.sleep(SECONDS)
    took_s = perf_counter() - begin_s
    took = sorted(client.took)
    print(
        json.dumps(
            {
                "calls": len(took),
                "took_s": took_s,
                "failed": client.failed,
                "p50_ms": took[len(took) // 2] * 1e3,
                "p99_ms": took[len(took) * 99 // 100] * 1e3,
            }
        ),
        flush=True,
    )
    client.is_sending = False
    async with asyncio.timeout(10):
        await client.is_over.wait()
    transport.close()


if __name__ == "__main__":
    main()
