"""How fast this machine is: syncs of its disk, writes into a Pump and pulls out of it.

A real `binlogd serve` in a process of its own, on loopback, in a directory that goes afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time  # noqa: TID251 - the loop has whole milliseconds

from binlogd.client.pump_client import RemoteSource
from binlogd.errors import PumpUnavailable, Unavailable
from binlogd.grpc.quick import QuickCalls
from binlogd.host.disk import PosixDisk
from binlogd.host.privacy import environment_of_children
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog

_CLUSTER = 1
_SYNCED_BYTES = 4096
_CONNECTIONS = 4
_WRITE = "/binlog.Pump/WriteBinlog"
_BASE = compose(1_700_000_000_000)
_PULL_S_MAX = 120.0
_HOST = "127.0.0.1"
_READY_S = 60.0
_STOP_S = 15.0
_POLL_S = 0.1
_LOG_TAIL_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure. `what` names it for machines, `meaning` for people."""

    what: str
    value: float
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long and how hard: seconds of each stage, writers at once, bytes of a prewrite's rows."""

    seconds: float = 2.0
    writers: int = 64
    row_bytes: int = 512


async def measure(
    directory: Path, wanted: Measurement, stage: Callable[[str], None]
) -> list[Measured]:
    """Measures in an empty directory; `stage` is told what is going on.

    Raises Unavailable when binlogd does not run here.
    """
    stage("syncing")
    found = [await _syncs(directory / "synced", wanted.seconds)]
    stage("starting a node")
    async with _node(directory) as (port, pid):
        stage("writing")
        writers, spent = _Writers(port, wanted), _Spent(pid)
        found += await writers.run()
        found += spent.by("write", writers.count, "binlog")
        stage("pulling")
        spent, (pulled, count) = _Spent(pid), await _pulls(port, writers.last_commit)
        found += [*pulled, *spent.by("pull", count, "transaction")]
    return found


class _Spent:
    """Processor time since it was made: of the node, and of this process, which is its client.

    What a client in Python takes of the same cores is not there for the node: its share says how
    far a rate is the client's.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin = self._now()

    def by(self, what: str, count: int, each: str) -> list[Measured]:
        """What each of them took."""
        node_s, own_s = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        share = 100 * own_s / max(own_s + node_s, 1e-9)
        return [
            Measured(
                f"{what}_cpu", node_s / count * 1e6, f"µs/{each}", "the node's processor time"
            ),
            Measured(f"{what}_client_share", share, "%", "of what both took of the processor"),
        ]

    def _now(self) -> tuple[float, float]:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), process_time()


@asynccontextmanager
async def _node(directory: Path) -> AsyncIterator[tuple[int, int]]:
    """Port and process of a `binlogd serve` that only receives, and ends with the block. Raises
    Unavailable with the end of its log."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    config, log_file = directory / "binlogd.toml", directory / "log"
    config.write_text(
        f'data-dir = {json.dumps(str(directory / "data"))}\naddr = "{_HOST}:{port}"\n'
        "[pump]\ntimestamp-ahead-max = 1000000000\n"
        'stop-write-at-available-space = "64 MiB"\n[drainer]\nenabled = false\n'
    )
    words = (sys.executable, "-m", "binlogd", "serve", "--config", str(config))
    with log_file.open("wb") as out:
        environment = environment_of_children(os.environ)
        node = await asyncio.create_subprocess_exec(*words, stdout=out, stderr=out, env=environment)
    try:
        await _answers(node, port)
        yield port, node.pid
        node.terminate()
        async with asyncio.timeout(_STOP_S):
            await node.wait()
    except TimeoutError as error:
        tail = log_file.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
        raise Unavailable(f"the node that is measured does not answer: {tail}") from error
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()


async def _answers(node: asyncio.subprocess.Process, port: int) -> None:
    """Returns when it listens, which it does last. Raises TimeoutError where it does not."""
    async with asyncio.timeout(_READY_S):
        while True:  # until it listens, has ended, or the time is over
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection(_HOST, port)
                writer.close()
                return
            if node.returncode is not None:
                raise TimeoutError
            await asyncio.sleep(_POLL_S)


