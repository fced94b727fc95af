"""Committed transactions out of a store, by the places where they stand: in commit order, joined.

A few megabytes are in memory at a time. Every record's checksum is looked at. What the log does not
hold ends the reading with its place; nothing is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from binlogd.archive.places import TransactionIndex
from binlogd.archive.store import ArchiveStore
from binlogd.binlog import CommittedBinlog
from binlogd.errors import Corrupt, CorruptRecord
from binlogd.log.record import decode, size_of
from binlogd.log.segment_index import LogPosition
from binlogd.tso import Tso
from binlogd.wire.joining import joined

T = TypeVar("T")
TOGETHER_BYTES = 8 << 20
TOGETHER = 4_096
"""Transactions whose records are fetched together: whichever comes first."""

_Record = tuple[int, int, int, int]
"""Shard, segment, offset, length of the payload."""


class LogReader:
    """What a store holds, in commit order."""

    def __init__(self, store: ArchiveStore, places: TransactionIndex) -> None:
        self._store, self._places = store, places

    def binlogs(self, after: Tso, upto: Tso) -> Iterator[CommittedBinlog]:
        """The transactions in (after, upto].

        Raises Behind and Corrupt, also for a segment that is gone and a commit without prewrite.
        """
        found = self._places.found(after, upto)
        for part in gathered(found, _bytes_of, TOGETHER, TOGETHER_BYTES):
            yield from self._joined(part)

    def _joined(self, part: Sequence[LogPosition]) -> Iterator[CommittedBinlog]:
        records = self._fetched(part)
        for each in part:
            if each.prewrite_fid < 0:
                raise Corrupt(
                    f"{self._store.url}: the log does not hold the prewrite of start_ts"
                    f" {each.start_ts}, which committed at {each.commit_ts}: it was deleted"
                    " (pump.gc) or never sent; read from behind that commit_ts"
                )
            commit, prewrite = records[_commit_of(each)], records[_prewrite_of(each)]
            payload = joined(each.start_ts, each.commit_ts, commit, prewrite, where=self._store.url)
            yield CommittedBinlog(Tso(each.start_ts), Tso(each.commit_ts), payload)

    def _fetched(self, part: Sequence[LogPosition]) -> dict[_Record, bytes]:
        wanted: dict[tuple[int, int], set[_Record]] = {}
        for each in part:
            for record in (_commit_of(each), _prewrite_of(each)):
                if record[1] >= 0:
                    wanted.setdefault(record[:2], set()).add(record)
        found: dict[_Record, bytes] = {}
        for (shard, fid), records in wanted.items():
            name = self._places.path(shard, fid)
            ordered = sorted(records)
            ranges = [(offset, size_of(length)) for _, _, offset, length in ordered]
            try:
                stored = self._places.read_ranges(self._store, shard, fid, ranges)
            except FileNotFoundError as error:
                why = self._places.why_removed(shard, fid, part[0].commit_ts - 1)
                raise why or CorruptRecord(
                    f"{self._store.url}/{name}", ordered[0][2], "the segment is not there"
                ) from error
            for record, raw in zip(ordered, stored, strict=True):
                payload = decode(raw, length=record[3])
                if isinstance(payload, str):
                    raise CorruptRecord(f"{self._store.url}/{name}", record[2], payload)
                found[record] = payload
        return found


def gathered(
    found: Iterable[T], size_of: Callable[[T], int], many_max: int, bytes_max: int
) -> Iterator[list[T]]:
    """Some at a time: so many, or as soon as they have so many bytes."""
    some, size = list[T](), 0
    for each in found:
        some.append(each)
        size += size_of(each)
        if len(some) >= many_max or size >= bytes_max:
            yield some
            some, size = [], 0
    if some:
        yield some


def _bytes_of(each: LogPosition) -> int:
    return each.length + each.prewrite_length


def _commit_of(each: LogPosition) -> _Record:
    return each.shard, each.fid, each.offset, each.length


def _prewrite_of(each: LogPosition) -> _Record:
    return each.shard, each.prewrite_fid, each.prewrite_offset, each.prewrite_length
