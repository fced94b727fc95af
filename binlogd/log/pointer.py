"""Where a record stands in a shard's value log.

Source: tidb-binlog pump/storage/storage.go, valuePointer; docs/FORMAT.md, value log.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple, NewType

FileId = NewType("FileId", int)
"""The number in a segment's name, `000000.vlog` and on."""

_POINTER = struct.Struct("<Iq")
POINTER_BYTES = _POINTER.size


class ValuePointer(NamedTuple):
    """The position of a record's header; ordered as the log is."""

    fid: FileId
    offset: int

    def encode(self) -> bytes:
        """The Go Pump's 12 bytes, little-endian."""
        return _POINTER.pack(self.fid, self.offset)

    @classmethod
    def decode(cls, encoded: bytes) -> ValuePointer:
        """Reads 12 bytes, what follows is ignored. Raises ValueError when there are fewer."""
        if len(encoded) < POINTER_BYTES:
            raise ValueError("not enough data")
        fid, offset = _POINTER.unpack_from(encoded)
        return cls(FileId(fid), offset)


class Place(NamedTuple):
    """A record that can be read in one go: its header's position and its payload's length."""

    fid: FileId
    offset: int
    length: int


Spot = tuple[FileId, int, int]
"""A Place as compiled code hands it on, which makes no object of it."""

FIRST = ValuePointer(FileId(0), 0)
"""The beginning of every log."""
MISSING = "the file is missing"
"""What is said of a segment that should be there."""


def segment_name(fid: FileId) -> str:
    """The file name of a segment: six digits, more when they are needed."""
    return f"{fid:06d}.vlog"


def segment_fid(name: str) -> FileId | None:
    """The number of a segment's file name; None for any other file.

    Raises ValueError for a name that ends in .vlog and has no number.
    """
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "vlog":
        return None
    if not stem.isascii() or not stem.isdigit():
        raise ValueError(f"parse file {name} err")
    return FileId(int(stem))


def missing_fids(fids: Collection[FileId], first_fid: FileId | None) -> Iterator[FileId]:
    """The segments that should be there and are not, as they are made one after the other; with
    `first_fid`, those before it are deleted, and not among `fids`. In order; a gap may be long."""
    expected = min(fids, default=FIRST.fid) if first_fid is None else first_fid
    if not fids and expected > FIRST.fid:
        yield expected
    for fid in sorted(fids):
        yield from map(FileId, range(expected, fid))
        expected = FileId(fid + 1)
