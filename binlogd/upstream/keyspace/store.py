"""An etcd of one member, in this process: requests, leases and watches on a durable keyspace.

Invariant. What anybody is told, by an answer or by a watch, is durable; revisions go on where they
were after a restart, and are never used twice.
Why it holds. One write at a time is decided in memory, put on disk, and only then committed to what
others see. One that fails, or that another process has overtaken, is undone and decided anew.

A watch remembers nothing but a revision: one that is slow holds no memory, and one that has been
overtaken by the compaction is told so. History is kept up to a limit in number and bytes.

Source: go.etcd.io/etcd etcdserver/server.go, mvcc/watchable_store.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import structlog

from binlogd.errors import EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.upstream.keyspace import requests
from binlogd.upstream.keyspace.database import Content, EtcdIdentity, KeyspaceDatabase
from binlogd.upstream.keyspace.leases import Leases
from binlogd.upstream.keyspace.requests import Deciding
from binlogd.upstream.keyspace.versions import Keyspace, KeyVersion, Writing
from binlogd.wire.generated.etcdserverpb import (
    DeleteRangeRequest,
    DeleteRangeResponse,
    Event,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    ResponseHeader,
    TxnRequest,
    TxnResponse,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")
Answer = TypeVar("Answer", RangeResponse, PutResponse, DeleteRangeResponse, TxnResponse)

_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_NEVER_S = float("inf")
LOOK_AGAIN_S = 1.0
"""What another process writes, nobody here is told of."""
_OVERTAKEN_MAX = 100
"""How often one write may find that another process was faster."""


@dataclass(frozen=True, slots=True)
class KeyspaceLimits:
    """What the clients of one keyspace may make this process keep."""

    live_bytes_max: int = 64 << 20
    keys_max: int = 100_000
    leases_max: int = 10_000
    history_revisions: int = 10_000
    history_bytes: int = 32 << 20
    watch_revisions_max: int = 1_000  # of one look


@dataclass(frozen=True, slots=True)
class KeyspaceStatistics:
    """Of this process since its start; levels are of now."""

    revision: int
    compacted: int
    keys: int
    live_bytes: int
    history_bytes: int
    """Of all versions that are kept, the live ones too."""
    is_full: bool
    leases: int
    leases_expired: int
    writes: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watch sees next: changes in order, and from where to look the next time."""

    versions: Sequence[KeyVersion]
    next_revision: int
    revision: int
    """The newest of the keyspace at that moment."""


