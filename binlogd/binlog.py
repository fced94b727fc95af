"""What flows from a Pump to a Drainer: commits joined with their prewrites, and how far they reach.

Structs of msgspec, as everything that is made for each transaction: ten times cheaper to make than
frozen dataclasses. None of them is ever part of a cycle.

Source: tipb proto/binlog/binlog.proto; tidb-binlog pump/storage/storage.go, PullCommitBinlog.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from binlogd.tso import Tso


class BinlogType(IntEnum):
    """`Binlog.tp`; PreDDL (3) and PostDDL (4) are obsolete and refused."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2


class StoredPayload(Protocol):
    """A large payload that is left on the disk, and read piece by piece. It is canonical, of a
    transaction with rows. Its methods raise Corrupt or Unavailable."""

    def __len__(self) -> int:
        """In bytes."""

    def __bytes__(self) -> bytes:
        """All of it, in memory."""

    def cut(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to before `end`; fewer behind its end."""

    def pieces(self) -> Iterator[bytes]:
        """All of it, some hundred kilobytes at a time."""


Payload = bytes | StoredPayload


class CommittedBinlog(msgspec.Struct, frozen=True, gc=False):
    """A commit joined with its prewrite, or a fake binlog (start_ts == commit_ts, no rows).

    `payload` is a serialised `Binlog` of type Commit (Rollback for a fake) that holds the
    prewrite_value and the ddl_* fields of the prewrite. Only a shard of this process hands out a
    `StoredPayload`, and only of a large one.
    """

    start_ts: Tso
    commit_ts: Tso
    payload: Payload

    @property
    def is_fake(self) -> bool:
        """Whether it only moves the watermark."""
        return self.start_ts == self.commit_ts


class Late(NamedTuple):
    """A commit that came below what its source had promised: who was ahead of it never gets it."""

    source: str
    start_ts: Tso
    commit_ts: Tso


_NAMED = re.compile(r"commit_ts (\d+) \(start_ts (\d+)\)")
_OTHERS = re.compile(r", and (\d+) others like it")


def others_like_it(count: int, named: Iterable[Late] = ()) -> str:
    """How an error goes on that names one late commit: how many others there are, and which."""
    found = "".join(f", commit_ts {each.commit_ts} (start_ts {each.start_ts})" for each in named)
    return (f", and {count} others like it" if count else "") + found


def late_commits_in(text: str, source: str) -> list[Late]:
    """The one that an error names, and those of `others_like_it`; none where not all are named."""
    named = [Late(source, Tso(int(start)), Tso(int(ts))) for ts, start in _NAMED.findall(text)]
    others = _OTHERS.search(text)
    return named if len(named) == 1 + (int(others[1]) if others else 0) else []


class Pulled(msgspec.Struct, frozen=True):
    """One batch of a source: binlogs in commit_ts order, and the promise that goes with them.

    Every transaction of this source with commit_ts <= resolved_ts is in this batch or in an earlier
    one. `binlogs` may be empty: then only the promise moved. `next_bytes` above 0 says that the
    next batch is one large binlog of that size, which is read when the source is asked to go on.
    """

    binlogs: Sequence[CommittedBinlog]
    resolved_ts: Tso
    next_bytes: int = 0

    @property
    def transactions(self) -> list[CommittedBinlog]:
        """Those that do more than move the watermark."""
        return [binlog for binlog in self.binlogs if not binlog.is_fake]


class HasCommitTs(Protocol):
    """What happened at a commit_ts."""

    @property
    def commit_ts(self) -> Tso:
        """When."""


C = TypeVar("C", bound=HasCommitTs)


def in_parts(
    items: Sequence[C], sizes: Sequence[int], *, bytes_max: int, count_max: int = sys.maxsize
) -> Iterator[Sequence[C]]:
    """Some items, of these sizes, cut behind the one with which a part gets large or long; never
    between equal commit_ts, as whoever is asked how far it has come answers with one."""
    begin = size = 0
    for at, (item, more) in enumerate(zip(items, sizes, strict=True)):
        is_full = size >= bytes_max or at - begin >= count_max
        if is_full and item.commit_ts != items[at - 1].commit_ts:
            yield items[begin:at]
            begin, size = at, 0
        size += more
    if begin < len(items):
        yield items[begin:]
