"""What a binlog is to a shard: an item on its way into the log, an entry once it is there.

Structs of msgspec, as all that is made for each binlog; none of them is ever part of a cycle.
"""

from __future__ import annotations

from typing import Final

import msgspec

from binlogd.binlog import BinlogType
from binlogd.log.pointer import FileId, Place, ValuePointer
from binlogd.log.record import HEADER_BYTES
from binlogd.tso import Tso

WITNESS: Final = -1
"""The `tp` of an item that is no binlog: a timestamp known to be handed out."""
ITEM_BYTES: Final = 512
"""What the objects around a payload on its way take, roughly: a million small ones are not free."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A binlog on its way into the log, or a witness (commit_ts only)."""

    tp: int
    start_ts: Tso
    commit_ts: Tso
    payload: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record as the index files it; `length` is that of the payload.

    `tp` is a BinlogType and says how to read the timestamps: a prewrite has no commit_ts, a
    rollback neither, and a fake is a rollback whose timestamps are equal.
    """

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
    def index_ts(self) -> Tso:
        """What counts for the max_ts of a segment: start_ts of a prewrite, 0 of a rollback."""
        return self.start_ts if self.tp == BinlogType.PREWRITE else self.commit_ts

    @property
    def end(self) -> ValuePointer:
        """Where the next record of the same segment begins."""
        return ValuePointer(self.fid, self.offset + HEADER_BYTES + self.length)
