"""Keys as they are, what became of them of late, and leases: an etcd's memory, without disk and
network.

Invariant. `revision` counts the writes that are durable; what a write is about to add is in its
`Draft` alone. A key changes at most once in a revision.

Source: go.etcd.io/etcd mvcc/kvstore.go, mvcc/index.go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from binlogd.errors import EtcdRefused

FIRST_REVISION = 1
EVERYTHING = b"\0"
"""As a range's end: no end."""

_of_revision = attrgetter("mod_revision")


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """What a key became at `mod_revision`; `version` 0 says that it was deleted then."""

    key: bytes
    mod_revision: int
    create_revision: int = 0
    version: int = 0
    value: bytes = b""
    lease: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the key was there after this."""
        return self.version > 0

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value)


def is_within(key: bytes, start: bytes, end: bytes) -> bool:
    """Whether a range has a key: no `end` is `start` alone, EVERYTHING is all from it on."""
    if not end:
        return key == start
    return key >= start and (end == EVERYTHING or key < end)


class Keyspace:
    """What is there now, and the changes since the last compaction."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.compacted = 0
        """What changed before this revision is forgotten."""
        self.live_bytes = self.history_bytes = 0
        self._live: dict[bytes, KeyVersion] = {}
        self._log: list[KeyVersion] = []

    @property
    def live_keys(self) -> int:
        """How many keys are there."""
        return len(self._live)

    def get(self, key: bytes) -> KeyVersion | None:
        """What a key is; None if it is not there."""
        return self._live.get(key)

    def range(self, start: bytes, end: bytes) -> list[KeyVersion]:
        """What is there, by key."""
        if not end:
            found = self._live.get(start)
            return [] if found is None else [found]
        return [self._live[key] for key in sorted(self._live) if is_within(key, start, end)]

    def changes(
        self, start: bytes, end: bytes, since: int, revisions_max: int
    ) -> tuple[list[KeyVersion], int]:
        """The changes of a range from revision `since` on, of at most so many revisions; and the
        first revision that was not looked at."""
        until = min(self.revision, since + revisions_max - 1)
        begin = bisect_left(self._log, since, key=_of_revision)
        stop = bisect_right(self._log, until, key=_of_revision)
        found = [each for each in self._log[begin:stop] if is_within(each.key, start, end)]
        return found, max(since, until + 1)

    def attached(self, lease: int) -> list[bytes]:
        """The keys that go when a lease goes, in order."""
        return sorted(key for key, version in self._live.items() if version.lease == lease)

    def add(self, versions: Sequence[KeyVersion], revision: int) -> None:
        """Takes in what is durable up to a revision."""
        for version in versions:
            before = self._live.pop(version.key, None)
            if before is not None:
                self.live_bytes -= before.size
            if version.is_live:
                self._live[version.key] = version
                self.live_bytes += version.size
            self._log.append(version)
            self.history_bytes += version.size
        self.revision = revision

    def compact(self, revision: int) -> None:
        """Forgets what was overwritten or deleted up to a revision."""
        self.compacted = revision
        newest = {each.key: each for each in self._log if each.mod_revision <= revision}
        self._log = [
            each
            for each in self._log
            if each.mod_revision > revision or (each.is_live and newest[each.key] is each)
        ]
        self.history_bytes = sum(each.size for each in self._log)


