"""A node beside the Go Pump, row by row: writes, a pull of all, memory, a start after kill -9.

Published figures of the Go Pump stand beside each (`published`: 2 cores, a client in Go, of another
day). With a peer they are measured in turns in this run: any server that speaks the Pump's service
on this machine, in a directory that may be written to. CPU is that of the server, from /proc.

    python -m tests.bench.bench_table
    python -m tests.bench.bench_table --peer 127.0.0.1:8250 --peer-pid 4711 --cluster 1

Commits to pullers are `bench_lag`, the Drainer's rows `bench_apply`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop

from binlogd.client.pump_client import RemoteSource
from binlogd.grpc.quick import QuickCalls
from binlogd.telemetry.logs import set_up_logging
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire import codec, peek
from tests.bench.pump_load import report
from tests.support.machine import Appliance

SECONDS, TURNS = 1.0, 3


class Case(NamedTuple):
    """A load, and what is published of the Go Pump under it."""

    name: str
    connections: int
    in_flight: int
    size: int
    published: str


CASES = [
    Case("one_in_flight", 1, 1, 200, "1.9 to 2.1 k/s, p50 0.44 ms, p99 0.8, 330 to 375 us"),
    Case("64_on_1", 1, 64, 200, "20.4 to 24.4 k/s, p50 2.3 ms, 37 to 44 us"),
    Case("64_on_4", 4, 64, 200, "19.7 to 22.5 k/s, p50 2.5 ms, 40 to 46 us"),
    Case("64_on_16", 16, 64, 200, "18.5 to 18.8 k/s, p50 3.0 ms, 49 us"),
    Case("64_on_64", 64, 64, 200, "none"),
    Case("256_on_4", 4, 256, 200, "26.4 to 27.7 k/s, p50 8.4 ms, 33 to 35 us"),
    Case("1_kb", 1, 64, 1_000, "17.9 to 20.6 k/s, 41 to 49 us"),
    Case("16_kb", 1, 64, 16_000, "9.0 to 10.1 k/s, 78 to 85 us"),
    Case("1_mb", 1, 8, 1 << 20, "384 to 396 /s, 1,680 to 1,830 us"),
]


class Server(NamedTuple):
    """Whom the calls go to."""

    name: str
    host: str
    port: int
    pid: int
    cluster: int


class Turn(NamedTuple):
    """What one turn gave."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Clock:
    """Timestamps as a PD would give them now, each larger than the one before."""

    def __init__(self) -> None:
        self.last = NO_TS
        self.commits: dict[str, Tso] = {}  # the last one of each server

    def next(self) -> Tso:
        """The next one."""
        self.last = Tso(max(self.last + 1, compose(int(time.time() * 1000))))
        return self.last


