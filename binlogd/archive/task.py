"""What the archiver and the process that works for it tell each other, as JSON."""

from __future__ import annotations

import msgspec

PAGE_SEGMENTS = 64


class Mark(msgspec.Struct, frozen=True):
    """While segment `newest` was the newest of a shard, the first prewrite whose fate was open (or
    the end of the log) stood at `offset` in segment `fid`."""

    newest: int
    fid: int
    offset: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One round. `segments_max` 0 is no limit. `marks` by shard, in their order. `with_open` takes
    the segment that still grows as well, as it is. `page_segments` stand in a page of the catalog.
    """

    data_dir: str
    url: str
    cluster_id: int | None = None
    history: str = ""
    segments_max: int = 0
    with_open: bool = False
    page_segments: int = PAGE_SEGMENTS
    marks: dict[int, list[Mark]] = {}


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a round did, and how the archive stands: by shard the last segment that is in it."""

    segments: int
    size_bytes: int
    transactions: int
    resolved_ts: int
    left: int
    newest: dict[int, int]


CATALOG_NAME = "catalog.json"
"""What an archive holds; a directory without it is none."""
