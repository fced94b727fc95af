"""Pinned value log files in slices, each a run of whole records of one file.

Slices are found by walking the record headers once. What is torn at the end of a shard's last file
(`log.scan`) is not part of the log yet and is passed over; bad bytes anywhere else end the
export. Runs in Spark's Python workers and knows nothing of Spark.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from binlogd.errors import CorruptRecord
from binlogd.log.drive import Reading, of_bytes
from binlogd.log.record import FRAMING, end_of, payload_at, strides, wrong_at
from binlogd.log.scan import scan
from binlogd.snapshot.spec import PinnedSegment


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole records of one file, from `start` to `end`; those below `seen` may bound the export."""

    shard: int
    fid: int
    path: str
    start: int
    end: int
    seen: int

    @property
    def size_bytes(self) -> int:
        """Of its records."""
        return self.end - self.start


class LogPart(Protocol):
    """A part of the log, in whatever way it is told."""

    @property
    def size_bytes(self) -> int:
        """Of the log."""


P = TypeVar("P", bound=LogPart)


def slices(segments: Sequence[PinnedSegment], slice_bytes: int) -> list[Slice]:
    """The files cut into slices of about this size. Raises CorruptRecord."""
    newest: dict[int, int] = {}
    for segment in segments:
        newest[segment.shard] = max(segment.fid, newest.get(segment.shard, -1))
    found = []
    for segment in segments:
        if segment.size_bytes:
            found += _cut(segment, slice_bytes, is_last=segment.fid == newest[segment.shard])
    return found


def tasks(parts: Iterable[P], slice_bytes: int) -> list[tuple[P, ...]]:
    """Parts put together so that small files do not make small tasks."""
    found: list[list[P]] = []
    room = 0
    for part in parts:
        size = part.size_bytes
        if size > room:
            found.append([])
            room = slice_bytes
        found[-1].append(part)
        room -= size
    return [tuple(each) for each in found]


def _cut(segment: PinnedSegment, slice_bytes: int, *, is_last: bool) -> list[Slice]:
    with _mapped(segment.path) as log:
        size = min(segment.size_bytes, len(log))
        bounds, reached = strides(log, size, bytes_min=slice_bytes)
        end = Reading(scan(FRAMING, start=reached, size=size), of_bytes(log)).ended()
    if not end.ends_well(is_last=is_last):
        raise CorruptRecord(segment.path, end.offset, end.reason)
    bounds = [*(bound for bound in bounds if bound < reached), reached]
    return [
        Slice(segment.shard, segment.fid, segment.path, start, stop, segment.seen_bytes)
        for start, stop in itertools.pairwise(bounds)
    ]


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def payloads(part: Slice) -> Iterator[tuple[int, bytes]]:
    """Offset and payload of each record of a slice. Raises CorruptRecord."""
    with _mapped(part.path) as log:
        at = part.start
        while at < part.end:
            payload = _payload(part, log, at)
            yield at, payload
            at = end_of(at, payload)


def payloads_at(part: Slice, places: Iterable[int]) -> Iterator[bytes]:
    """The payloads of some records of a slice. Raises CorruptRecord."""
    with _mapped(part.path) as log:
        for at in places:
            yield _payload(part, log, at)


def _payload(part: Slice, log: mmap.mmap, at: int) -> bytes:
    payload = payload_at(log, at)
    if payload is None:
        raise CorruptRecord(part.path, at, wrong_at(log, at))
    return payload
