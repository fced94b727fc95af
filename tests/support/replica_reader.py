"""A SQLite replica beside a recording: the same canonical values, labels for ENUM and SET."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from binlogd.drainer.sqlite.replica import stored_columns
from binlogd.tidb import model
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import table_from_json
from tests.support.recordings_reader import (
    Canonical,
    Column,
    Difference,
    Table,
    canonical_value,
    compare_rows,
    expected,
    skipping,
)
from tests.support.tried import tried


def replica_differences(directory: Path, path: Path, skip: Sequence[str]) -> list[str]:
    """How a replica differs from a recording; empty when its tables hold the same."""
    is_skipped = skipping(skip)
    found: list[str] = []
    tried("SQLite", sqlite3.sqlite_version)
    with closing(sqlite3.connect(path)) as replica:
        stored = replica.execute("SELECT name, info FROM _binlogd_tables").fetchall()
        infos = {name.lower(): (name, table_from_json(info)) for name, info in stored}
        for table in expected(directory):
            held = infos.pop(table.label.lower(), None)
            if table.kind != "table" or is_skipped(table.label):
                continue
            if held is None:
                found.append(f"{table.label} is missing")
                continue
            found += map(str, _compared(table, replica, *held))
        found += [f"{label} is not upstream" for label in infos if not is_skipped(label)]
    return found


def replica_rows(path: Path, table: str, column: str) -> list[object]:
    """The values of a column, sorted."""
    tried("SQLite", sqlite3.sqlite_version)
    with closing(sqlite3.connect(path)) as replica:
        rows = replica.execute(f'SELECT "{column}" FROM "{table}" ORDER BY 1').fetchall()
    return [value for (value,) in rows]


def _compared(
    table: Table, replica: sqlite3.Connection, name: str, info: model.Table
) -> list[Difference]:
    virtual = {column.name.lower() for column in info.columns if column.is_virtual}
    kept = [n for n, each in enumerate(table.columns) if each.name.lower() not in virtual]
    assert table.rows is not None or len(kept) == len(table.columns)
    wanted = replace(
        table,
        columns=tuple(table.columns[n] for n in kept),
        rows=table.rows and tuple(tuple(row[n] for n in kept) for row in table.rows),
    )
    columns = {each.name.lower(): each for each in stored_columns(info)}
    if wanted.rows is not None:
        kinds = [columns[each.name.lower()] for each in wanted.columns]
        wanted = replace(
            wanted,
            rows=tuple(tuple(map(_labelled, row, kinds)) for row in wanted.rows),
        )
    readers = [_reader(each, columns[each.name.lower()]) for each in wanted.columns]
    names = ", ".join(f'"{each.name}"' for each in wanted.columns)
    rows = replica.execute(f'SELECT {names} FROM "{name}"')
    return compare_rows(
        wanted,
        Counter(tuple(read(v) for read, v in zip(readers, row, strict=True)) for row in rows),
    )


def _reader(of: Column, column: model.Column) -> Callable[[object], Canonical]:
    canonical = canonical_value(of)
    tp = column.field_type.tp

    def read(value: object) -> Canonical:
        if value is None or tp in (Tp.ENUM, Tp.SET):
            return value  # type: ignore[return-value]  # the label
        if tp == Tp.BIT:
            return int(str(value))
        return canonical({"hex": value.hex()} if isinstance(value, bytes) else value)

    return read


def _labelled(value: Canonical, column: model.Column) -> Canonical:
    """The recorded number of an ENUM or SET as its label: `` for 0, and for a member ``."""
    kind = column.field_type
    if kind.tp == Tp.ENUM and isinstance(value, int):
        return kind.elems[value - 1] if value else ""
    if kind.tp == Tp.SET and isinstance(value, int):
        return ",".join(label for bit, label in enumerate(kind.elems) if value >> bit & 1)
    return value
