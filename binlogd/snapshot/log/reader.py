"""Pinned value log files in slices, each a run of whole records of one file.

Slices are found by walking the record headers once. What is torn at the end of a shard's last file
(`tail.judge`) is not part of the log yet and is passed over; bad bytes anywhere else end the
export. Runs in
Spark's Python workers and knows nothing of Spark.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import CorruptRecord
from binlogd.log.record import (
    FOOTER_BYTES,
    FRAMING,
    HEADER_BYTES,
    RECORD_MAGIC,
    decode,
    footer_ts,
    payload_at,
)
from binlogd.log.tail import Ending, answered, judge
from binlogd.snapshot.spec import Segment

_HEADER_START = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole records of one file, from `start` to `end`; those below `seen` may bound the export."""

    shard: int
    fid: int
    path: str
    start: int
    end: int
    seen: int


def slices(segments: Sequence[Segment], slice_bytes: int) -> list[Slice]:
    """The files cut into slices of about this size. Raises CorruptRecord."""
    newest: dict[int, int] = {}
    for segment in segments:
        newest[segment.shard] = max(segment.fid, newest.get(segment.shard, -1))
    found = []
    for segment in segments:
        if segment.size_bytes:
            found += _cut(segment, slice_bytes, is_last=segment.fid == newest[segment.shard])
    return found


def tasks(parts: Sequence[Slice], slice_bytes: int) -> list[tuple[Slice, ...]]:
    """Slices put together so that small files do not make small tasks."""
    found: list[list[Slice]] = []
    room = 0
    for part in parts:
        size = part.end - part.start
        if size > room:
            found.append([])
            room = slice_bytes
        found[-1].append(part)
        room -= size
    return [tuple(each) for each in found]


def _cut(segment: Segment, slice_bytes: int, *, is_last: bool) -> list[Slice]:
    with _mapped(segment.path) as log:
        size = min(segment.size_bytes, len(log))
        is_sealed = footer_ts(log[max(0, size - FOOTER_BYTES) : size]) is not None
        end = size - FOOTER_BYTES if is_sealed else size
        bounds, reached = _walk(log, end, slice_bytes)
        if reached < end:
            asked = judge(FRAMING, at=reached, size=size)
            judged = answered(asked, lambda at, length: log[at : at + length])
            if not is_last or judged.ending is not Ending.TORN:
                raise CorruptRecord(segment.path, reached, judged.reason)
    bounds = [*(bound for bound in bounds if bound < reached), reached]
    return [
        Slice(segment.shard, segment.fid, segment.path, start, stop, segment.seen_bytes)
        for start, stop in itertools.pairwise(bounds)
    ]


def _walk(log: mmap.mmap, end: int, slice_bytes: int) -> tuple[list[int], int]:
    """Where slices begin, and how far the records go."""
    bounds, at = [0], 0
    unpack = _HEADER_START.unpack_from
    while at + HEADER_BYTES <= end:
        magic, length = unpack(log, at)
        after = at + HEADER_BYTES + length
        if magic != RECORD_MAGIC or after > end:
            break
        if at - bounds[-1] >= slice_bytes:
            bounds.append(at)
        at = after
    return bounds, at


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
            at += HEADER_BYTES + len(payload)


def payloads_at(part: Slice, places: Iterable[int]) -> Iterator[bytes]:
    """The payloads of some records of a slice. Raises CorruptRecord."""
    with _mapped(part.path) as log:
        for at in places:
            yield _payload(part, log, at)


def _payload(part: Slice, log: mmap.mmap, at: int) -> bytes:
    payload = payload_at(log, at)
    if payload is None:
        raise CorruptRecord(part.path, at, _what_is_wrong(log, at))
    return payload


def _what_is_wrong(log: mmap.mmap, at: int) -> str:
    _, length = _HEADER_START.unpack_from(log, at)
    found = decode(log[at : at + HEADER_BYTES + length], length=length)
    assert isinstance(found, str)
    return found
