"""What a segment holds, told by its records: where each commit and its prewrite stand.

    fold = Fold(shard, before)            the records of a shard, segment after segment
    for offset, payload in records: fold.take(offset, payload)
    fold.index(...), fold.places

Invariants. `places` has every commit of the segment with the place of its prewrite, which may lie
in an earlier segment of the same shard. `resolved_ts`: every transaction of the shard with a
commit_ts up to it has its Commit in this segment or an earlier one.
Why it holds. A transaction whose prewrite is still to come gets its commit_ts after that prewrite
was acknowledged, so above every commit_ts that lies in the log by then. One whose prewrite is here
without an outcome commits above its start_ts, and above every commit_ts before it (its `floor`). A
Pump knows the first prewrite of its log whose fate is open; of those before it, every Commit lay in
the log when it was asked, so what was sealed after that holds it, or there is none.
The Pump's sorter and an export's columns (`snapshot/tables/transactions.py`) say the same of the
same records, each in the form that its figures need; one property holds the three together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptPayload, MalformedBinlog
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import mutations
from binlogd.wire.peek import Head, body, peek

INDEX_FORMAT = 1
SYNC_BYTES = 8 << 20
"""About so many bytes lie between two sync points."""
OUTCOMES_KEPT_MAX = 32_768
"""A prewrite that is sent again comes soon behind its Commit; later it only holds up."""
ROLLED_BACK_KEPT_MAX = 10_000
"""A Rollback may be a mistaken claim, with a Commit behind it: so many prewrites are remembered."""


class LogPosition(NamedTuple):
    """A commit and its prewrite; `prewrite_fid` below 0 says that the log never had it."""

    commit_ts: int
    start_ts: int
    shard: int
    fid: int
    offset: int
    length: int
    prewrite_fid: int
    prewrite_offset: int
    prewrite_length: int


class Prewrite(msgspec.Struct, array_like=True):
    """A prewrite without a Commit so far; `floor` is what its commit_ts would be above.

    `is_decided`: it was rolled back, or a Pump knows that nothing will come of it. `tables` are
    those of its rows; None where an older binlogd did not say.
    """

    start_ts: int
    fid: int
    offset: int
    length: int
    floor: int
    is_decided: bool = False
    tables: tuple[int, ...] | None = None


class SyncPoint(msgspec.Struct, array_like=True, frozen=True):
    """A record begins at `offset`; up to there the largest commit_ts of the shard is `seen_ts`."""

    offset: int
    seen_ts: int


class PlacesStretch(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of the file that says where the commits of a segment stand: from the end of the one
    before up to `end`. It has those with a commit_ts from `min_ts` to `max_ts`; the last one has
    none, and says where everything is."""

    end: int
    crc32c: int
    min_ts: int = 0
    max_ts: int = 0


