"""Sends a stream of binlogs to Pumps, several at a time, until each is acknowledged.

What was not acknowledged is sent again, also when the server dies in between: at least once, never
less. What must not be in flight together is held back (`hold_back`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlogd.errors import Unavailable
from tests.workload.hold_back import HoldBack
from tests.workload.timeline import Record


class Writer(Protocol):
    """One Pump."""

    async def write(self, payload: bytes) -> None:
        """Returns when the binlog is durable there.

        Raises Unavailable when there was no answer (it may have arrived, or not), Refused when it
        was not taken and never will be.
        """
        ...


@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """So far. `retries` are sends that got no answer."""

    acknowledged: int
    retries: int
    in_flight: int


class Feeder:
    """Feeds one stream to one or more Pumps; `Record.pump` chooses, modulo their number.

    A record is given up, and the feed with it, when it was not acknowledged for `patience_s`.
    """

    def __init__(
        self,
        writers: Sequence[Writer],
        *,
        in_flight: int = 64,
        retry_after_s: float = 0.05,
        patience_s: float = 60.0,
        acknowledged: Callable[[Record], None] | None = None,
    ) -> None:
        self._writers = writers
        self._slots = asyncio.Semaphore(in_flight)
        self._retry_after_s = retry_after_s
        self._patience_s = patience_s
        self._tell = acknowledged
        self._hold_back = HoldBack()
        self._progress = asyncio.Event()
        self._acknowledged = 0
        self._retries = 0
        self._in_flight = 0

    async def feed(self, records: AsyncIterable[Record]) -> None:
        """Returns when every record is acknowledged. Raises Refused, or Unavailable after long."""
        async with asyncio.TaskGroup() as group:
            async for record in records:
                await self._slots.acquire()
                while self._hold_back.must_wait(record):
                    self._progress.clear()
                    await self._progress.wait()
                self._hold_back.sent(record)
                self._in_flight += 1
                group.create_task(self._send(record))

    def statistics(self) -> FeedStatistics:
        """How far it has come."""
        return FeedStatistics(self._acknowledged, self._retries, self._in_flight)

    async def _send(self, record: Record) -> None:
        writer = self._writers[record.pump % len(self._writers)]
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        while True:  # until acknowledged, refused, or out of patience
            try:
                await writer.write(record.payload)
            except Unavailable:
                self._retries += 1
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(self._retry_after_s)
            else:
                break
        self._in_flight -= 1
        self._acknowledged += 1
        self._hold_back.acknowledged(record)
        self._progress.set()
        self._slots.release()
        if self._tell is not None:
            self._tell(record)
