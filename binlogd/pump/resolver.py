"""Asks what became of prewrites whose outcome is missing, and writes it through the front door.

A prewrite holds the watermark, and with it everything behind it, until its outcome is known. All
that have waited longer than a second are asked about at once: a dead TiDB that leaves a thousand of
them must not cost a thousand seconds. The waiting counts from arrival.

Source: tidb-binlog pump/storage/storage.go, resolve; pump/storage/sorter.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from binlogd.errors import BinlogdError, Unavailable
from binlogd.ports import OpenPrewrite, TxnStatusSource
from binlogd.pump.shard import Shard
from binlogd.pump.signal import is_set_within
from binlogd.pump.sorter import Open
from binlogd.pump.verdict import AskAgain, Write, decide
from binlogd.tso import Tso
from binlogd.wire.peek import begin, prewrite_key

log = structlog.get_logger(__name__)

FrontDoor = Callable[[Sequence[bytes]], Awaitable[Sequence[BinlogdError | None]]]

_DEADLINE_S = 30.0
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverStatistics:
    """`reason` is why the oldest open prewrite still waits, "" if nothing was asked yet."""

    asked: int
    settled: int
    failures: int
    reason: str


class Resolver:
    """The task that settles the orphans of one shard."""

    def __init__(
        self, shard: Shard, source: TxnStatusSource, write: FrontDoor, *, after_s: float, most: int
    ) -> None:
        self._shard = shard
        self._source = source
        self._write = write
        self._after_s = after_s
        self._most = most
        self._looked_up: set[Tso] = set()
        self._reasons: dict[Tso, str] = {}
        self._keys: dict[Tso, bytes] = {}
        self._asked = self._settled = self._failures = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Until `stopping`. Raises what reading the log raises."""
        while not await is_set_within(stopping, self._after_s):
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    while await self.ask_once():  # ends with the orphans that nobody can settle
                        pass
            except (Unavailable, TimeoutError) as error:
                self._failures += 1
                log.warning("resolve_delayed", shard=self._shard.name, cause=str(error))

    async def ask_once(self) -> bool:
        """One round of questions; whether another one at once may settle more.

        Raises Unavailable or Corrupt.
        """
        before_s = asyncio.get_running_loop().time() - self._after_s
        orphans = list(islice(self._shard.sorter.waiting_since(before_s), self._most))
        open_now = {orphan.start_ts for orphan in orphans}
        self._looked_up &= open_now
        self._reasons = {ts: why for ts, why in self._reasons.items() if ts in open_now}
        self._keys = {ts: key for ts, key in self._keys.items() if ts in open_now}
        is_full = len(orphans) >= self._most
        orphans = await self._without_known(orphans)
        if not orphans:
            return is_full
        await self._read_keys(orphans)
        questions = [OpenPrewrite(each.start_ts, self._keys[each.start_ts]) for each in orphans]
        self._asked += len(questions)
        answers = await self._source.statuses(questions)
        outcomes = []
        for orphan, answer in zip(orphans, answers, strict=True):
            match decide(orphan.start_ts, answer):
                case Write(payload=payload):
                    outcomes.append(payload)
                    log.info("orphan_settled", start_ts=orphan.start_ts, status=str(answer))
                case AskAgain(reason=reason):
                    self._reasons[orphan.start_ts] = reason
        if outcomes:
            self._settled += len(outcomes)
            refused = [error for error in await self._write(outcomes) if error is not None]
            return is_full and not refused
        return False

    def statistics(self) -> ResolverStatistics:
        """How it stands."""
        oldest = self._shard.sorter.oldest
        return ResolverStatistics(
            asked=self._asked,
            settled=self._settled,
            failures=self._failures,
            reason="" if oldest is None else self._reasons.get(oldest.start_ts, ""),
        )

    async def _read_keys(self, orphans: Sequence[Open]) -> None:
        """Of those that are new, a few megabytes of prewrites at a time."""
        some: list[Open] = []
        size = 0
        for orphan in orphans:
            if orphan.place.length > _READ_BYTES and orphan.start_ts not in self._keys:
                self._keys[orphan.start_ts] = await self._key_of_large(orphan)
            elif orphan.start_ts not in self._keys:
                some.append(orphan)
                size += orphan.place.length
            if some and (size >= _READ_BYTES or orphan is orphans[-1]):
                payloads = await self._shard.log.read([each.place for each in some])
                for each, payload in zip(some, payloads, strict=True):
                    self._keys[each.start_ts] = prewrite_key(payload)
                some, size = [], 0

    async def _key_of_large(self, orphan: Open) -> bytes:
        """The key, without holding the prewrite."""
        key: bytes | None = None
        async for piece in self._shard.log.pieces(orphan.place):
            if key is None:
                found = begin(piece)
                if found is None:  # by an old client, in an adopted log
                    return prewrite_key((await self._shard.log.read([orphan.place]))[0])
                key = found.prewrite_key
        return key or b""

    async def _without_known(self, orphans: Sequence[Open]) -> list[Open]:
        """Settles those whose outcome is in the index: a prewrite repeated after its commit.

        One look is enough, once everything before the prewrite is filed: the sorter sees the rest.
        Until then there is no question to ask.
        """
        unknown = []
        for orphan in orphans:
            outcome = None
            if orphan.place[:2] >= self._shard.filer.marks.head:
                continue
            if orphan.start_ts not in self._looked_up:
                self._looked_up.add(orphan.start_ts)
                outcome = await self._shard.index.outcome(orphan.start_ts)
            if outcome is None:
                unknown.append(orphan)
            else:
                self._shard.sorter.settle(orphan.start_ts)
                self._shard.sorted_on()
        return unknown
