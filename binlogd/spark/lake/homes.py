"""Where rows belong at the end of a batch in which partitions were dropped, truncated or exchanged.

Such a DDL takes rows along that no binlog names. Changes of the batch are followed before the last
one of a key is looked for; rows that a lake holds are followed by the values that it holds.

Rows are at the schema version of the begin of the batch, but for `LateRows`: DROP PARTITION hides
its partitions a while before it ends, and who writes a row of their range meanwhile puts it into
the next one; REORGANIZE PARTITION of a table without a key has rows twice meanwhile. Where a batch
begins within that while, such rows are told by the log.

Rows of a table without a key, whose partition was exchanged, are told apart by their row id and
their partition from then on (`HandleKind.PLACED`), so their keys change with their partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.bases.read_back import values_of
from binlogd.snapshot.log.moves import Followed, Home, Moves, Twins
from binlogd.snapshot.log.rowkey import HandleKind, Op
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.lake.manifest import WAY_PAST, LakeBatch, PipelineStopped
from binlogd.spark.lake.rows import KEY_COLUMN, lake_schema
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

LateRows = Mapping[int, Mapping[bytes, int]]
"""By table id and key: the schema version of rows that came while a DDL was at work, or `GONE`."""
GONE = -1
"""Of two rows the one that went with an old partition."""

_DATES = (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP)


# --- changes of the batch ------------------------------------------------------------------------


def followed(moves: Moves, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same changes, each of the table that its row belongs to at the end. Raises UnreadableRow.

    A row that is no more ends its key, where nothing but a hidden row id tells rows apart: the same
    id may have been in a partition that stayed. Other keys hold the values that decide.
    """
    following = _Following(moves)
    concerned = pa.array(list(moves.known), pa.int64())
    for batch in batches:
        is_plain = pc.invert(pc.is_in(batch.column("table_id"), value_set=concerned))
        if pc.all(is_plain).as_py() or not batch.num_rows:
            yield batch
            continue
        rest = batch.filter(pc.invert(is_plain)).to_pylist()
        moved = [found for row in rest for found in following.moved(row)]
        yield batch.filter(is_plain)
        yield pa.RecordBatch.from_pylist(moved, schema=batch.schema)