class Draft:
    """One write: what it changes is seen by its own reads, and by nobody else's."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._target = keyspace.revision + 1
        self._changed: dict[bytes, KeyVersion] = {}

    @property
    def changes(self) -> Sequence[KeyVersion]:
        """In the order in which they were made."""
        return list(self._changed.values())

    @property
    def revision(self) -> int:
        """Of an answer at this moment: the next one as soon as something has changed."""
        return self._target if self._changed else self._keyspace.revision

    def size(self) -> tuple[int, int]:
        """Bytes and keys that would be there after it."""
        keyspace = self._keyspace
        size, keys = keyspace.live_bytes, keyspace.live_keys
        for each in self._changed.values():
            before = keyspace.get(each.key)
            size += (each.size if each.is_live else 0) - (before.size if before else 0)
            keys += each.is_live - (before is not None)
        return size, keys

    def range(self, start: bytes, end: bytes) -> list[KeyVersion]:
        """What is there, by key."""
        found = {each.key: each for each in self._keyspace.range(start, end)}
        found |= {key: each for key, each in self._changed.items() if is_within(key, start, end)}
        return [found[key] for key in sorted(found) if found[key].is_live]

    def put(self, key: bytes, value: bytes, lease: int) -> KeyVersion | None:
        """Sets a key; what it was before."""
        before = next(iter(self.range(key, b"")), None)
        self._changed[key] = KeyVersion(
            key=key,
            mod_revision=self._target,
            create_revision=before.create_revision if before else self._target,
            version=before.version + 1 if before else 1,
            value=value,
            lease=lease,
        )
        return before

    def delete(self, start: bytes, end: bytes = b"") -> list[KeyVersion]:
        """Removes the keys of a range; what they were."""
        found = self.range(start, end)
        for each in found:
            self._changed[each.key] = KeyVersion(key=each.key, mod_revision=self._target)
        return found


TTL_MIN_S = 2
TTL_MAX_S = 9_000_000_000
_LATE_S = 1.0


class _Lease(msgspec.Struct):
    ttl_s: int
    until_s: float


class Leases(Container[int]):
    """The leases that are alive, by the seconds of a clock that only goes forward: what is bound to
    one goes when nobody keeps it alive.

    Time in which this process did not run counts for nobody: whoever wanted to keep a lease alive
    could not, either. After a restart every lease begins anew. Source: etcd lease/lessor.go.
    """

    def __init__(self, known: Mapping[int, int], now_s: float) -> None:
        """`known`: the time to live of each, in seconds."""
        self._leases = {number: _Lease(ttl_s, now_s + ttl_s) for number, ttl_s in known.items()}

    def __contains__(self, number: object) -> bool:
        """Whether it is alive."""
        return number in self._leases

    def __len__(self) -> int:
        """How many there are."""
        return len(self._leases)

    def chosen(self, number: int, ttl_s: int, make: Callable[[], int]) -> tuple[int, int]:
        """The number and the time to live that a new lease gets. Raises EtcdRefused."""
        if number in self._leases:
            raise EtcdRefused("FAILED_PRECONDITION", "etcdserver: lease already exists")
        if ttl_s > TTL_MAX_S:
            raise EtcdRefused("OUT_OF_RANGE", "etcdserver: too large lease TTL")
        while not number or number in self._leases:  # ends: the numbers are random
            number = make()
        return number, max(ttl_s, TTL_MIN_S)

    def add(self, number: int, ttl_s: int, now_s: float) -> None:
        """Begins one."""
        self._leases[number] = _Lease(ttl_s, now_s + ttl_s)

    def keep(self, number: int, now_s: float) -> int:
        """Begins its time anew; its seconds to live, 0 if it is gone."""
        lease = self._leases.get(number)
        if lease is None:
            return 0
        lease.until_s = now_s + lease.ttl_s
        return lease.ttl_s

    def remove(self, number: int) -> None:
        """Ends one. Raises EtcdRefused if it is gone."""
        if self._leases.pop(number, None) is None:
            raise EtcdRefused("NOT_FOUND", "etcdserver: requested lease not found")

    def ended(self, now_s: float) -> Sequence[int]:
        """Those whose time is over, the first at the front."""
        ended = [number for number, lease in self._leases.items() if lease.until_s <= now_s]
        return sorted(ended, key=lambda number: self._leases[number].until_s)

    def pass_over(self, lost_s: float) -> None:
        """This process did not run for a while: nobody is to lose by that."""
        if lost_s > _LATE_S:
            for lease in self._leases.values():
                lease.until_s += lost_s + _LATE_S
