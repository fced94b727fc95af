"""An etcd of one member, in this process: requests, leases and watches on a durable keyspace.

Invariant. What anybody is told, by an answer or by a watch, is durable; revisions go on where they
were after a restart, and are never used twice.
Why it holds. One thread does everything, one act after the other. A write is one transaction of the
database: it takes in what another process has written, decides on a draft, and puts the draft on
disk; then it is in memory, and those who watch are woken. One that fails leaves nothing, and one
that has begun happens whole, also where nobody waits for it any more.

A watch remembers nothing but a revision: one that is slow holds no memory, and one that has been
overtaken by the compaction is told so. History is kept up to a limit in number and bytes.

Source: go.etcd.io/etcd etcdserver/server.go, mvcc/watchable_store.go.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
import structlog

from binlogd.errors import ConfigError, EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.host.clock import is_set_within
from binlogd.host.database import FileAt
from binlogd.host.threads import Threads
from binlogd.telemetry.exposition import Exposition
from binlogd.upstream.keyspace import requests
from binlogd.upstream.keyspace.database import KeyspaceDatabase
from binlogd.upstream.keyspace.requests import Deciding
from binlogd.upstream.keyspace.versions import Draft, Keyspace, KeyVersion, Leases
from binlogd.wire.generated import etcdserverpb as etcd

log = structlog.get_logger(__name__)

T = TypeVar("T")
Answer = TypeVar(
    "Answer", etcd.RangeResponse, etcd.PutResponse, etcd.DeleteRangeResponse, etcd.TxnResponse
)

LOOK_AGAIN_S = 1.0
"""Between two looks at the leases, and at what another process has written."""


class KeyspaceLimits(msgspec.Struct, frozen=True):
    """What the clients of one keyspace may make this process keep."""

    live_bytes_max: int = 64 << 20
    keys_max: int = 100_000
    leases_max: int = 10_000
    history_revisions: int = 1_000  # 17 minutes of a node's heartbeats
    history_bytes: int = 32 << 20
    watch_revisions_max: int = 1_000  # of one look


class Changes(msgspec.Struct, frozen=True):
    """What a watch sees next: changes in order, and from where to look the next time."""

    versions: Sequence[KeyVersion]
    next_revision: int
    revision: int
    """The newest of the keyspace at that moment."""


class KeyspaceStore:
    """The open keyspace of one data directory. Methods raise EtcdRefused, UpstreamUnavailable."""

    def __init__(self, path: Path, random: Random, limits: KeyspaceLimits) -> None:
        self._path, self._random, self._limits = path, random, limits
        self._loop = asyncio.get_running_loop()
        self._thread = Threads(1, name="keyspace")
        self._keyspace = Keyspace()
        self._listeners: set[asyncio.Event] = set()
        self._writes = self._expired = 0
        self._is_closed = False

    @classmethod
    async def open(
        cls, path: Path, random: Random, limits: KeyspaceLimits | None = None
    ) -> KeyspaceStore:
        """Opens or makes it in the file of an open UpstreamStore. Raises ConfigError."""
        store = cls(path, random, limits or KeyspaceLimits())
        try:
            await store._thread.run(store._open)
        except (sqlite3.Error, ValueError) as error:  # an error's words may be no text
            store._thread.close()
            raise ConfigError(f"{path}: cannot be opened as a database: {error}") from error
        return store

    def _open(self) -> None:
        self._database = KeyspaceDatabase(self._path)
        self._file = FileAt(self._path)
        self.identity = self._database.identity(lambda: self._random.getrandbits(62) | 1)
        self._leases = Leases(self._database.leases(), self._now_s())
        self._look()

    async def close(self) -> None:
        """Closes the file; more than once if need be."""
        if not self._is_closed:
            self._is_closed = True
            await self._thread.run(self._database.close)
            self._thread.close()

    async def run(self) -> None:
        """Ends leases that nobody keeps alive, and looks for what other processes have written;
        until cancelled."""
        while True:  # until cancelled
            due_s = self._now_s() + LOOK_AGAIN_S
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                await self._run(partial(self._end_leases, self._now_s() - due_s))
                await self._run(self._look)
            except UpstreamUnavailable as error:
                log.warning("keyspace_unreadable", cause=str(error))

    # --- keys ------------------------------------------------------------------------------

    async def range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        """Reads."""

        def read() -> etcd.RangeResponse:
            self._look()
            return self._named(Deciding(Draft(self._keyspace), self._leases).range(request))

        return await self._run(read)

    async def put(self, request: etcd.PutRequest) -> etcd.PutResponse:
        """Sets a key."""
        return await self._run(lambda: self._named(self._write(lambda on: on.put(request))))

    async def delete_range(self, request: etcd.DeleteRangeRequest) -> etcd.DeleteRangeResponse:
        """Removes keys."""
        return await self._run(lambda: self._named(self._write(lambda on: on.delete(request))))

    async def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        """Compares, and then reads and writes, all in one moment."""
        requests.check_txn(request)
        return await self._run(lambda: self._named(self._write(lambda on: on.txn(request))))

    # --- leases ----------------------------------------------------------------------------

    async def grant(self, number: int, ttl_s: int) -> tuple[int, int]:
        """Begins a lease; its number and seconds to live. Number 0 leaves the choice here."""

        def grant() -> tuple[int, int]:
            if len(self._leases) >= self._limits.leases_max:
                raise EtcdRefused("RESOURCE_EXHAUSTED", "etcdserver: too many leases")
            chosen = self._leases.chosen(number, ttl_s, lambda: self._random.getrandbits(62))
            self._database.put_lease(*chosen)
            self._leases.add(*chosen, self._now_s())
            return chosen

        return await self._run(grant)

    async def keep_alive(self, number: int) -> int:
        """Its seconds to live from now on; 0 if it is gone."""
        return await self._run(lambda: self._leases.keep(number, self._now_s()))

    async def revoke(self, number: int) -> None:
        """Ends a lease, and removes what was bound to it."""
        await self._run(lambda: self._revoke(number))

    def _revoke(self, number: int) -> None:
        def unbind(deciding: Deciding) -> None:
            for key in self._keyspace.attached(number):
                deciding.draft.delete(key)
            self._database.remove_lease(number)

        if number not in self._leases:
            raise EtcdRefused("NOT_FOUND", "etcdserver: requested lease not found")
        self._write(unbind)
        self._leases.remove(number)

    def _end_leases(self, lost_s: float) -> None:
        """`lost_s`: for so long this process did not run, though it should have."""
        self._leases.pass_over(lost_s)
        now_s = self._now_s()
        for number in self._leases.ended(now_s):
            try:
                self._revoke(number)
            except sqlite3.Error as error:
                log.warning("lease_not_ended", lease=number, cause=str(error))
                self._leases.keep(number, now_s)  # tried again when its time is over once more
            else:
                self._expired += 1
                log.info("lease_expired", lease=number)

    # --- watching --------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The newest that is durable, as far as this process knows."""
        return self._keyspace.revision

    @property
    def compacted(self) -> int:
        """A watch that begins before this revision has missed something."""
        return self._keyspace.compacted

    async def watch(
        self, key: bytes, range_end: bytes, since: int
    ) -> AsyncGenerator[Sequence[etcd.Event], None]:
        """The changes of a range from a revision on, those of a revision together.

        Raises Overtaken when the compaction has gone past it.
        """
        changed = asyncio.Event()
        with self.listening(changed):
            while True:  # until the reader has enough
                changed.clear()
                found = await self.changes(key, range_end, since)
                if found is None:
                    raise Overtaken(since, self._keyspace.compacted)
                since = found.next_revision
                if found.versions:
                    yield [requests.event(version) for version in found.versions]
                elif since > found.revision:
                    await is_set_within(changed, LOOK_AGAIN_S)

    async def changes(self, start: bytes, end: bytes, since: int) -> Changes | None:
        """What has become of a range from a revision on, some of it; None if the compaction has
        overtaken it."""

        def changes() -> Changes | None:
            self._look()
            keyspace = self._keyspace
            if since < keyspace.compacted:
                return None
            found = keyspace.changes(start, end, since, self._limits.watch_revisions_max)
            return Changes(*found, keyspace.revision)

        return await self._run(changes)

    @contextmanager
    def listening(self, changed: asyncio.Event) -> Iterator[None]:
        """Sets an event whenever there is a newer revision, or a compaction."""
        self._listeners.add(changed)
        try:
            yield
        finally:
            self._listeners.discard(changed)

    def header(self, revision: int = 0) -> etcd.ResponseHeader:
        """Of an answer, at a revision or the newest."""
        return etcd.ResponseHeader(
            cluster_id=self.identity.cluster,
            member_id=self.identity.member,
            revision=revision or self._keyspace.revision,
            raft_term=1,
        )

    def say(self, out: Exposition) -> None:
        """Its metrics; names and meanings stand in docs/METRICS.md as well."""
        keys, expired = self._keyspace, self._expired
        out.gauge("binlogd_registry_revision", "Newest revision of the registry.", keys.revision)
        out.gauge("binlogd_registry_keys", "Keys in the registry.", keys.live_keys)
        out.gauge("binlogd_registry_bytes", "Bytes of keys and values in it.", keys.live_bytes)
        out.gauge("binlogd_registry_leases", "Leases that are alive.", len(self._leases))
        out.counter("binlogd_registry_leases_expired", "Leases that nobody kept alive.", expired)
        out.counter("binlogd_registry_writes", "Revisions made here.", self._writes)

    # --- in the thread ---------------------------------------------------------------------

    async def _run(self, act: Callable[[], T]) -> T:
        if self._is_closed:
            raise UpstreamUnavailable(f"{self._path} is closed")
        try:
            answer = await self._thread.run(act)
            self._file.must_be()
            return answer
        except sqlite3.Error as error:
            raise UpstreamUnavailable(f"{self._path}: {error}") from error

    def _write(self, decide: Callable[[Deciding], T]) -> T:
        """The one road of a write."""
        with self._database.transaction():
            self._catch_up()
            draft = Draft(self._keyspace)
            answer = decide(Deciding(draft, self._leases))
            changes, forgotten = draft.changes, 0
            if changes:
                self._require_room(draft)
                self._database.add(changes, draft.revision)
                forgotten = self._to_forget(draft)
                if forgotten:
                    self._database.compact(forgotten)
        if changes:
            self._keyspace.add(changes, draft.revision)
            self._writes += 1
            if forgotten:
                self._keyspace.compact(forgotten)
                log.info("keyspace_compacted", revision=forgotten)
            self._tell()
        return answer

    def _look(self) -> None:
        with self._database.transaction("BEGIN"):
            self._catch_up()

    def _catch_up(self) -> None:
        """Takes in what another process has written."""
        keyspace = self._keyspace
        found = self._database.read(keyspace.revision, keyspace.compacted)
        if found is None:
            return
        if found.compacted != keyspace.compacted:
            keyspace = Keyspace()
            keyspace.compacted = found.compacted
        keyspace.add(found.versions, found.revision)
        self._keyspace = keyspace
        self._tell()

    def _require_room(self, draft: Draft) -> None:
        size, keys = draft.size()
        is_full = size > self._limits.live_bytes_max or keys > self._limits.keys_max
        if is_full and any(version.is_live for version in draft.changes):
            raise EtcdRefused("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")

    def _to_forget(self, draft: Draft) -> int:
        """Up to where to compact, when twice as much history is kept as there should be; or 0."""
        limits, keyspace = self._limits, self._keyspace
        if draft.revision - keyspace.compacted > 2 * limits.history_revisions:
            return draft.revision - limits.history_revisions
        if keyspace.history_bytes > 2 * (limits.history_bytes + keyspace.live_bytes):
            return draft.revision
        return 0

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for changed in self._listeners:
            changed.set()

    def _named(self, answer: Answer) -> Answer:
        """The members of a transaction's answer say their revision alone, as in the original."""
        assert answer.header is not None
        answer.header = self.header(answer.header.revision)
        return answer

    def _now_s(self) -> float:
        return self._loop.time()
