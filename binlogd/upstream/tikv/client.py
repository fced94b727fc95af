"""Questions to TiKV about keys and transactions.

Invariant. One question has one deadline, whatever happens on its way; when that is over, the error
says what was heard last.

Source: tikv/client-go txnkv/txnsnapshot, txnkv/txnlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import TsoSource
from binlogd.tidb.meta_keys import KeyRange
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.tikv.fate import DECIDED
from binlogd.upstream.tikv.pairs import Pair, ScanAnswer
from binlogd.upstream.tikv.reaction import LOCKED, NOT_READY, Patience
from binlogd.upstream.tikv.regions import RegionDirectory
from binlogd.upstream.tikv.router import RegionRouter, RouterStatistics
from binlogd.upstream.tikv.stores import Stores
from binlogd.wire.generated import kvrpcpb

_SCAN_PAIRS = 64
"""Of one answer. The JSON of a table of thousands of columns has megabytes."""
_SCAN_KEYS = 1024
"""Of one answer without values."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TikvLimits:
    """How long a question may take in all, and one call of it."""

    question_s: float = 10.0
    call_s: float = 5.0


@dataclass(frozen=True, slots=True)
class TikvStatistics:
    """Counts since the start."""

    router: RouterStatistics
    locks_met: int
    """By reads."""
    locks_resolved: int
    overdue: int
    """Questions whose deadline went by."""
    trouble: str = ""
    """Why the last question has no answer; empty when it has one."""


