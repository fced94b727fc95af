"""What the archiver and the process that works for it tell each other, as JSON."""

from __future__ import annotations

import msgspec

PAGE_SEGMENTS = 64
GRACE_S = 86_400.0
"""A day: longer than a micro-batch or a job that was planned by a catalog reads with it."""
FILES_MAX = 3_000
"""That the archiver deletes in a round, which has an hour: of an object store some 20 a second."""


class Mark(msgspec.Struct, frozen=True):
    """While segment `newest` was the newest of a shard, the first prewrite whose fate was open (or
    the end of the log) stood at `offset` in segment `fid`."""

    newest: int
    fid: int
    offset: int


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """How long an archive keeps, and what replaces the rest: the place of a snapshot, "" is beside
    the segments. `grace_s`: how long a read lasts that was planned before. Of `files_max` at most
    are deleted in a round, 0 is no limit; with `is_dry` nothing is changed."""

    keep_s: float
    base: str = ""
    grace_s: float = GRACE_S
    files_max: int = 0
    is_dry: bool = False


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One round. `segments_max` 0 is no limit. `marks` by shard, in their order. `with_open` takes
    the segment that still grows as well, as it is. `page_segments` stand in a page of the catalog.
    With `keep` old ones are removed at its end.
    """

    data_dir: str
    url: str
    cluster_id: int | None = None
    history: str = ""
    segments_max: int = 0
    with_open: bool = False
    page_segments: int = PAGE_SEGMENTS
    marks: dict[int, list[Mark]] = {}
    keep: Keep | None = None


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a round did, and how the archive stands: by shard the last segment that it has whole."""

    segments: int
    size_bytes: int
    transactions: int
    resolved_ts: int
    left: int
    newest: dict[int, int]
    gone_ts: int
    removed: Removed | None = None
    not_removed: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did: files that it deleted and that wait for the next round; segments of which
    it said that they go at `leaving_ms` of the wall clock, or that wait for that since an earlier
    round (`leaving` 0). The archive is complete behind `gone_ts`, new reads begin behind
    `leaving_ts`. `held` says what keeps segments that are older than asked for."""

    files: int
    files_left: int
    leaving: int
    leaving_bytes: int
    leaving_ms: int
    gone_ts: int
    leaving_ts: int
    held: str


class Grown(msgspec.Struct, frozen=True, array_like=True):
    """How far a segment is durable."""

    fid: int
    size_bytes: int
    is_sealed: bool


class Stand(msgspec.Struct, frozen=True, array_like=True):
    """Of a shard the last segment that the archive has whole (-1: none), and those behind it."""

    archived: int
    segments: tuple[Grown, ...]


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """All that committed up to `resolved_ts` stands in these logs as far as they are durable."""

    data_dir: str
    url: str
    resolved_ts: int
    shards: tuple[Stand, ...]


CATALOG_NAME = "catalog.json"
"""What an archive holds; a directory without it is none."""