def cpu_s(pid: int) -> float:
    """Processor time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def written(server: Server, case: Case, clock: Clock, seconds: float) -> Turn:
    """Prewrites and their commits, each slot one call at a time, for so long."""
    took_s: list[float] = []
    value, until_s = os.urandom(case.size - 40), time.perf_counter() + seconds

    def writer(slots: int) -> Callable[[int], bytes | None]:
        begun_s, starts = [0.0] * slots, [NO_TS] * slots

        def next_of(slot: int) -> bytes | None:
            now_s = time.perf_counter()
            if begun_s[slot]:
                took_s.append(now_s - begun_s[slot])
            begun_s[slot], start_ts, ts = now_s, starts[slot], clock.next()
            if start_ts:
                starts[slot], clock.commits[server.name] = NO_TS, ts
                payload = peek.commit_binlog(start_ts, ts)
            elif now_s < until_s:
                starts[slot] = ts
                payload = peek.prewrite_binlog(ts, prewrite_key=b"t_row", prewrite_value=value)
            else:
                return None
            return codec.encode_write_request(server.cluster, payload)

        return next_of

    loop, made = asyncio.get_running_loop(), list[QuickCalls]()
    begin_cpu_s, begin_s = cpu_s(server.pid), time.perf_counter()
    for _ in range(case.connections):
        slots = case.in_flight // case.connections
        calls = partial(QuickCalls, "/binlog.Pump/WriteBinlog", slots, writer(slots))
        made.append((await loop.create_connection(calls, server.host, server.port))[1])
    for each in made:
        await each.over
        each.close()
    passed_s, cuts = time.perf_counter() - begin_s, quantiles(took_s, n=100)
    return Turn(
        len(took_s) / passed_s,
        cuts[49] * 1e3,
        cuts[98] * 1e3,
        (cpu_s(server.pid) - begin_cpu_s) * 1e6 / len(took_s),
    )


async def table(server: Server, peer: Server | None, clock: Clock, cases: list[Case]) -> None:
    """Writes in turns, the peer's beside the node's."""
    servers = [server] if peer is None else [server, peer]
    for case in cases:
        turns: dict[str, list[Turn]] = {each.name: [] for each in servers}
        for _ in range(TURNS):
            for each in servers:
                turns[each.name].append(await written(each, case, clock, SECONDS))
        found = {name: Turn(*map(median, zip(*some, strict=True))) for name, some in turns.items()}
        mine, beside = found[server.name], dict[str, float | str](published=case.published)
        if peer is not None:
            theirs = found[peer.name]
            beside = {f"peer_{name}": round(value, 2) for name, value in theirs._asdict().items()}
            beside["ratio"] = round(mine.per_s / theirs.per_s, 2)
        for name, value, unit in (
            ("", mine.per_s, "binlogs/s"),
            ("_p50", mine.p50_ms, "ms"),
            ("_p99", mine.p99_ms, "ms"),
            ("_cpu", mine.cpu_us, "us/binlog"),
        ):
            report(f"table_{case.name}{name}", value, unit, **beside)


async def pulled(server: Server, last: Tso) -> None:
    """All of it, from the beginning: transactions, each a prewrite and its commit in one."""
    source = RemoteSource("bench", server.host, server.port, cluster_id=server.cluster)
    begin_s, count = time.perf_counter(), 0
    async with aclosing(source.pull(NO_TS)) as batches:
        async for some in batches:
            count += len(some.binlogs)
            if some.resolved_ts >= last:
                break
    per_s = count / (time.perf_counter() - begin_s)
    published = "84 to 89 k/s"
    report("table_pull", per_s, "transactions/s", published=published, client="binlogd's")


def node_in(place: Path) -> Appliance:
    """A node of its own that only receives."""
    history = place / "history.json"
    history.write_text("[]")
    return Appliance(place / "node", history=history, syncer="[drainer]\nenabled = false\n")


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def measured(peer: Server | None, cases: list[Case]) -> None:
    """A node on this disk, written to, pulled from, killed and started again."""
    with TemporaryDirectory(dir=Path.cwd()) as place:
        node = node_in(Path(place))
        try:
            await node.start()
            cluster = 1 if peer is None else peer.cluster
            server, clock = Server("binlogd", node.host, node.port, node.pid, cluster), Clock()
            await table(server, peer, clock, cases)
            await pulled(server, clock.commits[server.name])
            published = "245 to 277 MB at the most"
            report("table_memory", resident_mib(node.pid), "MiB", published=published)
            await node.kill()
            begin_s = time.perf_counter()
            await node.start()
            took_s = time.perf_counter() - begin_s
            report("table_start_after_kill", took_s, "s", published="0.8 to 0.96 s, 0.5 M stored")
        finally:
            await node.close()


def main() -> None:
    """One JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", metavar="HOST:PORT", help="another Pump, in turns with this one")
    parser.add_argument("--peer-pid", type=int, help="its process, for its CPU")
    parser.add_argument("--cluster", type=int, default=1, help="the cluster id it takes")
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="*", choices=names, default=names)
    told = parser.parse_args()
    peer = None
    if told.peer is not None:
        host, _, port = told.peer.rpartition(":")
        peer = Server(
            "peer", host, int(port), told.peer_pid or parser.error("--peer-pid?"), told.cluster
        )
    set_up_logging("error", sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measured(peer, [case for case in CASES if case.name in told.cases]))


if __name__ == "__main__":
    main()
