"""How the rows of a table are written downstream, decided from both sides of it.

| the downstream table                                   | rows are               | lane     |
|--------------------------------------------------------|------------------------|----------|
| one unique key, exact (numbers, times, bytes, `_bin`)  | merged by key          | by key   |
| several unique keys, an exact one among them           | merged by that key     | by table |
| no exact key: text of another collation, prefix, FLOAT | in order, by key       | by table |
| a SET of 64 members in the key                         | one by one             | by table |
| triggers, system versioning, columns unknown upstream  | one by one             | by table |
| no key that upstream has as well                       | one by one             | by table |

Where an operator asks for it (`Shapes`), a table is written in the original's words instead: a
statement a row, INSERT, UPDATE and DELETE ... LIMIT 1 with columns in the order of their names.

Invariant. Two rows that the downstream takes for one never lie in two lanes, nor under two keys in
a merge. Why it holds. A key by which rows are merged is unique on both sides, never NULL, and two
of its literals are equal exactly when the downstream says so: numbers, times and bytes by
themselves, text under a `_bin` collation by its bytes (without trailing spaces, unless NO PAD).
No folding of ours is MariaDB's, so text under any other collation is not merged at all. A second
unique key may take a row from another one, so all rows of such a table keep to one lane.

Why final states may be written in any order where there are several unique keys: REPLACE may remove
another row, but that row is changed later in the same part, or was wrong before: two final rows
cannot collide, upstream forbade it. So such a part holds whole transactions. INSERT ... ON
DUPLICATE KEY UPDATE would not do: it changes one of two rows in its way and leaves the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.rows.plan import KeyColumn, written_columns
from binlogd.drainer.sql import has_last_member
from binlogd.errors import ConfigError
from binlogd.tidb.kinds import STRING_TYPES, SchemaState, Tp
from binlogd.tidb.model import Column, Table


@dataclass(frozen=True, slots=True)
class DownstreamColumn:
    """A column as information_schema describes it; names are compared in lower case."""

    name: str
    data_type: str
    collation: str
    """"" for what is no text."""
    is_nullable: bool
    is_generated: bool
    members: tuple[str, ...] = ()
    """Of an ENUM or SET."""

    @property
    def is_json(self) -> bool:
        """MySQL and TiDB have a type for JSON; for MariaDB it is text."""
        return self.data_type == "json"

    @property
    def is_of_members(self) -> bool:
        """Whether its values are members, which have numbers."""
        return self.data_type in ("enum", "set")

    @property
    def is_found_in_lists(self) -> bool:
        """Whether `(a, b) IN ((1, 2), ...)` finds rows by this column as `a = 1 AND b = 2` does.

        MySQL up to 9.7 finds none by the number of an ENUM or SET. MariaDB 10.11 finds none by
        text in a character set that is no part of Unicode's forms, where the list has two pairs.
        """
        is_of_unicode = not self.collation or self.collation.startswith(("utf", "ucs", "ascii"))
        return is_of_unicode and not self.is_of_members


class DownstreamKey(msgspec.Struct, frozen=True):
    """A unique key; has_prefix: some column is indexed by its beginning only."""

    name: str
    columns: tuple[str, ...]
    has_prefix: bool


@dataclass(frozen=True, slots=True)
class DownstreamTable:
    """What the shape depends on. Keys: PRIMARY first, then in the order of their names."""

    columns: tuple[DownstreamColumn, ...]
    keys: tuple[DownstreamKey, ...]
    has_triggers: bool = False
    is_versioned: bool = False
    calls_row: bool = False
    """Whether an INSERT can give its row a name."""
    is_rolled_back: bool = True
    """Whether its engine takes back what is not committed."""


class Mode(Enum):
    """What is done with the changes of a table."""

    MERGED = "merged"
    """The last state of each key: DELETE ... IN, then REPLACE."""
    ORDERED = "ordered"
    """Runs of DELETE ... IN and REPLACE, in the order of the changes."""
    SINGLE = "single"
    """INSERT runs; UPDATE and DELETE one by one, as upstream wrote them."""
    ORIGINAL = "original"
    """One statement a row, in the words of the original; in safe mode two for an update."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a table is written. `key` is empty where no key can be relied on."""

    mode: Mode
    by_key: bool
    """Whether the lane depends on the key; else on the table alone."""
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...]
    is_upsert: bool = False
    """SINGLE: an INSERT that meets its row changes it instead of failing."""
    calls_row: bool = False
    """It names its row."""
    rows_by: tuple[tuple[Column, ...], ...] = ()
    """SINGLE, ORIGINAL: unique keys; a row is found by the first of which no value is NULL."""
    is_safe: bool = False
    """ORIGINAL: a statement that is run twice does no harm."""
    json_names: frozenset[str] = frozenset()
    """Columns that have a JSON type downstream."""
    has_triggers: bool = False
    """Writing a row may write others, anywhere."""
    in_lists: bool = True
    """Whether rows are deleted by lists of keys; else each by a statement."""
    deletes_first: bool = False
    """MERGED: the downstream does not know the key as one, so that a row replaces none."""
    tells_missing: bool = False
    """Whether what a DELETE or a REPLACE affects tells if a row was there that must have been."""
    reason: str = ""
    """Why it is not simply merged by key; for the operator."""


