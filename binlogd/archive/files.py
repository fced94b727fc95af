"""The files of an archive by name, and records by their place in the log, whatever holds them now.

files = LogFiles(store, catalog)
files.read_ranges(shard, fid, [(offset, length), ...])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from binlogd.archive.catalog import ArchiveCatalog, TailPart, part_stem, read_catalog
from binlogd.archive.store import ArchiveStore
from binlogd.log.pointer import segment_name
from binlogd.log.segment_index import SegmentIndex

MOVES_MAX = 4
"""So often in a row a reader may find that what it was told of gave way to something else."""


def segment_path(shard: int, fid: int) -> str:
    """A segment of an archive."""
    return f"shard-{shard}/{segment_name(fid)}"  # type: ignore[arg-type]  # a FileId in effect


def index_path(shard: int, fid: int) -> str:
    """What describes it; there only when the segment is."""
    return f"shard-{shard}/{fid:06d}.json"


def places_path(shard: int, fid: int) -> str:
    """Where the commits of a segment stand."""
    return f"shard-{shard}/{fid:06d}.commits.parquet"


def bytes_path(of: SegmentIndex) -> str:
    """The file with the bytes of a segment, or of a part of one."""
    if isinstance(of, TailPart):
        return f"{part_stem(of)}.vlog"
    return segment_path(of.shard, of.fid)


def commits_path(of: SegmentIndex) -> str:
    """The file that says where its commits stand."""
    if isinstance(of, TailPart):
        return f"{part_stem(of)}.commits.parquet"
    return places_path(of.shard, of.fid)


class LogFiles:
    """Segments by number, of which some are there in parts. One that gave way to another file is
    looked for anew, so nobody needs to know which it was."""

    def __init__(self, store: ArchiveStore, catalog: ArchiveCatalog | None = None) -> None:
        self._store = store
        self._parts = {} if catalog is None else _parts_of(catalog)

    def read_ranges(self, shard: int, fid: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length) of a segment, ascending; what it does not have is left
        out. Raises FileNotFoundError, ArchiveUnavailable."""
        for _ in range(MOVES_MAX):
            try:
                return self._read(shard, fid, ranges)
            except FileNotFoundError:
                self._parts = _parts_of(read_catalog(self._store))
        return self._read(shard, fid, ranges)

    def _read(self, shard: int, fid: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        parts = self._parts.get((shard, fid))
        if parts is None:
            return self._store.read_ranges(segment_path(shard, fid), ranges)
        if any(offset + length > parts[-1].end for offset, length in ranges):
            raise FileNotFoundError(f"{segment_path(shard, fid)} has grown since")
        found = [b""] * len(ranges)
        for part in parts:
            inside = [
                (number, max(begin, part.begin), min(begin + length, part.end))
                for number, (begin, length) in enumerate(ranges)
                if begin < part.end and begin + length > part.begin
            ]
            wanted = [(begin - part.begin, end - begin) for _, begin, end in inside]
            stored = self._store.read_ranges(bytes_path(part), wanted) if wanted else []
            for (number, _, _), more in zip(inside, stored, strict=True):
                found[number] += more
        return found


@lru_cache(8)
def log_files(store: ArchiveStore) -> LogFiles:
    """Those of a store, once in a process: for tasks, of which one begins after the other."""
    return LogFiles(store)


def _parts_of(catalog: ArchiveCatalog) -> dict[tuple[int, int], list[TailPart]]:
    found: dict[tuple[int, int], list[TailPart]] = {}
    for each in catalog.segments:
        if isinstance(each, TailPart):
            found.setdefault((each.shard, each.fid), []).append(each)
    return found
