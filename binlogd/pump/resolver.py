"""Asks what became of prewrites whose outcome is missing, and writes it through the front door.

A prewrite holds the watermark, and with it everything behind it, until its outcome is known. All
that have waited longer than a second are asked about at once: a dead TiDB that leaves a thousand of
them must not cost a thousand seconds. The waiting counts from arrival.

A Rollback is asked about at once if the source can verify it: TiDB sends one, too, when it does not
know whether its commit took place. Until it is confirmed it holds the watermark like an orphan.

Source: tidb-binlog pump/storage/storage.go, resolve; pump/storage/sorter.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import msgspec
import structlog

from binlogd.errors import BinlogdError, Unavailable
from binlogd.host.clock import is_set_within
from binlogd.ports import OpenPrewrite, TxnStatus, TxnStatusSource
from binlogd.pump.shard.shard import Shard
from binlogd.pump.shard.sorter import Open
from binlogd.pump.verdict import AskAgain, Settle, Write, decide
from binlogd.telemetry.faults import answer_of
from binlogd.tso import Tso
from binlogd.wire.outline import begin
from binlogd.wire.peek import prewrite_key

log = structlog.get_logger(__name__)

FrontDoor = Callable[[Sequence[bytes]], Awaitable[Sequence[BinlogdError | None]]]

_DEADLINE_S = 30.0
_BATCHES = 8  # on their way at once
_READ_BYTES = 4 << 20


class ResolverStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`contradicted` counts Rollbacks of transactions that had committed; `reason` is why the
    oldest open prewrite still waits, "" if nothing was asked yet."""

    asked: int
    contradicted: int
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
        self._asked_at_s: dict[Tso, float] = {}
        self._asked = self._contradicted = 0

    async def run(self) -> None:
        """Until cancelled: whoever is asked may be silent for long, and a restart asks again. An
        outcome that is being written stays in the queue of the log. Raises what reading the log
        raises."""
        while True:  # one turn for each second, or each Rollback that somebody can confirm
            await is_set_within(self._shard.doubted, self._after_s)
            self._shard.doubted.clear()
            while await self.ask():  # ends with the orphans that nobody can settle
                pass

    async def ask(self) -> bool:
        """One round of questions; whether there are more to ask at once. Raises Corrupt.

        Several batches are on their way together, and each is acted on when it comes back: one
        that takes long, or fails, holds up no other.
        """
        now_s = asyncio.get_running_loop().time()
        self._forget_settled()
        due = list(islice(self._due(now_s), self._most * _BATCHES))
        orphans = await self._without_known(due)
        self._asked_at_s.update((orphan.start_ts, now_s) for orphan in due)
        await self._read_keys(orphans)
        async with asyncio.TaskGroup() as group:
            for begin in range(0, len(orphans), self._most):
                group.create_task(self._ask_about(orphans[begin : begin + self._most]))
        return len(due) == self._most * _BATCHES

    async def _ask_about(self, orphans: Sequence[Open]) -> None:
        questions = [OpenPrewrite(each.start_ts, self._keys[each.start_ts]) for each in orphans]
        self._asked += len(questions)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                answers = await answer_of(
                    "the look-up of outcomes", self._source.statuses(questions)
                )
                await self._act(zip(orphans, answers, strict=True))
        except (Unavailable, TimeoutError) as error:
            cause = str(error) or f"no answer within {_DEADLINE_S:g} s"
            self._reasons.update((orphan.start_ts, cause) for orphan in orphans)
            log.warning(
                "resolve_delayed", shard=self._shard.name, orphans=len(orphans), cause=cause
            )

    async def _act(self, answered: Iterable[tuple[Open, TxnStatus]]) -> None:
        written: list[tuple[Open, bytes]] = []
        for orphan, answer in answered:
            match decide(orphan.start_ts, answer, has_rollback=orphan.is_doubted):
                case Write(payload=payload):
                    written.append((orphan, payload))
                    self._tell(orphan, answer)
                case Settle():
                    self._settle(orphan)
                case AskAgain(reason=reason):
                    self._reasons[orphan.start_ts] = reason
        if not written:
            return
        outcomes = await self._write([payload for _, payload in written])
        for (orphan, _), error in zip(written, outcomes, strict=True):
            if error is None:
                self._settle(orphan)  # a Rollback of our own needs no second question
            else:
                self._reasons[orphan.start_ts] = str(error)

    def _tell(self, orphan: Open, answer: TxnStatus) -> None:
        if orphan.is_doubted:
            self._contradicted += 1
            log.warning(
                "rollback_contradicted",
                start_ts=orphan.start_ts,
                status=str(answer),
                consequence="the transaction is replicated",
            )
        else:
            log.info("orphan_settled", start_ts=orphan.start_ts, status=str(answer))

    def _settle(self, orphan: Open) -> None:
        if self._shard.sorter.settle(orphan.start_ts) is not None:
            self._shard.sorted_on()

    def _due(self, now_s: float) -> Iterator[Open]:
        """Whom to ask about now, none more than once in `after_s`."""
        before_s = now_s - self._after_s
        head, asked_at_s = self._shard.filer.marks.head, self._asked_at_s
        sorter = self._shard.sorter
        for orphan in chain(sorter.doubted(), sorter.waiting_since(before_s)):
            is_due = asked_at_s.get(orphan.start_ts, before_s) <= before_s
            # Of one that is not filed, nobody knows yet whether it repeats a settled transaction.
            if is_due and (orphan.is_doubted or orphan.place[:2] < head):
                yield orphan

    def _forget_settled(self) -> None:
        is_open = self._shard.sorter.is_open
        self._looked_up = {ts for ts in self._looked_up if is_open(ts)}
        self._reasons = {ts: why for ts, why in self._reasons.items() if is_open(ts)}
        self._keys = {ts: key for ts, key in self._keys.items() if is_open(ts)}
        self._asked_at_s = {ts: at_s for ts, at_s in self._asked_at_s.items() if is_open(ts)}

    def statistics(self) -> ResolverStatistics:
        """How it stands."""
        oldest = self._shard.sorter.oldest
        return ResolverStatistics(
            asked=self._asked,
            contradicted=self._contradicted,
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
                payloads = await self._shard.log.segments.read([each.place for each in some])
                for each, payload in zip(some, payloads, strict=True):
                    self._keys[each.start_ts] = prewrite_key(payload)
                some, size = [], 0

    async def _key_of_large(self, orphan: Open) -> bytes:
        """The key, without holding the prewrite."""
        prewrite = await self._shard.log.segments.stored(orphan.place)
        found = begin(prewrite.cut(0, _READ_BYTES))
        return prewrite_key(bytes(prewrite)) if found is None else found.prewrite_key

    async def _without_known(self, orphans: Sequence[Open]) -> list[Open]:
        """Settles those whose outcome is in the index: a prewrite repeated after its commit.

        One look is enough, once everything before the prewrite is filed: the sorter sees the rest.
        """
        unknown = []
        for orphan in orphans:
            outcome = None
            if orphan.start_ts not in self._looked_up and not orphan.is_doubted:
                self._looked_up.add(orphan.start_ts)
                outcome = await self._outcome_in_index(orphan.start_ts)
            if outcome is None or (not outcome and self._source.verifies_rollbacks):
                unknown.append(orphan)
            else:
                self._settle(orphan)
        return unknown

    async def _outcome_in_index(self, start_ts: Tso) -> Tso | None:
        try:
            return await self._shard.index.outcome(start_ts)
        except Unavailable as error:  # the source knows as much
            self._looked_up.discard(start_ts)
            log.warning("resolve_delayed", shard=self._shard.name, cause=str(error))
            return None
