"""Bytes of a relay log: frames, each with its place and its checksums in its head; and its files.

Invariant. A frame that reads back is the frame that was written, at the place where it was written.
Why it holds: CRC-32C over the head and over the body, and the head says in which file and at which
offset it stands. A length is believed only after the head's checksum, and used only after it was
compared with the bytes that are there.

A group frame is one fsync: it is whole, or nobody was told of it. So only the last frame of the
last file may be torn, and two signs of a torn frame are accepted: the file ends inside it, or some
sector from its begin on or the end of the file has nothing but zeros, as what was not written when
the power failed, and no frame of this file stands behind it. Everything else that does not verify
is damage. Who goes on writing accepts any last frame as torn, since the upstream sends again what
it held. Layout: docs/FORMAT.md, "Relay log".
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
import msgspec

from binlogd.binlog import Payload
from binlogd.log.scan import CHUNK_BYTES, Steps
from binlogd.tso import Tso

MAGIC = b"BLR1"
HEAD = struct.Struct("<4sIIIQQQQ")
_CHECKED_FROM = 8  # magic and the head's own checksum come first
_ENTRY = struct.Struct("<QII")
_LARGE_BYTES = 1 << 20
_ENTRY_PART_BYTES_MAX = (1 << 32) - 1
UNWRITTEN_BYTES = 64
"""A file that ends with this many zeros ends with a page that never reached the disk."""
_SECTOR_BYTES = 512
"""What a disk writes at once; the sectors of one sync reach it in any order."""


Whole = bytes | mmap.mmap
"""The content of a file, read or mapped."""


_NAME = re.compile(r"relay-(\d{16})\.log")


class RelayPos(NamedTuple):
    """A byte of the log: `offset` in the file of that number. Ordered as the log is written."""

    suffix: int
    offset: int


def file_name(suffix: int) -> str:
    """The name of a file; names sort as the numbers do."""
    return f"relay-{suffix:016d}.log"


def suffix_of(name: str) -> int | None:
    """The number of a file, None for a name that is no relay file's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class RelayFile:
    """A file of the log. It holds transactions with a commit_ts above `base_ts`. `starts_chain`: it
    does not continue the file before it, so a reader never crosses from there."""

    suffix: int
    base_ts: Tso
    starts_chain: bool
    size_bytes: int


class FrameKind(IntEnum):
    """What a frame is: the head of a file (first of a chain, or continuing one), or a group."""

    START = 1
    CONTINUE = 2
    GROUP = 3


class RelayEntry(msgspec.Struct, frozen=True, gc=False):
    """One transaction: the joined payload as pulled, and for a DDL its job's JSON (else b"")."""

    commit_ts: Tso
    payload: Payload
    job: bytes


class FramePlace(NamedTuple):
    """A frame that verified, from `at` on: its body lies from `begin` to `end`.

    `commit_ts` of a head: the file holds what is above it; of a group: its last transaction.
    """

    kind: FrameKind
    commit_ts: Tso
    begin: int
    end: int

    @property
    def at(self) -> int:
        """Where it begins."""
        return self.begin - HEAD.size


class Torn(NamedTuple):
    """The bytes from `offset` on were never acknowledged, if they are the last of the log."""

    offset: int
    reason: str


class Damaged(NamedTuple):
    """The bytes at `offset` are not what was written there."""

    offset: int
    reason: str


def encode_frame(
    kind: FrameKind, at: RelayPos, commit_ts: Tso, body: Iterable[bytes]
) -> list[bytes]:
    """A frame for this place of the log, and for no other: its head, and the pieces of its body."""
    pieces, body_sum = list(body), 0
    for piece in pieces:
        body_sum = google_crc32c.extend(body_sum, piece)
    return [frame_head(kind, at, commit_ts, body_sum, sum(map(len, pieces))), *pieces]


def frame_head(kind: FrameKind, at: RelayPos, commit_ts: Tso, body_sum: int, size: int) -> bytes:
    """The head of a frame whose body has that CRC-32C and size."""
    head = HEAD.pack(MAGIC, 0, body_sum, kind, at.suffix, at.offset, commit_ts, size)
    checksum = google_crc32c.value(head[_CHECKED_FROM:])
    return b"".join((MAGIC, checksum.to_bytes(4, "little"), head[_CHECKED_FROM:]))


def encode_entries(entries: Iterable[RelayEntry]) -> Iterator[bytes]:
    """The body of a group: a large payload is a piece of its own, not copied, or many where it lies
    on the disk; what is small lies together. Raises ValueError for a payload of 4 GiB and more."""
    parts: list[bytes] = []
    for entry in entries:
        payload, size = entry.payload, len(entry.payload)
        if size > _ENTRY_PART_BYTES_MAX:
            raise ValueError(f"a payload of {size} bytes does not fit a relay log")
        parts.append(_ENTRY.pack(entry.commit_ts, size, len(entry.job)))
        if isinstance(payload, bytes) and size < _LARGE_BYTES:
            parts += (payload, entry.job)
            continue
        yield b"".join(parts)
        yield from (payload,) if isinstance(payload, bytes) else payload.pieces()
        parts = [entry.job]
    yield b"".join(parts)


