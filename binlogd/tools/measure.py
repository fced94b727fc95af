"""How fast this machine is: syncs of its disk, writes into a Pump and pulls out of it.

A real `binlogd serve` in a process of its own, on loopback, in a directory that goes afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from binlogd.client.pump_client import PumpClient, RemoteSource
from binlogd.host.disk import PosixDisk
from binlogd.tools.appliance import Appliance
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire import peek

_CLUSTER = 1
_SYNCED_BYTES = 4096
_CONNECTIONS = 4
_BASE = compose(1_700_000_000_000)
_PULL_S_MAX = 120.0


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
    history = directory / "history.json"
    history.write_text("[]")
    machine = Appliance(directory / "node", history=history, syncer="[drainer]\nenabled = false\n")
    stage("starting a node")
    try:
        await machine.start()
        stage("writing")
        writers = _Writers(machine, wanted)
        found += await writers.run()
        stage("pulling")
        found += await _pulls(machine, writers.last_commit)
        await machine.stop()
    finally:
        await machine.close()
    return found


async def _syncs(path: Path, seconds: float) -> Measured:
    clock = asyncio.get_running_loop().time
    disk = PosixDisk(threads=1)
    try:
        file = await disk.open_append(path, create=True)
        begin_s, count = clock(), 0
        while clock() - begin_s < seconds:
            await file.append([b"\0" * _SYNCED_BYTES], sync=True)
            count += 1
        took_s = clock() - begin_s
        await file.close()
    finally:
        disk.close()
    return Measured("fsync", count / took_s, "1/s", f"{_SYNCED_BYTES} bytes written and synced")


class _Writers:
    """Transactions one after the other by each of some writers, over a few connections."""

    def __init__(self, machine: Appliance, wanted: Measurement) -> None:
        self._machine, self._wanted = machine, wanted
        self._ts = itertools.count(_BASE + 1)
        self._took_s: list[float] = []
        self.last_commit = NO_TS

    async def run(self) -> list[Measured]:
        clock = asyncio.get_running_loop().time
        clients = [
            PumpClient(self._machine.host, self._machine.port, cluster_id=_CLUSTER)
            for _ in range(_CONNECTIONS)
        ]
        begin_s = clock()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._wanted.writers):
                    client = clients[number % _CONNECTIONS]
                    group.create_task(self._write(client, begin_s + self._wanted.seconds))
        finally:
            for client in clients:
                client.close()
        took_s = clock() - begin_s
        cuts = quantiles(self._took_s, n=100)
        return [
            Measured(
                "write",
                len(self._took_s) / took_s,
                "binlogs/s",
                f"WriteBinlog, {self._wanted.writers} writers at once, rows of"
                f" {self._wanted.row_bytes} bytes",
            ),
            Measured("write_p50", cuts[49] * 1000, "ms", "from asking to durable"),
            Measured("write_p99", cuts[98] * 1000, "ms", "from asking to durable"),
        ]

    async def _write(self, client: PumpClient, until_s: float) -> None:
        clock = asyncio.get_running_loop().time
        rows = b"v" * self._wanted.row_bytes
        while clock() < until_s:
            start_ts = Tso(next(self._ts))
            await self._timed(client, peek.prewrite_binlog(start_ts, prewrite_value=rows))
            commit_ts = Tso(next(self._ts))
            await self._timed(client, peek.commit_binlog(start_ts, commit_ts))
            self.last_commit = max(self.last_commit, commit_ts)

    async def _timed(self, client: PumpClient, payload: bytes) -> None:
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        await client.write(payload)
        self._took_s.append(clock() - begin_s)


async def _pulls(machine: Appliance, last: Tso) -> list[Measured]:
    """Everything that was written, from the beginning."""
    clock = asyncio.get_running_loop().time
    source = RemoteSource("self-test", machine.host, machine.port, cluster_id=_CLUSTER)
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
    ]
