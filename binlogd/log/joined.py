"""A transaction out of its two records: the Commit, with the rows of its Prewrite.

Where they stand says an index, or a scan. A damaged index may lead to whole records of another
transaction, with the right checksums: so what was read is held to what was asked for.
"""

from __future__ import annotations

from binlogd.errors import Corrupt
from binlogd.wire.peek import join_of


def joined(
    start_ts: int, commit_ts: int, commit: bytes, prewrite: bytes | None, *, where: str
) -> bytes:
    """The Commit with what its Prewrite holds; the Commit alone without one.

    Raises Corrupt where they are of another transaction, MalformedBinlog.
    """
    payload = join_of(start_ts, commit_ts, commit, prewrite)
    if payload is None:
        raise Corrupt(
            f"{where}: transaction {start_ts} at commit_ts {commit_ts}: the index leads to another"
            " binlog"
        )
    return payload
