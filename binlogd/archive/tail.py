"""What an archive has of segments that still grow: parts of them, named by `tail.json`.

    tail = read_tail(store)
    with_tail(catalog, tail)

A part never changes: its name has its place and its checksum. Parts are put together as they grow,
and give way to the sealed segment; a record keeps its place in the segment all the while, so who
looks for a part that is gone asks `tail.json` again.

Invariant. A reader finds a prefix of every log, without a gap, and all up to `resolved_ts`.
Why it holds. A part leaves `tail.json` when the catalog has its segment, and a reader takes the
tail first and then the catalog, which is at least as new. The follower (follower.py) is the one
writer of the tail, the archiver that of the catalog. docs/decisions/0134-the-tail-of-an-archive.md.
"""

from __future__ import annotations

import msgspec

from binlogd.archive.store import ArchiveStore, Document
from binlogd.log.checked_text import checksummed_json
from binlogd.log.segment_index import SegmentIndex
from binlogd.tso import NO_TS

TAIL_NAME = "tail.json"


class TailPart(SegmentIndex, frozen=True, kw_only=True):
    """A stretch of a segment, from `begin` on, told as if it were one; it starts and ends between
    two records. `sync` counts from its begin; places of commits are those in the segment."""

    begin: int

    @property
    def end(self) -> int:
        """Where the next part of the segment begins."""
        return self.begin + self.size_bytes


class ArchiveTail(Document, frozen=True, kw_only=True):
    """The parts in their order. With the catalog's segments they have all up to `resolved_ts`."""

    resolved_ts: int = NO_TS
    parts: tuple[TailPart, ...] = ()


def parts_directory(shard: int) -> str:
    """Where the parts of a shard are."""
    return f"tail/shard-{shard}"


def part_stem(part: TailPart) -> str:
    """What the names of its two files begin with."""
    place = f"{part.fid:06d}-{part.begin:012d}-{part.end:012d}-{part.crc32c:08x}"
    return f"{parts_directory(part.shard)}/{place}"


def encode_tail(tail: ArchiveTail) -> bytes:
    """As it is stored."""
    return checksummed_json(msgspec.json.encode(tail))


def read_tail(store: ArchiveStore) -> ArchiveTail:
    """Of an archive of sealed segments alone, nothing. Raises Corrupt, ConfigError."""
    return store.document(TAIL_NAME, ArchiveTail)
