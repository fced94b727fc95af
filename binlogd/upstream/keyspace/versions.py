"""Keys with all their versions: the memory of an etcd, without its disk and its network.

Invariant. `revision` counts the writes that are durable. What a write is about to add stands one
above it, so nobody who reads at `revision` sees it; it is committed as a whole or taken back.
A key changes at most once in a revision.

Source: go.etcd.io/etcd mvcc/kvstore.go, mvcc/index.go, mvcc/key_index.go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

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
    """All versions since the last compaction."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.compacted = 0
        """What was before this revision cannot be read any more."""
        self.live_bytes = 0
        self._keys: list[bytes] = []
        self._versions: dict[bytes, list[KeyVersion]] = {}
        self._log: list[KeyVersion] = []

    # --- reading ---------------------------------------------------------------------------

    def range(self, start: bytes, end: bytes, revision: int) -> list[KeyVersion]:
        """What was there at a revision, by key. The caller has checked the revision."""
        found = (self._at(key, revision) for key in self._keys_within(start, end))
        return [version for version in found if version is not None]

    def before(self, change: KeyVersion) -> KeyVersion | None:
        """What a key was before a change; None if it was not there, or nobody knows any more."""
        return self._at(change.key, change.mod_revision - 1)

    def changes(
        self, start: bytes, end: bytes, since: int, revisions_max: int
    ) -> tuple[list[KeyVersion], int]:
        """The durable changes of a range from revision `since` on, of at most so many revisions;
        and the first revision that was not looked at."""
        until = min(self.revision, since + revisions_max - 1)
        begin = bisect_left(self._log, since, key=_of_revision)
        stop = bisect_right(self._log, until, key=_of_revision)
        found = [
            self._log[at] for at in range(begin, stop) if is_within(self._log[at].key, start, end)
        ]
        return found, max(since, until + 1)

    def attached(self, lease: int) -> list[bytes]:
        """The keys that go when a lease goes, in order."""
        return [
            key
            for key in self._keys
            if (last := self._versions[key][-1]).is_live and last.lease == lease
        ]

    def log(self) -> Sequence[KeyVersion]:
        """Every version that is kept, in the order of their revisions. Not to be changed."""
        return self._log

    @property
    def live_keys(self) -> int:
        """How many keys are there, or were before the last compaction."""
        return len(self._keys)

    def _keys_within(self, start: bytes, end: bytes) -> Iterator[bytes]:
        if not end:
            return iter((start,) if start in self._versions else ())
        begin = bisect_left(self._keys, start)
        stop = len(self._keys) if end == EVERYTHING else bisect_left(self._keys, end)
        return iter(self._keys[begin:stop])

    def _at(self, key: bytes, revision: int) -> KeyVersion | None:
        versions = self._versions.get(key, ())
        at = bisect_right(versions, revision, key=_of_revision)
        return versions[at - 1] if at and versions[at - 1].is_live else None

    # --- writing ---------------------------------------------------------------------------

    def begin(self) -> Writing:
        """One write at a time: it is committed or undone before the next begins."""
        return Writing(self)

    def add(self, version: KeyVersion) -> None:
        """Takes in a version that stands at the end of the log."""
        versions = self._versions.get(version.key)
        if versions is None:
            versions = self._versions[version.key] = []
            insort(self._keys, version.key)
        self.live_bytes += _live_size(version) - (_live_size(versions[-1]) if versions else 0)
        versions.append(version)
        self._log.append(version)

    def take_back(self) -> None:
        """Removes the last version that was added."""
        last = self._log.pop()
        versions = self._versions[last.key]
        versions.pop()
        self.live_bytes += (_live_size(versions[-1]) if versions else 0) - _live_size(last)
        if not versions:
            self._forget(last.key)

    def compact(self, revision: int) -> None:
        """Forgets what was overwritten or deleted up to a revision.

        Of each key the newest version up to it stays, unless that is a deletion.
        """
        self.compacted = revision
        kept: list[KeyVersion] = []
        for version in self._log:
            if version.mod_revision > revision or self._at(version.key, revision) is version:
                kept.append(version)
        self._log = kept
        self._keys, self._versions = [], {}
        for version in kept:
            self._versions.setdefault(version.key, []).append(version)
        self._keys = sorted(self._versions)

    def _forget(self, key: bytes) -> None:
        del self._versions[key]
        del self._keys[bisect_left(self._keys, key)]


class Writing:
    """One write: what it adds is seen by its own reads, and by nobody else's before `commit`."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._target = keyspace.revision + 1
        self.changes: list[KeyVersion] = []

    @property
    def revision(self) -> int:
        """Of an answer at this moment: the next one as soon as something has changed."""
        return self._target if self.changes else self._keyspace.revision

    def range(self, start: bytes, end: bytes, revision: int = 0) -> list[KeyVersion]:
        """As `Keyspace.range`; revision 0 sees what this write has done."""
        return self._keyspace.range(start, end, revision or self._target)

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Sets a key."""
        before = next(iter(self.range(key, b"")), None)
        self._add(
            KeyVersion(
                key=key,
                mod_revision=self._target,
                create_revision=before.create_revision if before else self._target,
                version=before.version + 1 if before else 1,
                value=value,
                lease=lease,
            )
        )

    def delete(self, start: bytes, end: bytes) -> list[KeyVersion]:
        """Removes the keys of a range; returns what they were."""
        found = self.range(start, end)
        for each in found:
            self._add(KeyVersion(key=each.key, mod_revision=self._target))
        return found

    def commit(self) -> None:
        """It is durable: everybody may see it."""
        self._keyspace.revision = self.revision

    def undo(self) -> None:
        """It came to nothing."""
        for _ in self.changes:
            self._keyspace.take_back()
        self.changes = []

    def _add(self, version: KeyVersion) -> None:
        self._keyspace.add(version)
        self.changes.append(version)


def _live_size(version: KeyVersion) -> int:
    return version.size if version.is_live else 0