def decode_entries(body: bytes) -> list[RelayEntry]:
    """The entries of a group's body. Raises ValueError for a body that is none."""
    entries: list[RelayEntry] = []
    at, end = 0, len(body)
    while at < end:
        if at + _ENTRY.size > end:
            raise ValueError("the head of an entry is cut")
        commit_ts, payload_bytes, job_bytes = _ENTRY.unpack_from(body, at)
        job_at = at + _ENTRY.size + payload_bytes
        stop = job_at + job_bytes
        if stop > end:
            raise ValueError("an entry is longer than its group")
        payload = body[at + _ENTRY.size : job_at]
        entries.append(RelayEntry(Tso(commit_ts), payload, body[job_at:stop]))
        at = stop
    return entries


def commit_tss_in(begin: int, end: int) -> Steps[list[int]]:
    """Those of the entries of a body that lies there; what an entry holds is stepped over."""
    found, at = list[int](), begin
    while at < end:  # ends: what is read has a whole head, or the body is none
        part, part_at = (yield at, min(CHUNK_BYTES, end - at)), at
        while at - part_at + _ENTRY.size <= len(part):
            commit_ts, payload_bytes, job_bytes = _ENTRY.unpack_from(part, at - part_at)
            found.append(commit_ts)
            at += _ENTRY.size + payload_bytes + job_bytes
    return found


def _fields(head: bytes) -> tuple[int, int, int, int, int, int] | None:
    """The checksum of the body, kind, file, place, commit_ts and size, where the head matches its
    own checksum."""
    magic, head_sum, *fields = HEAD.unpack(head)
    found = google_crc32c.value(head[_CHECKED_FROM:])
    return tuple(fields) if (magic, head_sum) == (MAGIC, found) else None


def frame_at(size: int, at: RelayPos) -> Steps[FramePlace | Torn | Damaged]:
    """The frame at this place of a file of `size` bytes; `at` lies before its end. It is never held
    as a whole."""
    offset = at.offset
    if size - offset < HEAD.size:
        return Torn(offset, "the file ends inside the head of a frame")
    head = _fields((yield offset, HEAD.size))
    if head is None:
        reason = "the head of a frame does not match its checksum"
        return (yield from _torn_or_damaged(size, at, reason))
    body_sum, kind, suffix, place, commit_ts, body_bytes = head
    if RelayPos(suffix, place) != at or kind not in _KINDS:
        return Damaged(
            offset, f"a frame of kind {kind} that was written for file {suffix} at {place}"
        )
    begin, end = offset + HEAD.size, offset + HEAD.size + body_bytes
    if end > size:
        return Torn(offset, f"the file ends {end - size} bytes before the end of a frame")
    found = 0
    for piece_at in range(begin, end, CHUNK_BYTES):
        piece = yield piece_at, min(CHUNK_BYTES, end - piece_at)
        found = int(google_crc32c.extend(found, piece))
    if found != body_sum:
        reason = "the body of a frame does not match its checksum"
        return (yield from _torn_or_damaged(size, at, reason))
    return FramePlace(FrameKind(kind), Tso(commit_ts), begin, end)


_KINDS = frozenset(FrameKind)


def _torn_or_damaged(size: int, at: RelayPos, reason: str) -> Steps[Torn | Damaged]:
    unwritten = yield from _unwritten(at.offset, size)
    if unwritten is None or (yield from is_followed(size, at)):
        return Damaged(at.offset, reason)
    return Torn(at.offset, f"{reason}, and what belongs at offset {unwritten} was never written")


def _unwritten(begin: int, end: int) -> Steps[int | None]:
    """Where the first sector begins that has nothing but zeros, or the end of the file has."""
    at = begin
    while at < end:  # ends: `at` grows by a chunk each turn
        stop = min(end, at - at % CHUNK_BYTES + CHUNK_BYTES)
        chunk = yield at, stop - at
        next_sector = at - at % _SECTOR_BYTES + _SECTOR_BYTES
        borders: list[int] = [at, *range(next_sector, stop, _SECTOR_BYTES), stop]
        for first, last in pairwise(borders):
            if not any(chunk[first - at : last - at]):
                return first
        at = stop
    tail_at = max(begin, end - UNWRITTEN_BYTES)
    tail = yield tail_at, end - tail_at
    return None if any(tail) else tail_at


def is_followed(size: int, at: RelayPos) -> Steps[bool]:
    """Whether the head of a frame of this file and its place stands somewhere behind this one: then
    what is here was synced."""
    begin = at.offset + 1
    while begin <= size - HEAD.size:  # ends: `begin` grows by a chunk each turn
        chunk = yield begin, CHUNK_BYTES + HEAD.size - 1
        found = chunk.find(MAGIC)
        while 0 <= found <= len(chunk) - HEAD.size:
            head = _fields(chunk[found : found + HEAD.size])
            if head is not None and head[2:4] == (at.suffix, begin + found):
                return True
            found = chunk.find(MAGIC, found + 1)
        begin += CHUNK_BYTES
    return False