class _Following:
    """Takes changes in the order of the log."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._follower = moves.followed()
        self._twins = TwinKeys(self._follower)

    def moved(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """A change where its row is at the end: itself, or under another table and key, behind the
        end of its twin there; a delete or nothing where it went. Raises UnreadableRow."""
        moves, table_id = self._moves, row["table_id"]
        version = moves.seen(table_id, row["schema_version"], row["commit_ts"])
        if not moves.concerns(table_id, version):
            return [row]
        try:
            gone = self._twins.gone({**row, "schema_version": version})
            home = self._follower.home(table_id, version, row["row"])
        except CorruptRow as error:
            raise UnreadableRow(f"table id {table_id}", row["commit_ts"], str(error)) from error
        if home is not None:
            found = {**row, "table_id": home.table_id, "key": moves.key(home, row["key"])}
            if gone is None:
                return [found]
            ended = {**found, "op": Op.DELETE.value, "key": moves.key(home, gone)}
            return [ended] if gone == row["key"] else [ended, found]
        if moves.handles[table_id].kind is HandleKind.HIDDEN:
            return [{**row, "op": Op.DELETE.value}]
        return []


class TwinKeys:
    """Finds rows that REORGANIZE PARTITION of a table without a key had twice, among changes in the
    order of the log."""

    def __init__(self, follower: Followed) -> None:
        self._follower = follower
        self._of: tuple[int, int] = (0, 0)
        self._twins: Twins | None = None
        self._last = b""

    def gone(self, row: Mapping[str, Any]) -> bytes | None:
        """The key of the row that went with an old partition: this one, or the one before it; None
        for neither. Raises CorruptRow."""
        if row["op"] != Op.PUT:
            return None
        table_id, commit_ts, key = row["table_id"], row["commit_ts"], row["key"]
        if (table_id, commit_ts) != self._of:
            self._of = table_id, commit_ts
            self._twins = self._follower.twins(table_id, row["schema_version"], commit_ts)
        if self._twins is None:
            return None
        before, last, self._last = self._twins.look(row["row"]), self._last, key
        if before is None:
            return None
        gone: bytes = last if before else key
        return gone


# --- rows that a lake holds ----------------------------------------------------------------------


@dataclass(slots=True)
class ExistingRows:
    """The rows of a table of a lake at the begin of a batch."""

    plan: TablePlan
    moves: Moves
    version: int
    types: TypeOptions
    late: Mapping[bytes, int] = field(default_factory=dict)
    _follower: Followed = field(init=False)
    _columns: list[Column] = field(init=False)

    def __post_init__(self) -> None:
        self._follower = self.moves.followed()
        table_id, ids = self.plan.info.id, set[int]()
        for version in {self.version, *self.late.values()} - {GONE}:
            ids.update(self._follower.deciding(table_id, version))
        self._columns = [each for each in self.plan.columns if each.id in ids]

    @classmethod
    def of(cls, batch: LakeBatch, table_id: int, late: LateRows) -> ExistingRows:
        """Those of one table. Raises PipelineStopped."""
        plan, of_table = batch.before[table_id], late.get(table_id, {})
        return cls(plan, batch.moves, batch.version_of(table_id), batch.types, of_table)

    @property
    def schema(self) -> pa.Schema:
        """The columns that have to be looked at."""
        whole = lake_schema(self.plan, self.types)
        return pa.schema([whole.field(each.name) for each in self._columns]).append(whole[-1])

    def homes(self, rows: pa.RecordBatch) -> list[Home | None]:
        """Where each row is, None for one that is no more. Raises PipelineStopped."""
        keys = rows.column(KEY_COLUMN).to_pylist() if self.late else [b""] * rows.num_rows
        columns = [self._values(each, rows.column(each.name)) for each in self._columns]
        known: dict[tuple[object, ...], Home | None] = {}
        found = []
        for key, *values in zip(keys, *columns, strict=True):
            version = self.late.get(key, self.version)
            of = (version, *values)
            if of not in known:
                known[of] = self._home(version, values)
            found.append(known[of])
        return found

    def _home(self, version: int, values: Sequence[Value]) -> Home | None:
        if version == GONE:
            return None
        by_id = {column.id: value for column, value in zip(self._columns, values, strict=True)}
        try:
            return self._follower.home_of(self.plan.info.id, version, by_id)
        except (CorruptRow, KeyError) as error:
            raise PipelineStopped(
                f"{self.plan.label}: which rows went with its partitions is not told by the values"
                f" that the lake has: {error}. {WAY_PAST}"
            ) from error

    def _values(self, column: Column, array: pa.Array) -> list[Value]:
        encoded = array.dictionary_encode()
        values = values_of(column, pa.chunked_array([encoded.dictionary]))
        if self._may_be_lost(column, values, has_nulls=bool(array.null_count)):
            raise PipelineStopped(
                f"{self.plan.label}: a partition of it went, and with it rows by the values of"
                f" {column.name}, of which the lake lacks some (zero-dates, invalid-text)."
                f" {WAY_PAST}"
            )
        return [None if each is None else values[each] for each in encoded.indices.to_pylist()]

    def _may_be_lost(self, column: Column, values: list[Value], *, has_nulls: bool) -> bool:
        tp = column.field_type.tp
        if tp in _DATES:
            return has_nulls and self.types.zero_dates == "null"
        if tp in STRING_TYPES and self.types.invalid_text == "replace" and not column.is_binary:
            return any(isinstance(each, bytes) and _REPAIRED in each for each in values)
        return False


_REPAIRED = "\ufffd".encode()
