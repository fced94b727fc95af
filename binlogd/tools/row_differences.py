"""Which rows of a table differ between a snapshot and a server: some of them, by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.snapshot.spec import ColumnEntry, Manifest, TableEntry
from binlogd.tools.checksums import NULL
from binlogd.tools.row_texts import expression, kind_of, texts_of

COMPARED_ROWS_MAX = 200_000
"""Of either side; of larger tables no rows are named."""
TOLD_MAX = 10
SHOWN_CHARS = 40

_Row = tuple[str, ...]


async def differences(
    session: SqlSession,
    snapshot: Path,
    manifest: Manifest,
    table: TableEntry,
    columns: Sequence[ColumnEntry],
) -> tuple[str, ...]:
    """Sentences about some rows that differ in these columns, and how many there are in all."""
    keys = [each for each in columns if each.name in table.primary_key]
    name = sql.qualified(table.database, table.table)
    ((count,),) = await session.rows(b"SELECT COUNT(*) FROM " + name)
    if not columns or max(int(count), table.rows) > COMPARED_ROWS_MAX:
        return (f"which rows differ is told of tables with up to {COMPARED_ROWS_MAX} rows only",)
    texts = b", ".join(map(expression, columns))
    answer = await session.rows(b"SELECT " + texts + b" FROM " + name)
    theirs = [tuple(map(_str, row)) for row in answer]
    ours = texts_of(snapshot, manifest, table, columns)
    if table.primary_key and len(keys) == len(table.primary_key):
        found = _by_key(ours, theirs, columns, keys)
    else:
        found = _by_value(ours, theirs, columns)
    more = len(found) - TOLD_MAX
    return (*found[:TOLD_MAX], *([f"and {more} more"] if more > 0 else []))


def _by_key(
    ours: Iterable[_Row],
    theirs: Iterable[_Row],
    columns: Sequence[ColumnEntry],
    keys: Sequence[ColumnEntry],
) -> list[str]:
    places = [columns.index(each) for each in keys]

    def key(row: _Row) -> _Row:
        return tuple(row[place] for place in places)

    held, there = {key(row): row for row in ours}, {key(row): row for row in theirs}
    found = []
    for each in sorted(held.keys() | there.keys()):
        ours_now, theirs_now = held.get(each), there.get(each)
        if ours_now == theirs_now:
            continue
        label = _shown(keys, each)
        if ours_now is None:
            found.append(f"{label}: only the server has it")
        elif theirs_now is None:
            found.append(f"{label}: only the snapshot has it")
        else:
            found.append(f"{label}: {_changed(columns, ours_now, theirs_now)}")
    return found


def _changed(columns: Sequence[ColumnEntry], ours: _Row, theirs: _Row) -> str:
    return "; ".join(
        f"{column.name} is {_value(column, there)} there, {_value(column, here)} in the snapshot"
        for column, here, there in zip(columns, ours, theirs, strict=True)
        if here != there
    )


def _by_value(
    ours: Iterable[_Row], theirs: Iterable[_Row], columns: Sequence[ColumnEntry]
) -> list[str]:
    """Of a table without a primary key: rows that one side has more often."""
    held, there = Counter(ours), Counter(theirs)
    here_only = [f"{_shown(columns, row)}: only the snapshot has it" for row in held - there]
    there_only = [f"{_shown(columns, row)}: only the server has it" for row in there - held]
    return sorted(here_only) + sorted(there_only)


def _shown(columns: Sequence[ColumnEntry], row: _Row) -> str:
    pairs = zip(columns, row, strict=True)
    return ", ".join(f"{column.name}={_value(column, text)}" for column, text in pairs)


def _value(column: ColumnEntry, text: str) -> str:
    """What a text of `row_texts` stands for, as people read it."""
    if text == NULL:
        return "NULL"
    kind = kind_of(column)
    if kind in ("bit", "enum", "set"):
        return str(int(text, 16))
    content = bytes.fromhex(text)
    if kind in ("binary", "varbinary") or kind.endswith("blob"):
        return f"x'{_cut(content.hex())}'"
    return _cut(repr(content.decode(errors="replace")) if _is_text(kind) else content.decode())


def _is_text(kind: str) -> bool:
    return kind in ("char", "varchar") or kind.endswith("text")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _str(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