class TikvClient:
    """One for a process; asked many things at the same time. Methods raise UpstreamUnavailable."""

    def __init__(
        self,
        places: RegionDirectory,
        tso: TsoSource,
        stores: Stores,
        rng: Random,
        limits: TikvLimits | None = None,
    ) -> None:
        self._tso, self._stores, self._rng = tso, stores, rng
        self._limits = limits or TikvLimits()
        self._router = RegionRouter(places, stores, call_s=self._limits.call_s)
        self._locks_met = self._locks_resolved = self._overdue = 0
        self._trouble = ""

    async def get(self, key: bytes, ts: Tso) -> bytes | None:
        """The value of a key as of `ts`; None if there is none."""

        async def once(patience: Patience) -> bytes | None:
            while True:  # until no lock is met, or the deadline
                request = kvrpcpb.GetRequest(key=key, version=ts)
                answer, _ = await self._router.ask(
                    key, request, kvrpcpb.GetResponse, "KvGet", patience
                )
                if answer.error is None:
                    return None if answer.not_found else answer.value
                await self._pass(answer.error, ts, patience)

        return await self._in_time(f"the value of key {key.hex()} as of {ts}", once)

    async def scan(
        self, keys: KeyRange, ts: Tso, *, only_keys: bool = False
    ) -> AsyncGenerator[list[Pair], None]:
        """The keys of a range as of `ts`, with their values, in order, some at a time.

        With `only_keys` the values are empty.
        """
        begin: bytes | None = keys.begin
        while begin is not None:
            left = KeyRange(begin, keys.end)
            pairs, begin = await self._in_time(
                f"the keys from {begin.hex()} as of {ts}",
                partial(self._scan, left, ts, only_keys=only_keys),
            )
            if pairs:
                yield pairs

    def knows(self, key: bytes) -> bool:
        """Whether `region` would answer without PD."""
        return self._router.knows(key)

    async def region(self, key: bytes) -> int:
        """The id of the region that a key is in, as far as is known; its store is not asked."""

        async def once(patience: Patience) -> int:
            return (await self._router.region(key, patience)).id

        return await self._in_time(f"the region of key {key.hex()}", once)

    async def records(self, key: bytes) -> kvrpcpb.MvccInfo:
        """All that TiKV has of a key: its lock, its writes and rollbacks."""

        async def once(patience: Patience) -> kvrpcpb.MvccInfo:
            request = kvrpcpb.MvccGetByKeyRequest(key=key)
            answer, _ = await self._router.ask(
                key, request, kvrpcpb.MvccGetByKeyResponse, "MvccGetByKey", patience
            )
            if answer.error:
                raise UpstreamUnavailable(f"TiKV: the records of key {key.hex()}: {answer.error}")
            return answer.info if answer.info is not None else kvrpcpb.MvccInfo()

        return await self._in_time(f"the records of key {key.hex()}", once)

    async def check(
        self, primary: bytes, start_ts: Tso, now: Tso, *, makes_rollback: bool
    ) -> kvrpcpb.CheckTxnStatusResponse:
        """Has TiKV decide on a transaction: an expired lock is rolled back, and with
        `makes_rollback` what is absent as well, so that it never can commit."""

        async def once(patience: Patience) -> kvrpcpb.CheckTxnStatusResponse:
            # a later caller_start_ts would push what still runs
            return await self._check(
                primary, start_ts, patience, caller=start_ts, now=now, makes_rollback=makes_rollback
            )

        return await self._in_time(f"the fate of transaction start_ts {start_ts}", once)

    def statistics(self) -> TikvStatistics:
        """How it stands."""
        return TikvStatistics(
            self._router.statistics(),
            self._locks_met,
            self._locks_resolved,
            self._overdue,
            self._trouble,
        )

    # --- parts of questions ----------------------------------------------------------------

    async def _in_time(self, what: str, once: Callable[[Patience], Awaitable[T]]) -> T:
        patience = Patience(self._rng)
        try:
            async with asyncio.timeout(self._limits.question_s):
                answer = await once(patience)
        except TimeoutError:
            self._overdue += 1
            self._trouble = (
                f"TiKV: {what}: no answer in {self._limits.question_s:g} s and"
                f" {patience.attempts + 1} attempts; the last: {patience.reason or 'no answer'}"
            )
            raise UpstreamUnavailable(self._trouble) from None
        except UpstreamUnavailable as error:
            self._trouble = str(error)
            raise
        self._trouble = ""
        return answer

    async def _scan(
        self, keys: KeyRange, ts: Tso, patience: Patience, *, only_keys: bool
    ) -> tuple[list[Pair], bytes | None]:
        """What the first key's region has, or the first of it, and where to go on."""
        most = _SCAN_KEYS if only_keys else _SCAN_PAIRS
        while True:  # until no lock is met, or the deadline
            request = kvrpcpb.ScanRequest(
                start_key=keys.begin, end_key=keys.end, limit=most, version=ts, key_only=only_keys
            )
            answer, region = await self._router.ask(
                keys.begin, request, ScanAnswer, "KvScan", patience
            )
            if answer.error is not None:
                await self._pass(answer.error, ts, patience)
                continue
            pairs = answer.pairs
            if len(pairs) >= most:
                return pairs, pairs[-1][0] + b"\0"
            is_last = not region.end or (keys.end and region.end >= keys.end)
            return pairs, None if is_last else region.end

    async def _pass(self, error: kvrpcpb.KeyError, ts: Tso, patience: Patience) -> None:
        """Returns when a read that met something may be tried again."""
        lock = error.locked
        if lock is None:
            if not error.retryable:
                raise UpstreamUnavailable(f"TiKV: a read as of {ts}: {error}")
            await self._router.wait(patience, NOT_READY, error.retryable)
            return
        self._locks_met += 1
        if not await self._resolve(lock, ts, patience):
            how = ", an async commit that a TiDB ends" if lock.use_async_commit else ""
            await self._router.wait(
                patience,
                LOCKED,
                f"key {lock.key.hex()} is locked by transaction start_ts {lock.lock_version}{how}",
            )

    async def _resolve(self, lock: kvrpcpb.LockInfo, ts: Tso, patience: Patience) -> bool:
        """Whether the lock is gone. One whose time is not over is left alone; so is one of an async
        commit, whose fate its other keys decide: its TiDB, the next one that reads the key, or
        garbage collection resolves it. Who writes binlogs commits in two phases; but a DDL has
        transactions of its own without one, which may leave such a lock among the meta keys.
        Source: client-go txnkv/transaction/2pc.go, checkAsyncCommit and checkOnePC."""
        now, start_ts = await self._tso.next(), Tso(lock.lock_version)
        is_in_time = physical_ms(start_ts) + lock.lock_ttl > physical_ms(now)
        if lock.use_async_commit or is_in_time:
            return False
        status = await self._check(
            lock.primary_lock, start_ts, patience, caller=ts, now=now, makes_rollback=True
        )
        if status.error is not None or status.lock_ttl or status.action not in DECIDED:
            return False
        request = kvrpcpb.ResolveLockRequest(
            start_version=start_ts, commit_version=status.commit_version, keys=[lock.key]
        )
        answer, _ = await self._router.ask(
            lock.key, request, kvrpcpb.ResolveLockResponse, "KvResolveLock", patience
        )
        self._locks_resolved += answer.error is None
        return answer.error is None

    async def _check(
        self,
        primary: bytes,
        start_ts: Tso,
        patience: Patience,
        *,
        caller: Tso,
        now: Tso,
        makes_rollback: bool,
    ) -> kvrpcpb.CheckTxnStatusResponse:
        request = kvrpcpb.CheckTxnStatusRequest(
            primary_key=primary,
            lock_ts=start_ts,
            caller_start_ts=caller,
            current_ts=now,
            rollback_if_not_exist=makes_rollback,
        )
        answer, _ = await self._router.ask(
            primary, request, kvrpcpb.CheckTxnStatusResponse, "KvCheckTxnStatus", patience
        )
        return answer
