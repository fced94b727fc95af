"""A commit joined with a prewrite that is too large to be held: its rows are left in the log."""

from __future__ import annotations

from binlogd.binlog import BinlogType, Payload
from binlogd.log.stored import PIECE_BYTES, StoredRecord
from binlogd.pump.budget import Held
from binlogd.wire import peek
from binlogd.wire.joining import join_of
from binlogd.wire.outline import begin, large_rows


async def joined_large(prewrite: StoredRecord, commit: bytes, held: Held) -> Payload | None:
    """Both as one, of which nothing is in memory but what stands before the rows; None where they
    are of two transactions.

    A prewrite by an old client, in an adopted log, has to be made anew, and is held.
    """
    size, (_, start_ts, commit_ts, _) = len(prewrite), peek.peek(commit)
    first, last = prewrite.cut(0, PIECE_BYTES), prewrite.cut(size - PIECE_BYTES, size)
    of_prewrite, of_commit = begin(first), begin(commit)
    if of_commit is not None and of_prewrite is not None and first[1] == BinlogType.PREWRITE:
        if of_prewrite.start_ts != start_ts:
            return None
        if large_rows(first, last, size) is not None:
            return prewrite.with_head(commit[: of_commit.value_at], of_prewrite.value_at)
    await held.take(size)
    return join_of(start_ts, commit_ts, commit, bytes(prewrite))
