"""From where on an archive is kept: `kept.json`, which retention alone writes (keep.py).

The catalog belongs to the archiver and this to retention, so neither overwrites what the other has
just written, in a store without conditional writes as well.

    bound = read_bound(store)

A bound moves twice. First it is announced: no new read begins before it, and everything is there.
Then, when those reads are over that were planned before, it holds: the segments before it are no
longer part of the archive, and are deleted. docs/decisions/0131-retention-of-archives.md.
"""

from __future__ import annotations

import msgspec

from binlogd.archive.store import ArchiveStore, Document
from binlogd.errors import Behind
from binlogd.log.checked_text import checksummed_json
from binlogd.tso import NO_TS

BOUND_NAME = "kept.json"


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that was announced at `since_ms` of the wall clock."""

    gone_ts: int
    first: dict[int, int]
    since_ms: int


class Bound(Document, frozen=True, kw_only=True):
    """Behind `gone_ts` an archive is complete; `first` is by shard the first segment of it."""

    gone_ts: int = NO_TS
    first: dict[int, int] = msgspec.field(default_factory=dict)
    leaving: Leaving | None = None

    @property
    def announced_ts(self) -> int:
        """Before this no new read begins."""
        return self.leaving.gone_ts if self.leaving else self.gone_ts


def read_bound(store: ArchiveStore) -> Bound:
    """Of an archive that was never cut it is the beginning. Raises Corrupt, ConfigError."""
    return store.document(BOUND_NAME, Bound)


def put_bound(store: ArchiveStore, bound: Bound) -> None:
    """Writes it in one step."""
    store.put(BOUND_NAME, checksummed_json(msgspec.json.encode(bound)))


def behind(store: ArchiveStore, asked_ts: int, gone_ts: int) -> Behind:
    """A read from before what is kept."""
    return Behind(asked_ts, gone_ts, f"removed from the archive {store.url} (archive.keep)")


def removed(store: ArchiveStore, shard: int, fid: int, asked_ts: int = NO_TS) -> Behind | None:
    """Why a file of a segment is not there any more, if it was removed meanwhile."""
    bound = read_bound(store)
    is_removed = fid < bound.first.get(shard, 0)
    return behind(store, asked_ts, bound.gone_ts) if is_removed else None