def shape_of(
    info: Table, downstream: DownstreamTable, *, leaves_out_columns: bool = False
) -> Shape:
    """The shape of a table; `info` is the upstream's side. With `leaves_out_columns` those that the
    downstream lacks are not written."""
    there = {column.name.lower(): column for column in downstream.columns}
    ours = {column.name.lower(): column for column in written_columns(info)}
    columns = tuple(
        column
        for name, column in ours.items()
        if not (there[name].is_generated if name in there else leaves_out_columns)
    )
    key, is_exact = _best_key(info, columns, downstream)
    names = [each.column.name.lower() for each in key]
    others = _unique_upstream(info) - {frozenset(names)}
    by_key = is_exact and len(downstream.keys) == 1 and not others
    shape = Shape(
        Mode.MERGED if is_exact else Mode.ORDERED,
        by_key=by_key,
        columns=columns,
        key=key,
        calls_row=downstream.calls_row,
        json_names=frozenset(each.name.lower() for each in downstream.columns if each.is_json),
        has_triggers=downstream.has_triggers,
        in_lists=len(key) == 1 or all(there[name].is_found_in_lists for name in names),
        tells_missing=downstream.is_rolled_back and tells_missing(info),
        reason="" if by_key else "several keys" if is_exact else "inexact key",
    )
    reason = _reason_for_singles(info, shape, downstream)
    return _one_by_one(shape, downstream, reason) if reason else shape


def _one_by_one(shape: Shape, downstream: DownstreamTable, reason: str) -> Shape:
    found = tuple(each.column for each in shape.key)
    return replace(
        shape,
        mode=Mode.SINGLE,
        by_key=False,
        is_upsert=bool(found) and len(downstream.keys) == 1,
        rows_by=(found,) if found else (),
        tells_missing=False,
        reason=reason,
    )


def other_members(info: Table, downstream: DownstreamTable) -> str:
    """The first ENUM or SET column whose numbers mean something else downstream, or nothing; "" for
    none. Labels beyond ASCII, or with a backslash, are spelled in more ways than one."""
    there = {column.name.lower(): column for column in downstream.columns}
    for column in written_columns(info):
        found, ours = there.get(column.name.lower()), column.field_type.elems
        kind = {Tp.ENUM: "enum", Tp.SET: "set"}.get(column.field_type.tp)  # type: ignore[call-overload]
        if kind is None or found is None or found.is_generated or not found.collation:
            continue  # a number stays one in a column of numbers
        is_other = any(
            a.rstrip() != b.rstrip()
            for a, b in zip(ours, found.members, strict=False)
            if (a + b).isascii() and "\\" not in a + b
        )
        if is_other or found.data_type != kind or len(found.members) < len(ours):
            return column.name
    return ""


