"""A large payload by its first bytes and its last: where its rows are, and what is left without
them, which is enough for whoever asks what it is."""

from __future__ import annotations

from typing import NamedTuple

from binlogd.errors import MalformedBinlog
from binlogd.wire.fields import end_of, int64, read_uvarint
from binlogd.wire.peek import NO_DDL, TIMESTAMPS


class Begin(NamedTuple):
    """The beginning of a canonical payload: its key, where fields 5 to 8 follow, its start_ts."""

    prewrite_key: bytes
    value_at: int
    start_ts: int


def begin(piece: bytes) -> Begin | None:
    """The beginning of a payload of which this is the first piece; None if it is not canonical
    so far, or the key goes on behind the piece."""
    head = TIMESTAMPS.match(piece)
    if head is None:
        return None
    at = head.end()
    if piece[at : at + 1] != b"\x22":
        return Begin(b"", at, int64(head[2]))
    try:
        size, key_at = read_uvarint(piece, at + 1)
        value_at = end_of(piece, key_at, size)
    except MalformedBinlog:
        return None
    return Begin(piece[key_at:value_at], value_at, int64(head[2]))


def large_rows(first: bytes, last: bytes, size: int) -> tuple[int, int] | None:
    """Where the rows of a payload of `size` bytes begin and end, by its first bytes and its last;
    None unless it is canonical, with rows and without a DDL, and its key ends in the first ones."""
    found = begin(first)
    if found is None or not last.endswith(NO_DDL) or first[found.value_at :][:1] != b"\x2a":
        return None
    try:
        length, rows_at = read_uvarint(first, found.value_at + 1)
    except MalformedBinlog:
        return None
    is_whole = rows_at + length + len(NO_DDL) == size
    return (rows_at, rows_at + length) if is_whole and first[rows_at - 1] else None


class Outline(bytes):
    """A canonical payload whose rows are left out; `whole_bytes` is how long it is with them."""

    whole_bytes: int


def outline(first: bytes, last: bytes, size: int) -> Outline | None:
    """Of a payload of `size` bytes, by its first ones and its last; None unless it is canonical,
    with rows and without a DDL."""
    found = begin(first)
    if found is None or large_rows(first, last, size) is None:
        return None
    made = Outline(first[: found.value_at] + NO_DDL)
    made.whole_bytes = size
    return made


def whole_bytes(payload: bytes) -> int:
    """The length of a payload, of which this may be the outline."""
    return payload.whole_bytes if isinstance(payload, Outline) else len(payload)
