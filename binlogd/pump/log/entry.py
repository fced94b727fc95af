"""What a binlog is to a shard: an item on its way into the log, an entry once it is there.

Structs of msgspec, as all that is made for each binlog; none of them is ever part of a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord, MalformedBinlog
from binlogd.log.outline import whole_bytes
from binlogd.log.pointer import FileId, Place, ValuePointer
from binlogd.log.record import HEADER_BYTES
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import peek

WITNESS = -1
"""The `tp` of an item that is no binlog: a timestamp known to be handed out."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A binlog on its way into the log, or a witness (commit_ts only)."""

    tp: int
    start_ts: Tso
    commit_ts: Tso
    payload: bytes

    @property
    def index_ts(self) -> Tso:
        """What counts for the max_ts of a segment: start_ts of a prewrite, 0 of a rollback."""
        return self.start_ts if self.tp == BinlogType.PREWRITE else self.commit_ts


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


_KNOWN = frozenset(each.value for each in BinlogType)


class Kind(NamedTuple):
    """Type and timestamps of a binlog, in the only four combinations a shard knows."""

    tp: int
    start_ts: Tso
    commit_ts: Tso


def kind_of(payload: bytes) -> Kind | None:
    """What a logged payload is; None if it is empty and to be passed over.

    Raises MalformedBinlog, also for a type that nobody knows any more: the original takes those for
    Commits.
    """
    tp, start_ts, commit_ts, _ = peek(payload)
    if tp not in _KNOWN:
        raise MalformedBinlog(
            f"a binlog of type {tp}, start_ts {start_ts}, commit_ts {commit_ts}: known types are"
            " Prewrite (0), Commit (1) and Rollback (2)"
        )
    if tp == BinlogType.PREWRITE and start_ts > 0:
        return Kind(tp, Tso(start_ts), NO_TS)
    if start_ts == commit_ts:
        return Kind(BinlogType.ROLLBACK, Tso(start_ts), Tso(commit_ts)) if start_ts > 0 else None
    if tp == BinlogType.COMMIT and commit_ts > 0:
        return Kind(tp, Tso(start_ts), Tso(commit_ts))
    return Kind(BinlogType.ROLLBACK, Tso(start_ts), NO_TS)


def entry_of(pointer: ValuePointer, payload: bytes, path: Callable[[FileId], Path]) -> Entry:
    """The entry of a record that was read from the log, or of its `Outline`. Raises
    CorruptRecord."""
    try:
        kind = kind_of(payload)
    except MalformedBinlog as error:
        raise CorruptRecord(path(pointer.fid), pointer.offset, str(error)) from error
    if kind is None:  # written by an old version of the original; filed as an outcome of nothing
        kind = Kind(BinlogType.ROLLBACK, NO_TS, NO_TS)
    return Entry(*kind, pointer.fid, pointer.offset, whole_bytes(payload))