def tells_missing(info: Table) -> bool:
    """Whether the log tells which rows of a table the downstream holds.

    A DDL of partitions takes rows at another moment than TiDB does, which also writes changes twice
    while it reorganizes; what a TTL deletes is in no log, so that its operator deletes by hand.
    """
    return not info.partition_ids and not info.has_ttl


def original_shape(
    shape: Shape, downstream: DownstreamTable, *, is_safe: bool, merges: bool
) -> Shape:
    """What becomes of a table's shape when it is to be written as the original writes it.

    With its merge option the original merges tables with a primary key; so it is here, where a
    merge is safe. Source: tidb-binlog pkg/loader/model.go, executor.go.
    """
    if merges and shape.mode is Mode.MERGED and downstream.keys[0].name == "PRIMARY":
        return shape
    columns = tuple(sorted(shape.columns, key=lambda column: column.name.encode()))
    written = {column.name.lower(): column for column in columns}
    return replace(
        shape,
        mode=Mode.ORIGINAL,
        by_key=False,
        columns=columns,
        key=(),
        rows_by=tuple(
            tuple(written[name.lower()] for name in key.columns)
            for key in downstream.keys
            if all(name.lower() in written for name in key.columns)
        ),
        is_upsert=False,
        tells_missing=False,
        is_safe=is_safe,
        reason="sql-shape",
    )


def former(shape: Shape) -> str:
    """What the lanes of a table depend on, and the changes that they count, as text."""
    key = [[each.column.id, int(each.strips_spaces)] for each in shape.key]
    return json.dumps([shape.mode.value, int(shape.by_key), int(shape.is_safe), key])


class Shapes(msgspec.Struct, frozen=True):
    """Which tables are written in the words of the original; `safe_mode` and `merge` are its own
    options, which mean something for these tables only."""

    original: TableFilter | None = None
    safe_mode: bool = False
    merge: bool = False
    leaves_out_columns: bool = False
    """Columns that the downstream lacks are not written (sync-mode 2), instead of refused."""

    @property
    def is_safe(self) -> bool:
        """Whether every statement may be run twice."""
        return self.original is None or self.safe_mode

    def of(self, database: str, info: Table, downstream: DownstreamTable) -> Shape:
        """The shape of a table."""
        shape = shape_of(info, downstream, leaves_out_columns=self.leaves_out_columns)
        if self.original is None or not self.original.replicates(database, info.name):
            return shape
        return original_shape(shape, downstream, is_safe=self.safe_mode, merges=self.merge)

    def as_before(
        self, noted: str, database: str, info: Table, downstream: DownstreamTable
    ) -> Shape:
        """The shape with the lanes and the changes of a former one, in which lanes stand apart,
        written so that it suits what the downstream is now. Raises ConfigError."""
        word, by_key, is_safe, pairs = json.loads(noted)
        shape = shape_of(info, downstream, leaves_out_columns=self.leaves_out_columns)
        mode = Mode(word)
        if mode is Mode.ORIGINAL:
            shape = original_shape(shape, downstream, is_safe=bool(is_safe), merges=False)
            return replace(shape, reason=AS_BEFORE)
        if mode is Mode.SINGLE:
            return _one_by_one(shape, downstream, AS_BEFORE)
        columns = {each.id: each for each in shape.columns}
        key = tuple(
            KeyColumn(columns[column_id], bool(strips))
            for column_id, strips in pairs
            if column_id in columns
        )
        names = {each.column.name.lower() for each in key}
        is_unique = any(
            {name.lower() for name in each.columns} == names for each in downstream.keys
        )
        if len(key) < len(pairs) or (mode is Mode.ORDERED and not is_unique):
            raise ConfigError(
                f"{database}.{info.name}: a column or a key by which its rows were written is gone"
                " downstream, and the lanes stand apart; put it back, let replication catch up"
                " (`binlogd status`: all lanes at one commit_ts), and take it away then"
            )
        return replace(
            shape,
            mode=mode,
            by_key=bool(by_key),
            key=key,
            rows_by=(),
            is_upsert=mode is Mode.MERGED and is_unique and len(downstream.keys) == 1,
            deletes_first=not is_unique,
            in_lists=len(key) == 1,
            tells_missing=False,
            reason=AS_BEFORE,
        )


