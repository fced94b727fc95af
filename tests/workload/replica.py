"""A database that only follows: rows and DDL go in, contents come out, to compare with the model.

It knows the DDL statements of this workload and no others, and rows by column name. A row that
cannot be (inserted twice, changed or deleted but not there) is remembered as a problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.workload.ddl import new_columns
from tests.workload.model import Contents, TableName
from tests.workload.schema import column_sql
from tests.workload.values import Value

Row = tuple[Value, ...]

_PROBLEMS_MAX = 20
_NAME = r"`((?:[^`]|``)+)`"
_TABLE = rf"{_NAME}\.{_NAME}"
_USE = re.compile(rf"\s*use {_NAME};\s*", re.IGNORECASE)


@dataclass(slots=True)
class _Table:
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: dict[Row, Row] = field(default_factory=dict)  # by key
    copies: Counter[Row] = field(default_factory=Counter)  # of a table without key

    def key_of(self, values: Mapping[str, Value]) -> Row:
        return tuple(values[name] for name in self.key)

    def all_rows(self) -> tuple[Row, ...]:
        return tuple(self.rows.values()) if self.key else tuple(self.copies.elements())

    def reshape(self, columns: tuple[str, ...], missing: Mapping[str, Value]) -> None:
        before = self.columns

        def moved(row: Row) -> Row:
            values = {**missing, **dict(zip(before, row, strict=True))}
            return tuple(values[name] for name in columns)

        self.rows = {key: moved(row) for key, row in self.rows.items()}
        copies: Counter[Row] = Counter()
        for row, count in self.copies.items():
            copies[moved(row)] += count
        self.columns, self.copies = columns, copies


class Replica:
    """Tables by name. `problems` holds the first of what went wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._tables: dict[TableName, _Table] = {}
        self._statements: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"CREATE DATABASE .*", self._ignore),
            (rf"DROP DATABASE {_NAME}", self._drop_database),
            (rf"CREATE TABLE {_TABLE} \((.*)\)[^)]*", self._create_table),
            (rf"DROP TABLE {_TABLE}", self._drop_table),
            (rf"TRUNCATE TABLE {_TABLE}", self._truncate),
            (rf"RENAME TABLE {_TABLE} TO {_TABLE}", self._rename),
            (rf"ALTER TABLE {_TABLE} ADD COLUMN ({_NAME} .*)", self._add_column),
            (rf"ALTER TABLE {_TABLE} DROP COLUMN {_NAME}", self._drop_column),
            (rf"ALTER TABLE {_TABLE} MODIFY COLUMN .*", self._ignore),
            (rf"ALTER TABLE {_TABLE} (?:ADD|DROP) (?:INDEX|UNIQUE) .*", self._ignore),
        )

    def contents(self) -> dict[TableName, Contents]:
        """All tables as they are."""
        return {
            name: Contents(table.columns, table.all_rows()) for name, table in self._tables.items()
        }

    def insert(self, name: TableName, values: Mapping[str, Value]) -> None:
        """A new row."""
        table = self._table(name)
        row = tuple(values.get(column) for column in table.columns)
        if not table.key:
            table.copies[row] += 1
        elif table.rows.setdefault(table.key_of(values), row) is not row:
            self._problem(f"{name}: inserted twice: {table.key_of(values)}")

    def update(self, name: TableName, old: Mapping[str, Value], new: Mapping[str, Value]) -> None:
        """Other values in a row."""
        before = self._take(name, old)
        if before is not None:
            values = {**dict(zip(self._table(name).columns, before, strict=True)), **new}
            self.insert(name, values)

    def delete(self, name: TableName, values: Mapping[str, Value]) -> None:
        """A row that is gone."""
        self._take(name, values)

    def execute(self, text: str) -> None:
        """A DDL statement, behind `use` or not."""
        statement = _USE.sub("", text, count=1).rstrip("; \n")
        for pattern, method in self._statements:
            match = re.fullmatch(pattern, statement, re.IGNORECASE | re.DOTALL)
            if match:
                method(*(group.replace("``", "`") for group in match.groups()))
                return
        self._problem(f"a statement that this workload does not make: {text}")

    # --- DDL -----------------------------------------------------------------------------

    def _create_table(self, database: str, table: str, body: str) -> None:
        columns, key = [], ()
        for part in _parts(body):
            named = re.match(_NAME, part)
            primary = re.match(r"PRIMARY KEY\s*\(([^)]*)\)", part)
            if named:
                columns.append(named[1].replace("``", "`"))
            elif primary:
                key = tuple(re.findall(_NAME, primary[1]))
        self._tables[database, table] = _Table(tuple(columns), key)

    def _drop_database(self, database: str) -> None:
        self._tables = {name: each for name, each in self._tables.items() if name[0] != database}

    def _drop_table(self, database: str, table: str) -> None:
        if self._tables.pop((database, table), None) is None:
            self._problem(f"dropped, but not there: {database}.{table}")

    def _truncate(self, database: str, table: str) -> None:
        before = self._table((database, table))
        self._tables[database, table] = _Table(before.columns, before.key)

    def _rename(self, *names: str) -> None:
        self._tables[names[2], names[3]] = self._tables.pop((names[0], names[1]))

    def _add_column(self, database: str, table: str, declaration: str, column: str) -> None:
        changed = self._table((database, table))
        for new in new_columns(column):
            if column_sql(new.definition) == declaration:
                changed.reshape((*changed.columns, column), {column: new.missing})
                return
        self._problem(f"a column that this workload does not make: {declaration}")

    def _drop_column(self, database: str, table: str, column: str) -> None:
        changed = self._table((database, table))
        changed.reshape(tuple(each for each in changed.columns if each != column), {})

    def _ignore(self, *_: str) -> None:
        """No row shows it."""

    # --- rows ----------------------------------------------------------------------------

    def _table(self, name: TableName) -> _Table:
        table = self._tables.get(name)
        if table is None:
            self._problem(f"rows for a table that is not there: {name}")
            table = self._tables[name] = _Table((), ())
        return table

    def _take(self, name: TableName, values: Mapping[str, Value]) -> Row | None:
        """Removes a row and gives it back; None if it was not there."""
        table = self._table(name)
        if table.key:
            row = table.rows.pop(table.key_of(values), None)
        else:
            row = tuple(values.get(column) for column in table.columns)
            if table.copies[row] > 0:
                table.copies[row] -= 1
            else:
                row = None
        if row is None:
            self._problem(f"{name}: not there: {table.key_of(values) or values}")
        return row

    def _problem(self, text: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(text)


def _parts(body: str) -> Iterator[str]:
    """The parts of a CREATE TABLE between its outermost commas."""
    depth, begin, quote = 0, 0, ""
    for at, char in enumerate(body):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'`":
            quote = char
        elif char == "," and depth == 0:
            yield body[begin:at].strip()
            begin = at + 1
        else:
            depth += (char == "(") - (char == ")")
    yield body[begin:].strip()


def differences(
    expected: Mapping[TableName, Contents], found: Mapping[TableName, Contents]
) -> list[str]:
    """What differs, a line each; empty when every table holds the same rows.

    Only the columns that the expected contents name are compared.
    """
    lines = [f"{'.'.join(name)}: not there" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{'.'.join(name)}: not expected" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        lines += _row_differences(".".join(name), expected[name], found[name])
    return lines


def _row_differences(name: str, expected: Contents, found: Contents) -> Iterator[str]:
    lacking = set(expected.columns) - set(found.columns)
    if lacking:
        yield f"{name}: no columns {sorted(lacking)}"
        return
    places = [found.columns.index(column) for column in expected.columns]
    want = Counter(expected.rows)
    have = Counter(tuple(row[place] for place in places) for row in found.rows)
    for word, rows in (("lost", want - have), ("too many", have - want)):
        if rows:
            sample = next(iter(rows))
            yield f"{name}: {sum(rows.values())} rows {word}, for instance {sample}"
