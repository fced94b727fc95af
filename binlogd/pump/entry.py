"""What a shard keeps of a logged record once its bytes are on disk."""

from __future__ import annotations

from typing import NamedTuple

from binlogd.pump.pointer import FileId, Place, ValuePointer
from binlogd.record import HEADER_BYTES
from binlogd.tso import Tso


class Entry(NamedTuple):
    """A record as the index files it; `tp` is a BinlogType, `length` that of the payload."""

    tp: int
    start_ts: Tso
    commit_ts: Tso
    fid: FileId
    offset: int
    length: int

    @property
    def place(self) -> Place:
        """Where it is read."""
        return Place(self.fid, self.offset, self.length)

    @property
    def end(self) -> ValuePointer:
        """Where the next record of the same segment begins."""
        return ValuePointer(self.fid, self.offset + HEADER_BYTES + self.length)
