"""The records of a TiKV, kept as it keeps them: locks, writes, rollbacks; no regions, no network.

Source: TiKV src/storage/txn/actions/{prewrite,commit,cleanup,check_txn_status}.rs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from binlogd.tso import Tso, physical_ms
from binlogd.wire.generated import kvrpcpb
from binlogd.wire.generated.kvrpcpb import (
    Action,
    CheckTxnStatusResponse,
    KvPair,
    LockInfo,
    MvccInfo,
    MvccLock,
    MvccValue,
    MvccWrite,
    Op,
    TxnNotFound,
)

SHORT_BYTES = 255
"""A value up to here stands in the write itself."""


@dataclass
class Lock:
    """A key that a transaction has prewritten."""

    op: int
    primary: bytes
    start_ts: int
    ttl_ms: int
    value: bytes = b""
    is_async: bool = False


@dataclass
class Write:
    """What a transaction has left of a key, at its commit_ts (a rollback: at its start_ts)."""

    op: int
    start_ts: int
    commit_ts: int
    value: bytes = b""
    is_overlapped: bool = False


@dataclass
class Records:
    """All keys of a cluster."""

    locks: dict[bytes, Lock] = field(default_factory=dict)
    writes: dict[bytes, list[Write]] = field(default_factory=dict)
    _keys: list[bytes] = field(default_factory=list)

    # --- what a TiDB does ------------------------------------------------------------------

    def prewrite(
        self,
        values: dict[bytes, bytes | None],
        start_ts: Tso,
        *,
        primary: bytes | None = None,
        ttl_ms: int = 3000,
        is_async: bool = False,
    ) -> None:
        """Locks keys; a value of None deletes."""
        for key, value in values.items():
            assert key not in self.locks, f"{key!r} is locked"
            self._know(key)
            self.locks[key] = Lock(
                Op.Put if value is not None else Op.Del,
                primary if primary is not None else next(iter(values)),
                start_ts,
                ttl_ms,
                value or b"",
                is_async,
            )

    def commit(self, keys: Iterable[bytes], start_ts: Tso, commit_ts: Tso) -> None:
        """Makes what is locked a write."""
        for key in keys:
            lock = self.locks.pop(key)
            assert lock.start_ts == start_ts
            self._write(key, Write(lock.op, start_ts, commit_ts, lock.value))

    def put(self, key: bytes, value: bytes | None, start_ts: Tso, commit_ts: Tso) -> None:
        """A whole transaction of one key."""
        self.prewrite({key: value}, start_ts)
        self.commit([key], start_ts, commit_ts)

    def roll_back(self, keys: Iterable[bytes], start_ts: Tso) -> None:
        """Removes locks, and leaves rollbacks."""
        for key in keys:
            self._know(key)
            if key in self.locks and self.locks[key].start_ts == start_ts:
                del self.locks[key]
            same = [each for each in self.writes.get(key, ()) if each.commit_ts == start_ts]
            if same and same[0].op != Op.Rollback:
                same[0].is_overlapped = True
            elif not same:
                self._write(key, Write(Op.Rollback, start_ts, start_ts))

    def collect(self, safe_point: Tso) -> None:
        """Garbage collection: of each key the newest at or below the safe point stays, unless it
        is a deletion; rollbacks and locks-only go."""
        for key, writes in self.writes.items():
            kept: list[Write] = [each for each in writes if each.commit_ts > safe_point]
            old = [each for each in writes if each.commit_ts <= safe_point]
            newest = next((each for each in old if each.op in (Op.Put, Op.Del)), None)
            if newest is not None and newest.op == Op.Put:
                kept.append(newest)
            self.writes[key] = kept

    # --- what is asked ---------------------------------------------------------------------

    def get(self, key: bytes, ts: int) -> bytes | kvrpcpb.KeyError | None:
        """The value as of a timestamp, or the lock that hides it."""
        lock = self.locks.get(key)
        if lock is not None and lock.start_ts <= ts:
            return kvrpcpb.KeyError(locked=self.lock_info(key))
        for write in self.writes.get(key, ()):
            if write.commit_ts <= ts and write.op in (Op.Put, Op.Del):
                return write.value if write.op == Op.Put else None
        return None

    def scan(self, begin: bytes, end: bytes, ts: int, *, reverse: bool) -> Iterator[KvPair]:
        """The pairs in [begin, end); an empty end has no bound."""
        keys = self._keys[bisect_left(self._keys, begin) :]
        if end:
            keys = keys[: bisect_left(keys, end)]
        for key in reversed(keys) if reverse else keys:
            found = self.get(key, ts)
            if isinstance(found, kvrpcpb.KeyError):
                yield KvPair(error=found, key=key)
            elif found is not None:
                yield KvPair(key=key, value=found)

    def info(self, key: bytes) -> MvccInfo:
        """All that there is of a key; of its lock no more than TiKV tells (storage/types.rs)."""
        lock = self.locks.get(key)
        writes = self.writes.get(key, [])
        return MvccInfo(
            lock=MvccLock(
                type=Op(lock.op),
                start_ts=lock.start_ts,
                primary=lock.primary,
                short_value=lock.value if len(lock.value) <= SHORT_BYTES else b"",
            )
            if lock
            else None,
            writes=[
                MvccWrite(
                    type=Op(each.op),
                    start_ts=each.start_ts,
                    commit_ts=each.commit_ts,
                    short_value=each.value if len(each.value) <= SHORT_BYTES else b"",
                    has_overlapped_rollback=each.is_overlapped,
                )
                for each in writes
            ],
            values=[
                MvccValue(start_ts=each.start_ts, value=each.value)
                for each in writes
                if each.op == Op.Put
            ],
        )

    def check(
        self, primary: bytes, start_ts: int, now: int, *, makes_rollback: bool
    ) -> CheckTxnStatusResponse:
        """Decides on a transaction as TiKV does."""
        lock = self.locks.get(primary)
        if lock is not None and lock.start_ts == start_ts:
            is_over = physical_ms(Tso(start_ts)) + lock.ttl_ms < physical_ms(Tso(now))
            if lock.is_async or not is_over:
                return CheckTxnStatusResponse(
                    lock_ttl=lock.ttl_ms,
                    action=Action(Action.MinCommitTSPushed),  # it was above the caller's already
                    lock_info=self.lock_info(primary),
                )
            self.roll_back([primary], Tso(start_ts))
            return CheckTxnStatusResponse(action=Action(Action.TTLExpireRollback))
        for write in self.writes.get(primary, ()):
            if write.start_ts == start_ts:
                is_rollback = write.op == Op.Rollback
                return CheckTxnStatusResponse(commit_version=0 if is_rollback else write.commit_ts)
            if write.commit_ts == start_ts and write.is_overlapped:
                return CheckTxnStatusResponse()
        if not makes_rollback:
            absent = TxnNotFound(start_ts=start_ts, primary_key=primary)
            return CheckTxnStatusResponse(error=kvrpcpb.KeyError(txn_not_found=absent))
        self.roll_back([primary], Tso(start_ts))
        return CheckTxnStatusResponse(action=Action(Action.LockNotExistRollback))

    def resolve(self, keys: Iterable[bytes], start_ts: int, commit_ts: int) -> None:
        """Ends the locks of a transaction on these keys."""
        for key in keys:
            lock = self.locks.get(key)
            if lock is not None and lock.start_ts == start_ts:
                if commit_ts:
                    self.commit([key], Tso(start_ts), Tso(commit_ts))
                else:
                    self.roll_back([key], Tso(start_ts))

    def lock_info(self, key: bytes) -> LockInfo:
        """The lock of a key as an error has it."""
        lock = self.locks[key]
        return LockInfo(
            primary_lock=lock.primary,
            lock_version=lock.start_ts,
            key=key,
            lock_ttl=lock.ttl_ms,
            lock_type=Op(lock.op),
            use_async_commit=lock.is_async,
        )

    def _write(self, key: bytes, write: Write) -> None:
        self._know(key)
        found = self.writes.setdefault(key, [])
        found.append(write)
        found.sort(key=lambda each: -each.commit_ts)

    def _know(self, key: bytes) -> None:
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            insort(self._keys, key)