class KeyspaceStore:
    """The open keyspace of one data directory. Methods raise EtcdRefused, UpstreamUnavailable."""

    def __init__(
        self,
        database: KeyspaceDatabase,
        identity: EtcdIdentity,
        random: Random,
        limits: KeyspaceLimits,
    ) -> None:
        self._database, self._random, self._limits = database, random, limits
        self.identity = identity
        self._keyspace = Keyspace()
        self._leases = Leases({}, 0.0)
        self._turn = asyncio.Lock()
        self._listeners: set[asyncio.Event] = set()
        self._leased = asyncio.Event()
        self._history_bytes = 0
        self._writes = self._expired = 0
        self._is_closed = False

    @classmethod
    async def open(
        cls, path: Path, random: Random, limits: KeyspaceLimits | None = None
    ) -> KeyspaceStore:
        """Opens or makes it in a database file. Raises ConfigError."""
        database = await KeyspaceDatabase.open(path)
        try:
            identity = await database.identity(lambda: random.getrandbits(62) | 1)
            store = cls(database, identity, random, limits or KeyspaceLimits())
            store._leases = Leases(await database.leases(), _now_s())
            await store._catch_up()
        except BaseException:
            await database.close()
            raise
        return store

    async def close(self) -> None:
        """Closes the file; more than once if need be."""
        if not self._is_closed:
            self._is_closed = True
            await self._database.close()

    async def watch(
        self, key: bytes, range_end: bytes, since: int
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The changes of a range from a revision on, those of a revision together.

        Raises Overtaken when the compaction has gone past it.
        """
        changed = asyncio.Event()
        with self.listening(changed):
            while True:  # until the reader has enough
                changed.clear()
                found = self.changes(key, range_end, since)
                if found is None:
                    raise Overtaken(since, self._keyspace.compacted)
                since = found.next_revision
                if found.versions:
                    yield [requests.event(version) for version in found.versions]
                elif since > self._keyspace.revision:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_AGAIN_S):
                            await changed.wait()
                            continue
                    await self._look()

    async def run(self) -> None:
        """Ends leases that nobody keeps alive, and looks for what other processes have written;
        until cancelled."""
        while True:  # until cancelled
            looked_s = _now_s()
            due_s = min(looked_s + LOOK_AGAIN_S, self._leases.next_end_s(absent_s=_NEVER_S))
            self._leased.clear()
            try:
                async with asyncio.timeout_at(due_s):
                    await self._leased.wait()
            except TimeoutError:
                now_s = _now_s()
                self._leases.pass_over(now_s - max(due_s, looked_s))
                await self._end_leases(now_s)
                await self._look()

    async def _look(self) -> None:
        try:
            async with self._turn:
                await self._catch_up()
        except UpstreamUnavailable as error:
            log.warning("keyspace_unreadable", cause=str(error))

    async def _end_leases(self, now_s: float) -> None:
        for number in self._leases.ended(now_s):
            try:
                async with self._turn:
                    if number not in self._leases.ended(now_s):
                        continue  # kept alive or revoked while others were ended
                    await self._revoke(number)
            except UpstreamUnavailable as error:
                log.warning("lease_not_ended", lease=number, cause=str(error))
                self._leases.keep(number, now_s)  # tried again when its time is over once more
            else:
                self._expired += 1
                log.info("lease_expired", lease=number)

    # --- keys ------------------------------------------------------------------------------

    async def range(self, request: RangeRequest) -> RangeResponse:
        """Reads."""
        requests.check_range(request)
        async with self._turn:
            await self._catch_up()
            return self._named(self._deciding(self._keyspace.begin()).range(request))

    async def put(self, request: PutRequest) -> PutResponse:
        """Sets a key."""
        requests.check_put(request)
        return self._named(await self._write(lambda deciding: deciding.put(request)))

    async def delete_range(self, request: DeleteRangeRequest) -> DeleteRangeResponse:
        """Removes keys."""
        requests.check_delete(request)
        return self._named(await self._write(lambda deciding: deciding.delete(request)))

    async def txn(self, request: TxnRequest) -> TxnResponse:
        """Compares, and then reads and writes, all in one moment."""
        requests.check_txn(request)
        return self._named(await self._write(lambda deciding: deciding.txn(request)))

    async def compact(self, revision: int) -> ResponseHeader:
        """Forgets what was overwritten or deleted up to a revision."""
        async with self._turn:
            if revision > self._keyspace.revision:
                raise EtcdRefused(
                    "OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision"
                )
            if revision <= self._keyspace.compacted:
                raise EtcdRefused(
                    "OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted"
                )
            await self._compact(revision)
        return self.header()

    # --- leases ----------------------------------------------------------------------------

    async def grant(self, number: int, ttl_s: int) -> tuple[int, int]:
        """Begins a lease; its number and seconds to live. Number 0 leaves the choice here."""
        async with self._turn:
            if len(self._leases) >= self._limits.leases_max:
                raise EtcdRefused("RESOURCE_EXHAUSTED", "etcdserver: too many leases")
            number, ttl_s = self._leases.chosen(number, ttl_s, lambda: self._random.getrandbits(62))
            await self._database.put_lease(number, ttl_s)
            self._leases.add(number, ttl_s, _now_s())
            self._leased.set()
        return number, ttl_s

    async def keep_alive(self, number: int) -> int:
        """Its seconds to live from now on; 0 if it is gone."""
        return self._leases.keep(number, _now_s())

    async def revoke(self, number: int) -> None:
        """Ends a lease, and removes what was bound to it."""
        async with self._turn:
            await self._revoke(number)

    async def _revoke(self, number: int) -> None:
        def unbind(deciding: Deciding) -> None:
            for key in self._keyspace.attached(number):
                deciding.delete(DeleteRangeRequest(key=key))

        with self._leases.ending(number):
            await self._write_in_turn(unbind)
            await self._database.remove_lease(number)

    def time_to_live(self, number: int) -> tuple[int, int] | None:
        """Seconds left and given; None if it is gone."""
        return self._leases.left_s(number, _now_s())

    def attached(self, number: int) -> Sequence[bytes]:
        """The keys that are bound to a lease."""
        return self._keyspace.attached(number)

    def lease_numbers(self) -> Sequence[int]:
        """Of all leases that are alive."""
        return self._leases.numbers()

    # --- watching --------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The newest that is durable, as far as this process knows."""
        return self._keyspace.revision

    @property
    def compacted(self) -> int:
        """A watch that begins before this revision has missed something."""
        return self._keyspace.compacted

    def changes(self, start: bytes, end: bytes, since: int) -> Changes | None:
        """What has become of a range from a revision on, some of it; None if the compaction has
        overtaken it."""
        if since < self._keyspace.compacted:
            return None
        versions, following = self._keyspace.changes(
            start, end, since, self._limits.watch_revisions_max
        )
        return Changes(versions, following, self._keyspace.revision)

    def before(self, change: KeyVersion) -> KeyVersion | None:
        """What a key was before a change, if that is still known."""
        return self._keyspace.before(change)

    @contextmanager
    def listening(self, changed: asyncio.Event) -> Iterator[None]:
        """Sets an event whenever there is a newer revision, or a compaction."""
        self._listeners.add(changed)
        try:
            yield
        finally:
            self._listeners.discard(changed)

    def header(self, revision: int = 0) -> ResponseHeader:
        """Of an answer, at a revision or the newest."""
        return ResponseHeader(
            cluster_id=self.identity.cluster,
            member_id=self.identity.member,
            revision=revision or self._keyspace.revision,
            raft_term=1,
        )

    def statistics(self) -> KeyspaceStatistics:
        """Levels and counters; cheap."""
        return KeyspaceStatistics(
            revision=self._keyspace.revision,
            compacted=self._keyspace.compacted,
            keys=self._keyspace.live_keys,
            live_bytes=self._keyspace.live_bytes,
            history_bytes=self._history_bytes,
            is_full=self._is_full(),
            leases=len(self._leases),
            leases_expired=self._expired,
            writes=self._writes,
        )

    # --- the one road of a write -----------------------------------------------------------

    async def _write(self, decide: Callable[[Deciding], T]) -> T:
        async with self._turn:
            return await self._write_in_turn(decide)

    async def _write_in_turn(self, decide: Callable[[Deciding], T]) -> T:
        await self._catch_up()
        for _ in range(_OVERTAKEN_MAX):
            writing = self._keyspace.begin()
            answer = self._decided(writing, decide)
            if not writing.changes:
                return answer
            if await self._is_durable(writing):
                await self._tidy()
                return answer
        raise UpstreamUnavailable("the registry: other processes write without a pause")

    def _decided(self, writing: Writing, decide: Callable[[Deciding], T]) -> T:
        try:
            answer = decide(self._deciding(writing))
            if any(version.is_live for version in writing.changes):
                self._require_room()
        except BaseException:
            writing.undo()
            raise
        return answer

    async def _is_durable(self, writing: Writing) -> bool:
        """False if another process was faster: its changes are here now."""
        keyspace = self._keyspace
        saving = self._database.write(
            keyspace.revision, keyspace.compacted, writing.revision, writing.changes
        )
        async with _to_the_end(saving):
            try:
                overtaken_by = saving.result()
            except UpstreamUnavailable:
                writing.undo()
                raise
            if overtaken_by is not None:
                writing.undo()
                self._take_in(overtaken_by)
                return False
            writing.commit()
            self._writes += 1
            self._history_bytes += sum(version.size for version in writing.changes)
            self._tell()
        return True

    async def _catch_up(self) -> None:
        """Takes in what another process has written."""
        found = await self._database.read(self._keyspace.revision, self._keyspace.compacted)
        if found is not None:
            self._take_in(found)

    def _take_in(self, found: Content) -> None:
        if found.compacted != self._keyspace.compacted:
            self._keyspace = Keyspace()
            self._keyspace.compacted = found.compacted
            self._history_bytes = 0
        for version in found.versions:
            self._keyspace.add(version)
            self._history_bytes += version.size
        self._keyspace.revision = found.revision
        self._tell()

    def _deciding(self, writing: Writing) -> Deciding:
        return Deciding(
            writing,
            leases=self._leases,
            compacted=self._keyspace.compacted,
            revision=self._keyspace.revision,
        )

    def _require_room(self) -> None:
        if self._is_full(beyond=1):
            raise EtcdRefused("RESOURCE_EXHAUSTED", _NO_SPACE)

    def _is_full(self, *, beyond: int = 0) -> bool:
        limits, keyspace = self._limits, self._keyspace
        return (
            keyspace.live_bytes >= limits.live_bytes_max + beyond
            or keyspace.live_keys >= limits.keys_max + beyond
        )

    async def _tidy(self) -> None:
        """Compacts when twice as much history is kept as there should be."""
        limits, keyspace = self._limits, self._keyspace
        kept = keyspace.revision - keyspace.compacted
        if kept > 2 * limits.history_revisions:
            await self._compact(keyspace.revision - limits.history_revisions)
        elif self._history_bytes > 2 * (limits.history_bytes + keyspace.live_bytes):
            await self._compact(keyspace.revision)

    async def _compact(self, revision: int) -> None:
        compacting = self._database.compact(revision)
        async with _to_the_end(compacting):
            compacting.result()
            self._keyspace.compact(revision)
            self._history_bytes = sum(version.size for version in self._keyspace.log())
            self._tell()
        log.info("keyspace_compacted", revision=revision, versions=len(self._keyspace.log()))

    def _tell(self) -> None:
        for changed in self._listeners:
            changed.set()

    def _named(self, answer: Answer) -> Answer:
        """The members of a transaction's answer say their revision alone, as in the original."""
        assert answer.header is not None
        answer.header = self.header(answer.header.revision)
        return answer


@asynccontextmanager
async def _to_the_end(work: asyncio.Future[T]) -> AsyncIterator[None]:
    """Begins its block when the work is done, even for a task that is cancelled meanwhile: what is
    on disk has to be in memory as well. The task is cancelled when the block is over."""
    done, was_cancelled = asyncio.Event(), False
    work.add_done_callback(lambda _: done.set())
    while not work.done():  # ends: the database has a limit for its wait
        try:
            await done.wait()
        except asyncio.CancelledError:
            was_cancelled = True
    yield
    if was_cancelled:
        raise asyncio.CancelledError


def _now_s() -> float:
    return asyncio.get_running_loop().time()
