"""Random histories of small tables: what a TiDB could write, and what the tables then hold.

A history keeps the upstream's rules (unique keys, under the collation of each column) and uses what
they allow: keys change, values swap, rows are deleted and come back, all inside transactions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from binlogd.drainer.txn import Dml, TableChange
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation

Row = tuple[Value, ...]
Fold = Callable[[Value], Value]


def exact(value: Value) -> Value:
    return value


def pad_space(value: Value) -> Value:
    return value.rstrip(b" ") if isinstance(value, bytes) else value


def case_insensitive(value: Value) -> Value:
    return value.rstrip(b" ").lower() if isinstance(value, bytes) else value


def prefix_of_three(value: Value) -> Value:
    return value[:3].rstrip(b" ") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Kind:
    """A kind of table. Columns 0 to 2; each unique key: its columns and how they are compared."""

    name: str
    create: str
    columns: tuple[FieldType, ...]
    keys: tuple[tuple[tuple[int, ...], Fold], ...]
    primary: tuple[int, ...] = ()
    prefix: int = -1
    """Characters of the primary key's column that count; -1 all."""


_INT = FieldType(Tp.LONGLONG, FLAG_NOT_NULL)
_TEXT = FieldType(Tp.VARCHAR, FLAG_NOT_NULL, charset="utf8mb4", collate="utf8mb4_bin")
_CI = FieldType(Tp.VARCHAR, FLAG_NOT_NULL, charset="utf8mb4", collate="utf8mb4_general_ci")
_NULLABLE = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
_BYTES = FieldType(Tp.VARCHAR, FLAG_NOT_NULL, charset="binary", collate="binary")
_FLOAT = FieldType(Tp.FLOAT)

KINDS = (
    Kind(
        "one_key",
        "a BIGINT PRIMARY KEY, b BIGINT NOT NULL, c VARCHAR(20)",
        (_INT, _INT, _NULLABLE),
        (((0,), exact),),
        (0,),
    ),
    Kind(
        "two_columns",
        "a BIGINT NOT NULL, b VARBINARY(20) NOT NULL, c VARCHAR(20), PRIMARY KEY (b, a)",
        (_INT, _BYTES, _NULLABLE),
        (((1, 0), exact),),
        (1, 0),
    ),
    Kind(
        "several_keys",
        "a BIGINT PRIMARY KEY, b BIGINT NOT NULL UNIQUE, c VARCHAR(20) UNIQUE",
        (_INT, _INT, _NULLABLE),
        (((0,), exact), ((1,), exact), ((2,), pad_space)),
        (0,),
    ),
    Kind(
        "padded",
        "a VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, b BIGINT NOT NULL, c VARCHAR(20)",
        (_TEXT, _INT, _NULLABLE),
        (((0,), pad_space),),
        (0,),
    ),
    Kind(
        "any_case",
        "a VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, b BIGINT NOT NULL, c VARCHAR(20)",
        (_CI, _INT, _NULLABLE),
        (((0,), case_insensitive),),
        (0,),
    ),
    Kind(
        "any_case_twice",
        "a BIGINT PRIMARY KEY, b VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL UNIQUE,"
        " c VARCHAR(20)",
        (_INT, _CI, _NULLABLE),
        (((0,), exact), ((1,), case_insensitive)),
        (0,),
    ),
    Kind(
        "beginning",
        "a VARCHAR(20) COLLATE utf8mb4_bin NOT NULL, b BIGINT NOT NULL, c VARCHAR(20),"
        " PRIMARY KEY (a(3))",
        (_TEXT, _INT, _NULLABLE),
        (((0,), prefix_of_three),),
        (0,),
        prefix=3,
    ),
    Kind("no_key", "a FLOAT, b BIGINT NOT NULL, c VARCHAR(20)", (_FLOAT, _INT, _NULLABLE), ()),
    Kind(
        "null_key",
        "a BIGINT NOT NULL, b BIGINT NOT NULL, c VARCHAR(20) UNIQUE",
        (_INT, _INT, _NULLABLE),
        (((2,), pad_space),),
    ),
)

WORDS = (b"a", b"A", b"a ", b"b", b"B ", b"ab", b"abc", b"abcd", b"abcde", b"it's", b"\\", b"")


class Upstream:
    """The tables of one history, and the transactions that made them."""

    def __init__(self, rng: Random, kinds: Sequence[Kind] = KINDS) -> None:
        self._rng = rng
        self._tables = [_Table(100 + n, kind) for n, kind in enumerate(kinds)]
        self._ts = 1000

    def create(self) -> list[str]:
        """The statements that make the tables downstream."""
        return [
            "CREATE DATABASE h",
            *(f"CREATE TABLE h.{each.kind.name} ({each.kind.create})" for each in self._tables),
        ]

    def transaction(self) -> Dml:
        """The next one: one to three tables, up to eight changes each."""
        self._ts += self._rng.randrange(1, 5)
        chosen = self._rng.sample(
            self._tables, self._rng.randrange(1, min(4, len(self._tables) + 1))
        )
        changes = []
        for table in chosen:
            for _ in range(self._rng.randrange(1, 9)):
                table.change(self._rng)
            mutation = table.taken()
            if mutation.sequence:
                changes.append(TableChange(table.at, mutation))
        return Dml(Tso(self._ts - 1), Tso(self._ts), 1, tuple(changes))

    def transactions(self, count: int) -> list[Dml]:
        """So many, without those that came out empty."""
        return [dml for dml in (self.transaction() for _ in range(count)) if dml.changes]

    def contents(self) -> dict[str, Counter[Row]]:
        """What each table holds now."""
        return {table.kind.name: Counter(table.rows.values()) for table in self._tables}


