"""What a logged record is to a shard, told by its bytes: made to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord, MalformedBinlog
from binlogd.log.pointer import FileId
from binlogd.log.stretch import Batch
from binlogd.log.tally import CommitRow
from binlogd.pump.log.entry import Entry
from binlogd.tso import NO_TS, Tso
from binlogd.wire.outline import whole_bytes
from binlogd.wire.peek import peek, plain_numbers

_PREWRITE, _COMMIT = BinlogType.PREWRITE.value, BinlogType.COMMIT.value
_ROLLBACK = BinlogType.ROLLBACK.value
_KNOWN = frozenset((_PREWRITE, _COMMIT, _ROLLBACK))


def _numbers(payload: bytes) -> tuple[int, int, int]:
    """Type and timestamps, in the only four combinations a shard knows; an outcome of nothing for
    an empty one, as an old version of the original wrote it.

    Raises MalformedBinlog, also for a type that nobody knows any more: the original takes those for
    Commits.
    """
    plain = plain_numbers(payload)
    if plain is None:
        tp, start_ts, commit_ts, _ = peek(payload)
    else:
        tp, start_ts, commit_ts = plain
    if tp == _PREWRITE and start_ts > 0:
        return tp, start_ts, NO_TS
    if tp not in _KNOWN:
        raise MalformedBinlog(
            f"a binlog of type {tp}, start_ts {start_ts}, commit_ts {commit_ts}: known types are"
            " Prewrite (0), Commit (1) and Rollback (2)"
        )
    if start_ts == commit_ts:
        return _ROLLBACK, max(start_ts, NO_TS), max(start_ts, NO_TS)
    if tp == _COMMIT and commit_ts > 0:
        return tp, start_ts, commit_ts
    return _ROLLBACK, start_ts, NO_TS


def entry_of(fid: FileId, offset: int, payload: bytes, path: Callable[[FileId], Path]) -> Entry:
    """The entry of a record that was read from the log, or of its `Outline`. Raises
    CorruptRecord."""
    try:
        tp, start_ts, commit_ts = _numbers(payload)
    except MalformedBinlog as error:
        raise CorruptRecord(path(fid), offset, str(error)) from error
    size = len(payload) if type(payload) is bytes else whole_bytes(payload)
    return Entry(tp, Tso(start_ts), Tso(commit_ts), fid, offset, size)


def entries_of(fid: FileId, batch: Batch, path: Callable[[FileId], Path]) -> list[Entry]:
    """Those of records that were scanned. Raises CorruptRecord."""
    return [entry_of(fid, offset, payload, path) for offset, payload in batch]


def rows_of(
    entries: Sequence[Entry],
) -> tuple[list[tuple[int, int, int, int]], list[CommitRow], list[tuple[int, int]]]:
    """Rows of the index: prewrites, commits and rollbacks. Hot."""
    prewrites: list[tuple[int, int, int, int]] = []
    commits: list[CommitRow] = []
    rollbacks: list[tuple[int, int]] = []
    each: Any  # its numbers go on as the objects they are, compiled too
    for each in entries:
        if each.tp == _PREWRITE:
            prewrites.append((each.start_ts, each.fid, each.offset, each.length))
        elif each.commit_ts:
            commits.append((each.commit_ts, each.start_ts, each.fid, each.offset, each.length))
        else:
            rollbacks.append((each.start_ts, each.fid))
    return prewrites, commits, rollbacks
