"""Rows that come behind a DDL of partitions and have not seen it: left out, or given to the table
that has them now (see `turns`).

Only tables with such a DDL of the last moments are looked at; a DDL is forgotten when every row
that has not seen it must have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import skip_datum
from binlogd.tidb.kinds import INSERT, UPDATE, ActionType
from binlogd.tidb.model import Job, Table, TableAt, job_from_json, table_from_json, table_to_json
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.turns import Turn, turn_of

_MOVING = frozenset(
    {
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.EXCHANGE_TABLE_PARTITION,
        ActionType.REORGANIZE_PARTITION,
    }
)
_KEPT_MAX = 64
_TAIL = b"\x08\x01\x08"
"""What stands before the hidden row id at the end of an updated or deleted row."""


class Doubt(msgspec.Struct, frozen=True):
    """Rows of a table of which nobody knows where they are; with `reason` none was looked at."""

    table_id: int
    rows: int
    reason: str = ""


@dataclass(slots=True)
class Past:
    """A DDL of partitions that rows may come behind of without having seen it.

    `before` is the partitioned table that they saw, `ids` are its partitions that went. `plain`
    is the table of an exchange as it was.
    """

    job: Job
    turn: Turn
    before: Table
    plain: Table | None = None
    gone: Gone | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        try:
            self.gone = Gone(self.job, self.before)
        except Unplaceable as error:
            self.reason = str(error)
        is_exchange = self.job.type == ActionType.EXCHANGE_TABLE_PARTITION
        plain = self.plain.columns if self.plain is not None else ()
        if is_exchange and [each.id for each in plain] != [each.id for each in self.before.columns]:
            self.reason = "the columns of the two tables have different ids"

    @property
    def heir(self) -> int:
        """The table that has the rows of the partitions that went; 0 for none."""
        is_exchange = self.job.type == ActionType.EXCHANGE_TABLE_PARTITION
        return next(iter(self.gone.ids), 0) if is_exchange and self.gone is not None else 0


class Gone:
    """The partitions that a DDL took away, and which rows lay in them."""

    def __init__(self, job: Job, before: Table) -> None:
        """Raises Unplaceable."""
        assert job.table is not None, "a DDL of partitions leaves a table"
        self.ids = frozenset(before.partition_ids) - frozenset(job.table.partition_ids)
        self._places = PartitionLookup(before)
        self._decoder = decoder_of(before)

    def values(self, kind: int, row: bytes) -> dict[int, Value]:
        """A row as it is after a change, or was before a deletion: updates stay in their
        partition. Raises CorruptRow."""
        if kind == INSERT:
            return self._decoder.insert(row)
        return self._decoder.update(row)[1] if kind == UPDATE else self._decoder.delete(row)

    def old_values(self, update: bytes) -> dict[int, Value]:
        """A row as it was before an update. Raises CorruptRow."""
        return self._decoder.update(update)[0]

    def has(self, values: Mapping[int, Value]) -> bool:
        """Whether a row lay in one of them. Raises CorruptRow."""
        try:
            return self._places.look(values) in self.ids
        except Unplaceable as error:
            raise CorruptRow(f"where it lies: {error}") from error


class _Found(msgspec.Struct):
    owner: int
    values: dict[int, Value] | None = None
    is_doubtful: bool = False
    is_twice: bool = False
    """It may be written twice."""
    reason: str = ""


def _follow(past: Past, found: _Found, kind: int, row: bytes) -> None:
    """Moves a row that has not seen it. Raises CorruptRow."""
    is_plain = past.plain is not None and found.owner == past.plain.id
    if not is_plain and found.owner != past.before.id:
        return
    if past.gone is None or past.reason:
        found.is_doubtful, found.reason = True, past.reason
        found.owner = 0 if is_plain else found.owner
    elif is_plain:
        found.is_doubtful, found.owner = True, past.before.id
    else:
        found.values = past.gone.values(kind, row)
        if not past.gone.has(found.values):
            return
        found.is_doubtful = True
        if past.job.type == ActionType.REORGANIZE_PARTITION:
            found.is_twice = kind == INSERT and past.before.has_hidden_id
        else:
            found.owner = past.heir


class MovedRows:
    """The DDL of the last moments, oldest first: `pasts`, most of the time empty."""

    def __init__(self, pasts: Iterable[Past] = ()) -> None:
        self.pasts = list(pasts)
        self._table_ids = frozenset[int]()
        self._settled_ts = 0
        self._doubts: list[Doubt] = []
        self._index()

    def copy(self) -> MovedRows:
        """Another one with the same DDL, and no doubts so far."""
        return MovedRows(self.pasts)

    def unsettled(self, commit_ts: int) -> list[Past]:
        """Those that rows behind this commit_ts may not have seen."""
        return [each for each in self.pasts if each.turn.settled_ts > commit_ts]

    def note(self, job: Job, before: Table, plain: Table | None = None) -> None:
        """A job is in force: `before` is the partitioned table that it found."""
        if job.type not in _MOVING or job.table is None:
            return
        past = Past(job, turn_of(job, 0, ()), before, plain)
        later = [each for each in self.pasts if each.turn.settled_ts > job.began_ts]
        self.pasts = [*later, past][-_KEPT_MAX:]
        self._index()

    def table_ids(self, commit_ts: int) -> frozenset[int]:
        """The tables of which rows that commit then may be elsewhere."""
        if commit_ts > self._settled_ts:
            self.pasts = []
            self._index()
        return self._table_ids

    def where(
        self, table_id: int, rows: Iterable[tuple[int, bytes]], version: int, commit_ts: int
    ) -> Iterator[tuple[int, tuple[int, bytes]]]:
        """The rows of a table in one transaction, each behind the table that has it; without those
        that are gone. Raises CorruptRow."""
        unseen = [each for each in self.pasts if not each.turn.is_seen(version, commit_ts)]
        doubtful, reason = 0, ""
        previous: dict[int, Value] | None = None
        for kind, row in rows:
            found = _Found(table_id)
            for past in unseen:
                _follow(past, found, kind, row)
            doubtful += found.is_doubtful
            reason = found.reason or reason
            if found.is_twice and found.values == previous:
                previous = None  # TiDB has the one of the new partition
                continue
            previous = found.values if kind == INSERT else None
            if found.owner:
                yield found.owner, (kind, row)
        if doubtful:
            self._doubts.append(Doubt(table_id, doubtful, reason))

    def take_doubts(self) -> list[Doubt]:
        """What was in doubt since this was last asked."""
        doubts, self._doubts = self._doubts, []
        return doubts

    def _index(self) -> None:
        tables = (table for each in self.pasts for table in (each.before, each.plain))
        self._table_ids = frozenset(table.id for table in tables if table is not None)
        self._settled_ts = max((each.turn.settled_ts for each in self.pasts), default=0)

    # --- kept beside a schema ------------------------------------------------------------------

    def kept(self) -> list[MovedJson]:
        """What `of` needs."""
        return [MovedJson.of(each) for each in self.pasts]

    @classmethod
    def of(cls, kept: Iterable[MovedJson]) -> MovedRows:
        """What it was taken of. Raises Corrupt."""
        return cls(each.past() for each in kept)


class MovedJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A DDL of partitions, as JSON."""

    job: msgspec.Raw
    before: msgspec.Raw
    plain: msgspec.Raw = msgspec.Raw(b"null")

    @classmethod
    def of(cls, past: Past) -> MovedJson:
        """The JSON of it."""
        plain = msgspec.Raw(b"null" if past.plain is None else table_to_json(past.plain))
        return cls(msgspec.Raw(past.job.raw), msgspec.Raw(table_to_json(past.before)), plain)

    def past(self) -> Past:
        """What the JSON says. Raises Corrupt."""
        job = job_from_json(bytes(self.job))
        plain = table_from_json(bytes(self.plain)) if bytes(self.plain) != b"null" else None
        return Past(job, turn_of(job, 0, ()), table_from_json(bytes(self.before)), plain)


# --- rows ------------------------------------------------------------------------------------


def hidden_id(kind: int, row: bytes) -> bytes:
    """The hidden row id of a row, as it stands there. Raises CorruptRow."""
    if kind == INSERT:
        return row[: skip_datum(row, 0)]
    at = row.rfind(_TAIL)
    if at < 0:
        raise CorruptRow("a row without a hidden id")
    return row[at + len(_TAIL) - 1 :]


def decoder_of(info: Table) -> RowDecoder:
    """Of rows that may be older or newer than the table."""
    return RowDecoder(TableAt("", info, 0, None, {}, may_lack_columns=True))