@dataclass
class _Table:
    table_id: int
    kind: Kind
    rows: dict[int, Row] = field(default_factory=dict)
    """By hidden row id."""

    def __post_init__(self) -> None:
        kind = self.kind
        columns = tuple(
            Column(
                n + 1,
                "abc"[n],
                n,
                FieldType(
                    each.tp,
                    each.flag | (FLAG_PRIMARY_KEY if n in kind.primary else 0),
                    charset=each.charset,
                    collate=each.collate,
                ),
            )
            for n, each in enumerate(kind.columns)
        )
        indexes = tuple(
            Index(
                n + 1,
                "PRIMARY" if key == kind.primary else f"u{n}",
                tuple(IndexColumn("abc"[c], c, kind.prefix) for c in key),
                is_unique=True,
                is_primary=key == kind.primary,
            )
            for n, (key, _) in enumerate(kind.keys)
        )
        info = Table(self.table_id, kind.name, columns, indexes=indexes)
        self.at = TableAt("h", info, 1, None, {}, may_lack_columns=False)
        self._mutation = Mutation(self.table_id, [], [], [], b"")
        self._next = 1

    def taken(self) -> Mutation:
        mutation, self._mutation = self._mutation, Mutation(self.table_id, [], [], [], b"")
        return mutation

    def change(self, rng: Random) -> None:
        """One statement's worth, if the keys allow it."""
        choice = rng.random()
        if choice < 0.35 or not self.rows:
            self._insert(rng)
        elif choice < 0.5:
            self._delete(rng.choice(sorted(self.rows)))
        elif choice < 0.62 and len(self.rows) > 1:
            self._swap(rng)
        elif choice < 0.7:
            self._replace(rng)
        else:
            handle = rng.choice(sorted(self.rows))
            self._update(handle, self._altered(self.rows[handle], rng))

    def _drawn(self, rng: Random) -> Row:
        return tuple(_value(each, rng) for each in self.kind.columns)

    def _altered(self, row: Row, rng: Random) -> Row:
        at = rng.randrange(3)
        return (*row[:at], _value(self.kind.columns[at], rng), *row[at + 1 :])

    def _fits(self, row: Row, but: int = 0) -> bool:
        """Whether the unique keys let this row in, beside all others than row id `but`."""
        for columns, fold in self.kind.keys:
            key = [fold(row[c]) for c in columns]
            if None not in key and any(
                [fold(other[c]) for c in columns] == key
                for handle, other in self.rows.items()
                if handle != but
            ):
                return False
        return True

    def _write(self, kind: int, **lists: list[bytes]) -> None:
        m = self._mutation
        self._mutation = Mutation(
            m.table_id,
            [*m.inserted, *lists.get("inserted", [])],
            [*m.updated, *lists.get("updated", [])],
            [*m.deleted, *lists.get("deleted", [])],
            m.sequence + bytes([kind]),
        )

    def _values(self, row: Row) -> dict[int, Value]:
        return {n + 1: value for n, value in enumerate(row)}

    def _insert(self, rng: Random) -> None:
        row = self._drawn(rng)
        if self._fits(row):
            self.rows[self._next] = row
            encoded = encode_insert(self.at.info, self._values(row), handle=self._next)
            self._write(0, inserted=[encoded])
            self._next += 1

    def _delete(self, handle: int) -> None:
        row = self.rows.pop(handle)
        encoded = encode_delete(self.at.info, self._values(row), handle=handle)
        self._write(4, deleted=[encoded])

    def _update(self, handle: int, row: Row) -> bool:
        old = self.rows[handle]
        if row == old or not self._fits(row, but=handle):
            return False
        self.rows[handle] = row
        encoded = encode_update(self.at.info, self._values(old), self._values(row), handle=handle)
        self._write(1, updated=[encoded])
        return True

    def _replace(self, rng: Random) -> None:
        """REPLACE: whatever stands in the way goes first."""
        row = self._drawn(rng)
        for handle in sorted(self.rows):
            if not self._fits(row):
                kept = dict(self.rows)
                self.rows = {handle: kept[handle]}
                is_in_the_way = not self._fits(row)
                self.rows = kept
                if is_in_the_way:
                    self._delete(handle)
        self.rows[self._next] = row
        encoded = encode_insert(self.at.info, self._values(row), handle=self._next)
        self._write(0, inserted=[encoded])
        self._next += 1

    def _swap(self, rng: Random) -> None:
        """Two rows exchange a column, over a third value that nobody has."""
        one, other = rng.sample(sorted(self.rows), 2)
        at = rng.randrange(3)
        first, second = self.rows[one], self.rows[other]
        if first[at] == second[at]:
            return
        spare: Value = b"~%d" % self._next if isinstance(first[at], bytes) else 10**6 + self._next
        if first[at] is None or second[at] is None or isinstance(first[at], float):
            return
        self._next += 1
        if not self._update(one, (*first[:at], spare, *first[at + 1 :])):
            return
        if self._update(other, (*second[:at], first[at], *second[at + 1 :])):
            self._update(one, (*first[:at], second[at], *first[at + 1 :]))


def _value(kind: FieldType, rng: Random) -> Value:
    if not kind.flag & FLAG_NOT_NULL and rng.random() < 0.25:
        return None
    if kind.tp == Tp.FLOAT:
        return rng.choice([0.0, 0.10000000149011612, 1.5, -2.25, 3.140000104904175])
    if kind.tp == Tp.LONGLONG:
        return rng.randrange(-5, 20)
    return rng.choice(WORDS)