class SegmentIndex(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of an archive. `min_ts` and `max_ts` are of commits, 0 where there are none."""

    format: int = INDEX_FORMAT
    shard: int
    fid: int
    size_bytes: int
    is_sealed: bool
    crc32c: int
    transactions: int
    min_ts: int
    max_ts: int
    seen_ts: int
    resolved_ts: int
    ddl_jobs: tuple[int, ...]
    tables: dict[int, int]
    """Row changes by table id, of the prewrites that stand here."""
    sync: tuple[SyncPoint, ...]
    open: tuple[Prewrite, ...]
    """What is needed to go on with the next segment."""
    places_crc32c: int | None = None
    """Of the file that says where its commits stand, once nothing is added to it."""
    carried: tuple[int, ...] | None = None
    """Other tables that commits of it may be of, as their prewrites stand in earlier segments; None
    where nobody knows."""
    places: tuple[PlacesStretch, ...] = ()
    """Of that file; none where an older binlogd wrote it, or something may be added."""

    def has_none_but(self, others: Collection[int]) -> bool:
        """Whether all of its commits are of these tables for certain."""
        known = self.carried is not None and not self.ddl_jobs
        return known and all(each in others for each in (*self.tables, *(self.carried or ())))


class Fold:
    """The records of one shard, in the order of writing."""

    def __init__(self, shard: int, before: SegmentIndex | None = None) -> None:
        self._shard = shard
        self._open = {each.start_ts: each for each in before.open} if before else {}
        self._outcomes: OrderedDict[int, None] = OrderedDict()
        self._seen_ts = before.seen_ts if before else 0
        self.begin(before.fid + 1 if before else 0)

    def begin(self, fid: int, offset: int = 0) -> None:
        """The next segment, or what follows in the present one: that is told by itself then."""
        self._fid, self._begin = fid, offset
        self.places: list[LogPosition] = []
        self._tables: Counter[int] = Counter()
        self._carried: set[int] | None = set()
        self._ddl_jobs: dict[int, None] = {}
        self._sync: list[SyncPoint] = []

    def take(self, offset: int, payload: bytes) -> None:
        """The next record. Raises CorruptPayload for one that is no binlog."""
        try:
            head = peek(payload)
            if not self._sync or offset - self._sync[-1].offset >= SYNC_BYTES:
                self._sync.append(SyncPoint(offset, self._seen_ts))
            if head.tp == BinlogType.PREWRITE:
                self._prewrite(head, offset, payload)
            elif head.tp == BinlogType.COMMIT:
                self._commit(head, offset, len(payload))
            elif head.start_ts == head.commit_ts:
                self._seen_ts = max(self._seen_ts, head.commit_ts)
            elif (prewrite := self._open.get(head.start_ts)) is not None:
                prewrite.is_decided = True
        except MalformedBinlog as error:
            raise CorruptPayload(
                f"segment {self._fid} of shard {self._shard} at offset {offset}: the record is no"
                f" binlog: {error}"
            ) from error

    def decide(self, fid: int, offset: int) -> None:
        """When this was the first prewrite of an open fate, the log went no further than now."""
        for each in self._open.values():
            each.is_decided = each.is_decided or (each.fid, each.offset) < (fid, offset)

    def index(self, *, size_bytes: int, crc32c: int, is_sealed: bool) -> SegmentIndex:
        """The present segment, whose last record was taken."""
        self._forget()
        commit_tss = [each.commit_ts for each in self.places]
        return SegmentIndex(
            shard=self._shard,
            fid=self._fid,
            size_bytes=size_bytes,
            is_sealed=is_sealed,
            crc32c=crc32c,
            transactions=len(self.places),
            min_ts=min(commit_tss, default=0),
            max_ts=max(commit_tss, default=0),
            seen_ts=self._seen_ts,
            resolved_ts=self.resolved_ts,
            ddl_jobs=tuple(self._ddl_jobs),
            tables=dict(sorted(self._tables.items())),
            sync=tuple(self._sync),
            open=tuple(self._open.values()),
            carried=None if self._carried is None else tuple(sorted(self._carried)),
        )

    @property
    def resolved_ts(self) -> Tso:
        """Up to where every commit of the shard was taken."""
        floors = (each.floor for each in self._open.values() if not each.is_decided)
        return Tso(min(floors, default=self._seen_ts))

    def _prewrite(self, head: Head, offset: int, payload: bytes) -> None:
        if head.start_ts == 0:
            return  # left by old versions
        if head.start_ts in self._open or head.start_ts in self._outcomes:
            return  # sent again: the first stands further ahead, or has nothing to wait for
        floor = max(head.start_ts, self._seen_ts)
        found = Prewrite(head.start_ts, self._fid, offset, len(payload), floor, tables=())
        self._open[head.start_ts] = found
        if head.ddl_job_id == 0:
            changes = mutations(body(payload).prewrite_value)[1]
            for change in changes:
                self._tables[change.table_id] += len(change.sequence)
            found.tables = tuple(change.table_id for change in changes)

    def _commit(self, head: Head, offset: int, length: int) -> None:
        if head.commit_ts == 0:
            return
        found = self._open.pop(head.start_ts, None)
        self._outcomes[head.start_ts] = None
        if len(self._outcomes) > OUTCOMES_KEPT_MAX:
            self._outcomes.popitem(last=False)
        if found is None or found.tables is None:
            self._carried = None
        elif (found.fid, found.offset) < (self._fid, self._begin) and self._carried is not None:
            self._carried.update(found.tables)
        place = (found.fid, found.offset, found.length) if found else (-1, 0, 0)
        self.places.append(
            LogPosition(
                head.commit_ts, head.start_ts, self._shard, self._fid, offset, length, *place
            )
        )
        self._seen_ts = max(self._seen_ts, head.commit_ts)
        if head.ddl_job_id:
            self._ddl_jobs[head.ddl_job_id] = None

    def _forget(self) -> None:
        decided = [start_ts for start_ts, each in self._open.items() if each.is_decided]
        for start_ts in decided[: max(0, len(decided) - ROLLED_BACK_KEPT_MAX)]:
            del self._open[start_ts]


def resolved(newest: Iterable[SegmentIndex], shards: int, *, is_whole: bool) -> Tso:
    """Up to where all shards are complete, told by the newest segment of each.

    `is_whole`: the logs end there at one and the same moment, so that what one of them has seen
    counts for all.
    """
    found = list(newest)
    if len(found) != shards or not found:
        return NO_TS
    if not is_whole:
        return Tso(min(each.resolved_ts for each in found))
    floors = [open_.floor for each in found for open_ in each.open if not open_.is_decided]
    return Tso(min([max(each.seen_ts for each in found), *floors]))