AS_BEFORE = "as it was written before, until lanes have caught up"


def _reason_for_singles(info: Table, shape: Shape, downstream: DownstreamTable) -> str:
    if downstream.has_triggers:
        return "triggers"
    if downstream.is_versioned:
        return "system versioning"
    known = {column.name.lower() for column in shape.columns}
    surplus = [
        column.name
        for column in downstream.columns
        if not column.is_generated and column.name.lower() not in known
    ]
    if surplus:
        return f"columns that upstream lacks: {', '.join(surplus[:10])}"
    stricter = [key.name for key in downstream.keys if _is_stricter(key, info)]
    if stricter:
        return f"unique keys that upstream lacks: {', '.join(stricter[:10])}"
    if any(has_last_member(each.column) for each in shape.key):
        return "a key with a SET of 64 members"
    return "" if shape.key else "no unique key without NULL on both sides"


def _is_stricter(key: DownstreamKey, info: Table) -> bool:
    """Whether several rows of the upstream can be one by a unique key: a REPLACE would take away
    the others. A key on an expression is known by its name."""
    columns = {name.lower() for name in key.columns}
    if "" in columns:
        return all(index.name.lower() != key.name.lower() for index in info.indexes)
    known = _unique_upstream(info, by_prefix=key.has_prefix)
    return not any(each <= columns for each in known)


def _best_key(
    info: Table, columns: Sequence[Column], downstream: DownstreamTable
) -> tuple[tuple[KeyColumn, ...], bool]:
    """The first exact key that both sides have, or the first of any kind; and whether it is exact.
    () where there is none."""
    written = {column.name.lower(): column for column in columns}
    there = {column.name.lower(): column for column in downstream.columns}
    unique = _unique_upstream(info)
    inexact: tuple[KeyColumn, ...] = ()
    for key in downstream.keys:
        names = [name.lower() for name in key.columns]
        if frozenset(names) not in unique or not all(name in written for name in names):
            continue
        pairs = [(written[name], there[name]) for name in names]
        if any(other.is_nullable or not column.not_null for column, other in pairs):
            continue
        found = tuple(KeyColumn(column, _pads(column, other)) for column, other in pairs)
        if not key.has_prefix and all(_is_exact(column, other) for column, other in pairs):
            return found, True
        inexact = inexact or found
    return inexact, False


def _is_exact(column: Column, other: DownstreamColumn) -> bool:
    """Whether two literals are equal exactly when the downstream says so (see _pads)."""
    if other.collation and not other.is_of_members:
        return column.field_type.tp in STRING_TYPES and other.collation.endswith("_bin")
    return column.field_type.tp not in _INEXACT_TYPES


_INEXACT_TYPES = frozenset({Tp.FLOAT, Tp.DOUBLE, Tp.JSON})


def _pads(column: Column, other: DownstreamColumn) -> bool:
    """Whether trailing spaces do not count (PAD SPACE): so for all but the NO PAD collations."""
    is_text = column.field_type.tp in STRING_TYPES and other.collation.endswith("_bin")
    return is_text and "nopad" not in other.collation and "_0900_" not in other.collation


def _unique_upstream(info: Table, *, by_prefix: bool = False) -> set[frozenset[str]]:
    """Column sets that are unique upstream, in lower case; `by_prefix`: by the beginnings of some
    column even."""
    handle = info.handle_column()
    sets = {frozenset({handle.name.lower()})} if handle else set()
    for index in info.indexes:
        is_prefix = any(part.length >= 0 for part in index.columns)
        is_unique = (index.is_unique or index.is_primary) and index.state == SchemaState.PUBLIC
        if is_unique and (is_prefix or not by_prefix):
            sets.add(frozenset(part.name.lower() for part in index.columns))
    return sets
