"""A Commit joined with its Prewrite: what a Drainer gets of a transaction.

Source: tidb-binlog pump/storage/storage.go, which fills a Commit with the rows of its Prewrite.
"""

from __future__ import annotations

from binlogd.binlog import BinlogType
from binlogd.errors import Corrupt
from binlogd.wire.binlogs import Fields, encode, fields_of
from binlogd.wire.peek import marks_of, peek, plain_value_at
from binlogd.wire.stamps import COMMIT_AT, TIMESTAMP_BYTES, is_stamped, is_started


def join(prewrite: bytes, commit: bytes) -> bytes:
    """The Commit with prewrite_value and ddl_* of its Prewrite, canonical. Both belong to one
    transaction; the key stays the Commit's. Raises MalformedBinlog."""
    of_prewrite, of_commit = marks_of(prewrite), marks_of(commit)
    if of_prewrite is not None and of_commit is not None:
        return commit[: of_commit.value_at] + prewrite[of_prewrite.value_at :]
    source, target = fields_of(prewrite, prewrite), fields_of(commit, commit)
    return encode(Fields(*target[:4], *source[4:8], target.unknown))


def join_of(start_ts: int, commit_ts: int, commit: bytes, prewrite: bytes | None) -> bytes | None:
    """`join` of the records of just this transaction, the commit alone without a prewrite; None
    where one of them is of another. Raises MalformedBinlog."""
    if prewrite is not None:  # told by their first bytes, as nearly always
        is_ours = is_stamped(commit, start_ts, commit_ts) and is_started(prewrite, start_ts)
        if is_ours and commit[1] == 1 and prewrite[1] == 0 and prewrite[COMMIT_AT] == 0:
            head_end = plain_value_at(commit, COMMIT_AT + TIMESTAMP_BYTES)
            rows_at = plain_value_at(prewrite, COMMIT_AT + 1)
            if head_end and rows_at:
                return commit[:head_end] + prewrite[rows_at:]
    if peek(commit)[1:3] != (start_ts, commit_ts):
        return None
    if prewrite is None:
        return commit
    return join(prewrite, commit) if peek(prewrite)[:2] == (BinlogType.PREWRITE, start_ts) else None


def joined(
    start_ts: int, commit_ts: int, commit: bytes, prewrite: bytes | None, *, where: str
) -> bytes:
    """`join_of` for who was led to these records by an index, or a scan. A damaged index may lead
    to whole records of another transaction, with the right checksums. Raises Corrupt where they are
    of another one, MalformedBinlog."""
    payload = join_of(start_ts, commit_ts, commit, prewrite)
    if payload is None:
        raise Corrupt(
            f"{where}: transaction {start_ts} at commit_ts {commit_ts}: the index leads to another"
            " binlog"
        )
    return payload
