"""Transactions for the Pump's benchmarks, made beforehand so that making them costs nothing."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.ports import OpenPrewrite, Pending, TxnStatus
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog

BASE = compose(1_700_000_000_000)
_STEP = (1 << 18) // 12
"""Between transactions: twelve in a millisecond."""
_ROWS = b"v" * 4096


class ObservedTime:
    """The largest timestamp seen."""

    def __init__(self) -> None:
        self._largest = NO_TS

    async def next(self) -> Tso:
        """Never ahead of a writer."""
        return self._largest

    def observe(self, ts: Tso) -> None:
        """Takes note."""
        self._largest = max(self._largest, ts)


class NobodyKnows:
    """No outcome is lost in a benchmark."""

    verifies_rollbacks = False

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """Pending, all of them."""
        return [Pending("a benchmark") for _ in prewrites]


def prewrites(first: int, count: int, *, payload_bytes: int) -> list[bytes]:
    """Prewrites of about `payload_bytes` each."""
    rows = _ROWS[: payload_bytes - 50]
    return [
        prewrite_binlog(
            Tso(BASE + number * _STEP), prewrite_key=b"t_64_r_%012d" % number, prewrite_value=rows
        )
        for number in range(first, first + count)
    ]


def commits(first: int, count: int) -> list[bytes]:
    """Their commits."""
    return [
        commit_binlog(
            Tso(BASE + number * _STEP),
            Tso(BASE + number * _STEP + 2),
            prewrite_key=b"t_64_r_%012d" % number,
        )
        for number in range(first, first + count)
    ]


def last_commit(count: int) -> Tso:
    """The commit_ts of the last of `count` transactions."""
    return Tso(BASE + (count - 1) * _STEP + 2)


def batches(count: int, size: int, *, payload_bytes: int) -> Iterator[list[bytes]]:
    """Prewrites and then commits of `size` transactions, again and again."""
    for first in range(0, count, size):
        yield prewrites(first, size, payload_bytes=payload_bytes)
        yield commits(first, size)


@asynccontextmanager
async def running_pump(
    directory: Path, *, shards: int, options: PumpOptions | None = None
) -> AsyncIterator[Pump]:
    """A Pump on real files."""
    disk = PosixDisk(threads=shards + 2)
    pump = await Pump.open(
        directory,
        shards=shards,
        tso=ObservedTime(),
        txn_status=NobodyKnows(),
        clock=WallClock(),
        disk=disk,
        options=options or PumpOptions(free_bytes_min=1),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(pump.run())
        try:
            yield pump
        finally:
            await pump.close()
    disk.close()


def cpu_s() -> float:
    """Processor time of this process and its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(bench: str, value: float, unit: str, **more: float | str) -> None:
    """One figure as a JSON line."""
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more}))
