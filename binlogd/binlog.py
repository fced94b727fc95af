"""What flows from a Pump to a Drainer: commits joined with their prewrites, and how far they reach.

Structs of msgspec, as everything that is made for each transaction: ten times cheaper to make than
frozen dataclasses. None of them is ever part of a cycle.

Source: tipb proto/binlog/binlog.proto; tidb-binlog pump/storage/storage.go, PullCommitBinlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from binlogd.tso import Tso


class BinlogType(IntEnum):
    """`Binlog.tp`; PreDDL (3) and PostDDL (4) are obsolete and refused."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2


class CommittedBinlog(msgspec.Struct, frozen=True, gc=False):
    """A commit joined with its prewrite, or a fake binlog (start_ts == commit_ts, no rows).

    `payload` is a serialised `Binlog` of type Commit (Rollback for a fake) that holds the
    prewrite_value and the ddl_* fields of the prewrite.
    """

    start_ts: Tso
    commit_ts: Tso
    payload: bytes

    @property
    def is_fake(self) -> bool:
        """Whether it only moves the watermark."""
        return self.start_ts == self.commit_ts


class Late(NamedTuple):
    """A commit that came below what its source had promised: who was ahead of it never gets it."""

    source: str
    start_ts: Tso
    commit_ts: Tso


class Pulled(msgspec.Struct, frozen=True):
    """One batch of a source: binlogs in commit_ts order, and the promise that goes with them.

    Every transaction of this source with commit_ts <= resolved_ts is in this batch or in an earlier
    one. `binlogs` may be empty: then only the promise moved. `next_bytes` above 0 says that the
    next batch is one large binlog of that size, which is read when the source is asked to go on.
    """

    binlogs: Sequence[CommittedBinlog]
    resolved_ts: Tso
    next_bytes: int = 0
