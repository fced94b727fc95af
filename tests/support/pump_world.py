"""A Pump on real files, with a time source and a status source that tests control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from binlogd.binlog import CommittedBinlog
from binlogd.errors import BinlogdError, UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.ports import Disk, OpenPrewrite, Pending, TxnStatus
from binlogd.pump.kept_routing import SHARDS_FILE
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.route import Routing
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog

BASE = compose(1_700_000_000_000)
ROOMY = PumpOptions(free_bytes_min=1, fake_interval_s=3_600, ahead_max_s=1e9)
"""The defaults with little space, for any time, and without fakes: on a slow machine they come in
between."""
PATIENCE_S = 120.0
"""For what must happen, on any machine; less than a whole test may take, so that it says what."""
_LOOKS_AT_ONCE = 100


def at(number: int) -> Tso:
    """Small numbers as timestamps of one second."""
    return Tso(BASE + number)


def prewrite(start: int, size: int = 20) -> bytes:
    """A prewrite of transaction `start`, with `size` bytes of rows."""
    return prewrite_binlog(
        at(start), prewrite_key=b"key %d" % start, prewrite_value=b"%d" % start * size
    )


def commit(start: int, commit_ts: int) -> bytes:
    """The commit of transaction `start`."""
    return commit_binlog(at(start), at(commit_ts), prewrite_key=b"key %d" % start)


def rollback(start: int) -> bytes:
    """The rollback of transaction `start`."""
    return rollback_binlog(at(start))


class Times:
    """A time source that says what it was told, or what it has observed."""

    def __init__(self) -> None:
        self.observed = NO_TS
        self.says: Tso | None = None
        self.is_down = False

    async def next(self) -> Tso:
        if self.is_down:
            raise UpstreamUnavailable("no time today")
        return self.observed if self.says is None else self.says

    def observe(self, ts: Tso) -> None:
        self.observed = max(self.observed, ts)


class Fates:
    """A status source that knows what it was told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.known: dict[Tso, TxnStatus] = {}
        self.answers_all: TxnStatus = Pending("nobody knows")
        self.asked: list[list[OpenPrewrite]] = []
        self.is_down = False
        self.verifies_rollbacks = False

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        self.asked.append(list(prewrites))
        if self.is_down:
            raise UpstreamUnavailable("no answer today")
        return [self.known.get(each.start_ts, self.answers_all) for each in prewrites]


class StillClock:
    """A wall clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class World:
    """What surrounds a Pump; lives longer than one."""

    directory: Path
    disk: Disk
    times: Times = field(default_factory=Times)
    fates: Fates = field(default_factory=Fates)
    clock: StillClock = field(default_factory=StillClock)

    @asynccontextmanager
    async def pump(self, options: PumpOptions = ROOMY, *, shards: int = 1) -> AsyncIterator[Pump]:
        """A running Pump, closed at the end. Neighbouring transactions are in different shards."""
        spread(self.directory, shards)
        opened = await Pump.open(
            self.directory,
            shards=shards,
            tso=self.times,
            txn_status=self.fates,
            clock=self.clock,
            disk=self.disk,
            options=options,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(opened.run())
                yield opened
                await opened.close()
        finally:  # whoever failed: threads that stay keep the process
            await opened.close()


def spread(directory: Path, shards: int) -> None:
    """Makes a data directory whose neighbouring transactions are in different shards; nothing
    happens where there is one."""
    path = directory / "pump" / SHARDS_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Routing(shards, window_bits=0).to_bytes())


@asynccontextmanager
async def posix_world(directory: Path) -> AsyncIterator[World]:
    """A world on real files."""
    disk = PosixDisk(threads=4)
    try:
        yield World(directory, disk)
    finally:
        disk.close()


async def written(pump: Pump, *payloads: bytes) -> None:
    """Writes, and all must be taken."""
    refused = [error for error in await pump.write(payloads) if error is not None]
    if refused:
        raise refused[0]


async def outcome(pump: Pump, payload: bytes) -> BinlogdError | None:
    """What the writer of one payload is told."""
    (answer,) = await pump.write([payload])
    return answer


async def pulled(pump: Pump, *, upto: Tso, after: Tso = NO_TS) -> list[CommittedBinlog]:
    """Everything of every shard up to a timestamp, in commit order; checks each pull's promise."""
    found: list[CommittedBinlog] = []
    for source in pump.sources():
        position = after
        async with AsyncExitStack() as stack, asyncio.timeout(120):
            batches = source.pull(after)
            await stack.enter_async_context(aclosing(batches))
            async for batch in batches:
                for binlog in batch.binlogs:
                    assert position < binlog.commit_ts <= batch.resolved_ts
                    position = binlog.commit_ts
                assert position <= batch.resolved_ts
                position = batch.resolved_ts
                found += [binlog for binlog in batch.binlogs if binlog.commit_ts <= upto]
                if position >= upto:
                    break
    return sorted(found, key=lambda binlog: binlog.commit_ts)


def numbers(binlogs: Iterable[CommittedBinlog]) -> list[tuple[int, int]]:
    """(start, commit) as the small numbers of `at`."""
    return [(binlog.start_ts - BASE, binlog.commit_ts - BASE) for binlog in binlogs]


async def until_released(pump: Pump, number: int) -> None:
    """Waits until everything up to `at(number)` can be pulled."""
    async with asyncio.timeout(120):
        await pulled(pump, upto=at(number))


async def eventually(happened: Callable[[], object]) -> None:
    """Looks all the time at first, then every few milliseconds, for what nothing wakes us for."""
    loop = asyncio.get_running_loop()
    begin_s, looks = loop.time(), 0
    while not happened():
        if loop.time() > begin_s + PATIENCE_S:
            raise AssertionError(f"it did not happen within {PATIENCE_S:g} s")
        await asyncio.sleep(0 if looks < _LOOKS_AT_ONCE else 0.005)
        looks += 1
