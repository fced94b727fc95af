"""Bytes of a relay log: frames, each with its place and its checksums in its head.

Invariant. A frame that reads back is the frame that was written, at the place where it was written.
Why it holds: CRC-32C over the head and over the body, and the head says in which file and at which
offset it stands. A length is believed only after the head's checksum, and used only after it was
compared with the bytes that are there.

A group frame is one fsync: it is whole, or nobody was told of it. So only the last frame of the
last file may be torn, and two signs of a torn frame are accepted: the file ends inside it, or the
file ends with zeros (pages that were never written; no frame ends with that many). Everything else
that does not verify is damage. Who goes on writing accepts any last frame as torn, since the
upstream sends again what it held. Layout: docs/FORMAT.md, "Relay log".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c
import msgspec

from binlogd.relay.position import RelayPos
from binlogd.tso import Tso

MAGIC = b"BLR1"
HEAD = struct.Struct("<4sIIIQQQQ")
_CHECKED_FROM = 8  # magic and the head's own checksum come first
_ENTRY = struct.Struct("<QII")
_LARGE_BYTES = 1 << 20
_ENTRY_PART_BYTES_MAX = (1 << 32) - 1
UNWRITTEN_BYTES = 64
"""A file that ends with this many zeros ends with a page that never reached the disk."""


Whole = bytes | mmap.mmap
"""The content of a file, read or mapped."""


class FrameKind(IntEnum):
    """What a frame is: the head of a file (first of a chain, or continuing one), or a group."""

    START = 1
    CONTINUE = 2
    GROUP = 3


class RelayEntry(msgspec.Struct, frozen=True, gc=False):
    """One transaction: the joined payload as pulled, and for a DDL its job's JSON (else b"")."""

    commit_ts: Tso
    payload: bytes
    job: bytes


class Frame(NamedTuple):
    """A frame that verified; `end` is where the next one begins.

    `commit_ts` of a head: the file holds what is above it; of a group: its last transaction.
    """

    kind: FrameKind
    commit_ts: Tso
    body: bytes
    end: int


class Torn(NamedTuple):
    """The bytes from `offset` on were never acknowledged, if they are the last of the log."""

    offset: int
    reason: str


class Damaged(NamedTuple):
    """The bytes at `offset` are not what was written there."""

    offset: int
    reason: str


def encode_frame(
    kind: FrameKind, at: RelayPos, commit_ts: Tso, body: Sequence[bytes]
) -> list[bytes]:
    """A frame for this place of the log, and for no other: its head, and the pieces of its body."""
    body_sum = size = 0
    for piece in body:
        body_sum = google_crc32c.extend(body_sum, piece)
        size += len(piece)
    head = HEAD.pack(MAGIC, 0, body_sum, kind, at.suffix, at.offset, commit_ts, size)
    checksum = google_crc32c.value(head[_CHECKED_FROM:])
    return [b"".join((MAGIC, checksum.to_bytes(4, "little"), head[_CHECKED_FROM:])), *body]


def encode_entries(entries: Sequence[RelayEntry]) -> list[bytes]:
    """The body of a group: a large payload is a piece of its own, not copied; what is small lies
    together. Raises ValueError for a payload of 4 GiB and more."""
    pack = _ENTRY.pack
    pieces: list[bytes] = []
    parts: list[bytes] = []
    for entry in entries:
        if len(entry.payload) > _ENTRY_PART_BYTES_MAX:
            raise ValueError(f"a payload of {len(entry.payload)} bytes does not fit a relay log")
        parts.append(pack(entry.commit_ts, len(entry.payload), len(entry.job)))
        if len(entry.payload) >= _LARGE_BYTES:
            pieces += (b"".join(parts), entry.payload)
            parts = [entry.job]
        else:
            parts += (entry.payload, entry.job)
    return [*pieces, b"".join(parts)]


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


def head_size(head: bytes) -> int:
    """The length of the frame whose head this is; that of a head alone if the head is damaged."""
    if len(head) < HEAD.size:
        return HEAD.size
    magic, checksum, *_, size = HEAD.unpack_from(head)
    if magic != MAGIC or checksum != google_crc32c.value(head[_CHECKED_FROM : HEAD.size]):
        return HEAD.size
    return HEAD.size + int(size)


def read_frame(data: Whole, at: RelayPos) -> Frame | Torn | Damaged:
    """The frame at this place; `data` is the whole file, and `at` lies before its end."""
    offset = at.offset
    if len(data) - offset < HEAD.size:
        return Torn(offset, "the file ends inside the head of a frame")
    magic, head_sum, body_sum, kind, suffix, own_offset, commit_ts, size = HEAD.unpack_from(
        data, offset
    )
    if magic != MAGIC or head_sum != google_crc32c.value(
        data[offset + _CHECKED_FROM : offset + HEAD.size]
    ):
        return _torn_or_damaged(data, offset, "the head of a frame does not match its checksum")
    if (suffix, own_offset) != at or kind not in _KINDS:
        return Damaged(
            offset, f"a frame of kind {kind} that was written for file {suffix} at {own_offset}"
        )
    begin, end = offset + HEAD.size, offset + HEAD.size + size
    if end > len(data):
        return Torn(offset, f"the file ends {end - len(data)} bytes before the end of a frame")
    body = data[begin:end]
    if google_crc32c.value(body) != body_sum:
        return _torn_or_damaged(data, offset, "the body of a frame does not match its checksum")
    return Frame(FrameKind(kind), Tso(commit_ts), body, end)


def is_followed(data: Whole, at: RelayPos) -> bool:
    """Whether a whole frame stands somewhere behind this place: then what is here was synced."""
    offset = data.find(MAGIC, at.offset + 1)
    while offset >= 0:
        if isinstance(read_frame(data, at._replace(offset=offset)), Frame):
            return True
        offset = data.find(MAGIC, offset + 1)
    return False


_KINDS = frozenset(FrameKind)


def _torn_or_damaged(data: Whole, offset: int, reason: str) -> Torn | Damaged:
    unwritten = len(data) - max(offset, len(data) - UNWRITTEN_BYTES)
    if data[len(data) - unwritten :] == bytes(unwritten):
        return Torn(offset, f"{reason}, and the file ends with {unwritten} zeros")
    return Damaged(offset, reason)