async def _syncs(path: Path, seconds: float) -> Measured:
    clock = asyncio.get_running_loop().time
    with closing(PosixDisk(threads=1)) as disk:
        file = await disk.open_append(path, create=True)
        begin_s, count = clock(), 0
        while clock() - begin_s < seconds:
            await file.append([b"\0" * _SYNCED_BYTES], sync=True)
            count += 1
        took_s = clock() - begin_s
        await file.close()
    return Measured("fsync", count / took_s, "1/s", f"{_SYNCED_BYTES} bytes written and synced")


class _Writers:
    """Transactions one after the other by each of some writers, over a few connections."""

    def __init__(self, port: int, wanted: Measurement) -> None:
        self._port, self._wanted = port, wanted
        self._ts = itertools.count(_BASE + 1)
        self._rows = b"v" * wanted.row_bytes
        self._took_s: list[float] = []
        self.last_commit = NO_TS

    @property
    def count(self) -> int:
        """Binlogs that were acknowledged."""
        return len(self._took_s)

    async def run(self) -> list[Measured]:
        """Writes for `seconds` and waits for the last answer: binlogs/s, and how long a writer
        waited for one, in ms. Raises PumpUnavailable."""
        loop = asyncio.get_running_loop()
        begin_s = perf_counter()
        until_s, connections = begin_s + self._wanted.seconds, list[QuickCalls]()
        try:
            for number in range(min(_CONNECTIONS, self._wanted.writers)):
                writers = len(range(number, self._wanted.writers, _CONNECTIONS))
                made = partial(QuickCalls, _WRITE, writers, self._next(writers, until_s))
                _, calls = await loop.create_connection(made, _HOST, self._port)
                connections.append(calls)
            for calls in connections:
                await calls.over
        except OSError as error:
            raise PumpUnavailable(f"the node that is measured: {error}") from error
        finally:
            for calls in connections:
                calls.close()
        took_s = perf_counter() - begin_s
        cuts = quantiles(self._took_s, n=100)
        return [
            Measured(
                "write",
                self.count / took_s,
                "binlogs/s",
                f"WriteBinlog, {self._wanted.writers} writers at once, rows of"
                f" {self._wanted.row_bytes} bytes",
            ),
            Measured("write_p50", cuts[49] * 1000, "ms", "from asking to durable"),
            Measured("write_p99", cuts[98] * 1000, "ms", "from asking to durable"),
        ]

    def _next(self, writers: int, until_s: float) -> Callable[[int], bytes | None]:
        """What each writer of a connection sends next: a prewrite, its commit, and so on."""
        begun_s, starts = [0.0] * writers, [NO_TS] * writers

        def next_of(writer: int) -> bytes | None:
            now_s = perf_counter()
            if begun_s[writer]:
                self._took_s.append(now_s - begun_s[writer])
            begun_s[writer], start_ts = now_s, starts[writer]
            ts = Tso(next(self._ts))
            if start_ts:
                starts[writer], self.last_commit = NO_TS, max(self.last_commit, ts)
                payload = commit_binlog(start_ts, ts)
            elif now_s < until_s:
                starts[writer] = ts
                payload = prewrite_binlog(ts, prewrite_value=self._rows)
            else:
                return None
            return codec.encode_write_request(_CLUSTER, payload)

        return next_of


async def _pulls(port: int, last: Tso) -> tuple[list[Measured], int]:
    """Everything that was written, from the beginning, and how many transactions that is."""
    clock = asyncio.get_running_loop().time
    source = RemoteSource("self-test", _HOST, port, cluster_id=_CLUSTER)
    begin_s, count, size = clock(), 0, 0
    async with asyncio.timeout(_PULL_S_MAX), aclosing(source.pull(NO_TS)) as batches:
        async for pulled in batches:
            count += len(pulled.binlogs)
            size += sum(len(each.payload) for each in pulled.binlogs)
            if pulled.resolved_ts >= last:
                break
    took_s = clock() - begin_s
    return [
        Measured("pull", count / took_s, "binlogs/s", f"PullBinlogs of {count} transactions"),
        Measured("pull_bytes", size / took_s / 1e6, "MB/s", "their rows"),
    ], count
