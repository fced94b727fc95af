"""A Pump inside another asyncio program: no port, no second process, the same log.

    async with embedded_pump(Path("binlogs")) as pump:
        await pump.write([prewrite, commit])
        async with pump.pull(after) as pulls:
            async for pulled in pulls:
                ...

What `binlogd serve` writes and what is written here is one format: either opens the other's
directory, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from binlogd.errors import BinlogdError
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.merge.stream import MergedStream, merged
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.tso import Tso
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.txn_status import LocalTxnStatus


class EmbeddedPump:
    """A Pump that runs for as long as `embedded_pump` is open."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    async def write(self, payloads: Sequence[bytes]) -> None:
        """Returns when all serialised binlogs are durable.

        Raises a group of BinlogdError, one for each that was refused; the others are durable.
        """
        refused = [error for error in await self.try_write(payloads) if error is not None]
        if refused:
            raise ExceptionGroup(f"{len(refused)} of {len(payloads)} binlogs were refused", refused)

    async def try_write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        """One outcome for each binlog when all are durable or refused; None is durable."""
        return await self._pump.write(payloads)

    def pull(self, after: Tso) -> AbstractAsyncContextManager[MergedStream]:
        """Transactions with commit_ts > after, each with its rows, in commit order; then those that
        are written later. Raises Corrupt or Unavailable from the iteration."""
        return merged(self._pump.sources(), after)

    @property
    def max_commit_ts(self) -> Tso:
        """Every transaction with commit_ts up to here can be pulled."""
        return self._pump.max_commit_ts


@asynccontextmanager
async def embedded_pump(
    directory: Path, *, shards: int = 4, options: PumpOptions | None = None
) -> AsyncIterator[EmbeddedPump]:
    """Opens a data directory, or makes one, and closes it at the end of the block.

    Raises ConfigError when another process has it, Corrupt or Unavailable when it cannot be
    recovered. An error that ends the block, of its own or of a Pump that cannot go on, comes out in
    a group.
    """
    disk, tso = PosixDisk(), ObservedTso()
    try:
        pump = await Pump.open(
            directory,
            shards=shards,
            tso=tso,
            txn_status=LocalTxnStatus(tso, rolls_back_abandoned=False),
            clock=WallClock(),
            disk=disk,
            options=options or PumpOptions(),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(pump.run(), name="pump")
            try:
                yield EmbeddedPump(pump)
            finally:
                await pump.close()
    finally:
        disk.close()
