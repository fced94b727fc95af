"""The row that an UPDATE or a DELETE did not find: looked for once more, by what it holds.

A row of a table without a key is found by all its values, and a server may not find a value that it
holds itself by its literal: a FLOAT near zero, a SET with its 64th member, a JSON document that is
printed in another way. So the columns that every server compares exactly choose the rows that can
be meant; of these the server prints the other columns, which are compared as values; and the one
that is equal is named by what the server printed of it.

Rows of a table with a key are changed many at a time, and what the server says it affected is
compared with what it must have affected. Which of them is missing is asked here, by its key.

Source: tidb-binlog pkg/loader/model.go, which finds rows by all values and says nothing otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.rows.parts import Part, RunKind, Statement, changes_in
from binlogd.drainer.rows.shape import Mode
from binlogd.drainer.rows.target import Reader, RowStatement, Target, key_text
from binlogd.errors import RowNotFound
from binlogd.tidb.columns import Value, single
from binlogd.tidb.kinds import DELETE, INSERT, UPDATE, Tp
from binlogd.tidb.model import Column
from binlogd.tso import Tso
from binlogd.wire.in_order import rows_of

CANDIDATES_MAX = 10_000
"""Rows that are looked at for one that is missing."""
PROBES_TOGETHER = 50
"""Keys that are asked for at once."""
_VALUES_SHOWN_MAX = 1000
_DIGITS_OF_64_BITS = 20
_PROBES = {
    Tp.FLOAT: b"%b + 0e0",
    Tp.DOUBLE: b"%b + 0e0",
    Tp.ENUM: b"%b + 0",
    Tp.SET: b"%b | 0",
    Tp.JSON: b"%b",
}
"""What a server prints exactly of the columns that it may compare inexactly."""


class Sought(NamedTuple):
    """A row as a transaction changes it."""

    commit_ts: Tso
    reader: Reader
    kind: int
    row: bytes

    @property
    def change(self) -> RowStatement:
        """What its statement is made of."""
        return self.reader.change(self.kind, self.row)

    def instead(self) -> Statement:
        """Of an update: what makes the downstream hold the row that the upstream holds now."""
        target = self.reader.target
        row = self.reader.decoded.update(self.row)[2]
        head, tail = target.write_head, target.write_tail
        return Statement(head + row + tail, target, RunKind.WRITE, head, (row,), tail)

    def error(self) -> RowNotFound:
        """For the operator."""
        shape = self.reader.target.shape
        key = [each.column for each in shape.key] if shape.tells_missing else None
        column_of = {column.id: column for column in key or shape.columns}
        held = self.change.values
        shown = ", ".join(
            f"{column.name} = {sql.renderer(column)(held[each]).decode('utf-8', 'replace')}"
            for each, column in column_of.items()
            if each in held
        )
        if len(shown) > _VALUES_SHOWN_MAX:
            shown = shown[:_VALUES_SHOWN_MAX] + "..."
        verb = "updates" if self.kind == UPDATE else "deletes"
        return RowNotFound(self.reader.target.label, self.commit_ts, verb, shown)


def sought_by(statement: Statement, part: Part) -> Sought | None:
    """The row that a statement of a part is about, the last one that is changed by these words."""
    for commit_ts, reader, rows in changes_in(reversed(part.txns), statement.target):
        for kind, row in rows_of(rows):
            if kind != INSERT and reader.statement(kind, row) == statement.text:
                return Sought(commit_ts, reader, kind, row)
    return None


class KeyedChanges(NamedTuple):
    """What a part does to the rows of a table with a key."""

    key_of: dict[bytes, bytes]
    """By the literal of a row that is written: that of its key."""
    first: dict[bytes, Sought | None]
    """By key: its first change; None where that makes the row."""

    def was(self, key: bytes) -> bytes | None:
        """The literal of the row as it was before, as far as that is known."""
        sought = self.first.get(key)
        if sought is None:
            return None
        values, columns = sought.change.values, sought.reader.target.shape.columns
        if any(column.id not in values for column in columns):
            return None
        literals = [sql.renderer(column)(values[column.id]) for column in columns]
        return b"(" + b",".join(literals) + b")"


def keyed_changes(target: Target, part: Part) -> KeyedChanges:
    """All of them, read once more."""
    key_of: dict[bytes, bytes] = {}
    first: dict[bytes, Sought | None] = {}
    for commit_ts, reader, rows in changes_in(part.txns, target):
        decode = reader.decoded
        for kind, data in rows_of(rows):
            sought = Sought(commit_ts, reader, kind, data)
            if kind == DELETE:
                first.setdefault(key_text(decode.delete(data)), sought)
                continue
            if kind == UPDATE:
                before, after, row = decode.update(data)
                first.setdefault(key_text(before), sought)
            else:
                after, row = decode.insert(data)
            key_of[row] = key_text(after)
            first.setdefault(key_text(after), None)
    return KeyedChanges(key_of, first)


def alike(statement: Statement, part: Part) -> int:
    """How many rows a REPLACE leaves as they were before the part, by the log's words."""
    if statement.target.mode is not Mode.MERGED:
        return 0
    changes = keyed_changes(statement.target, part)
    pairs = zip(statement.items, statement.finds, strict=True)
    return sum(changes.was(changes.key_of[item]) == item for item, must_be in pairs if must_be)


async def present(session: SqlSession, target: Target, keys: Sequence[bytes]) -> list[bool]:
    """Of each key whether there is a row. Raises as `SqlSession.rows`."""
    found: list[bool] = []
    for at in range(0, len(keys), PROBES_TOGETHER):
        probes = b",".join(target.presence(key) for key in keys[at : at + PROBES_TOGETHER])
        (row,) = await session.rows(b"SELECT " + probes)
        found += [bool(int(each)) for each in row]
    return found


async def found(session: SqlSession, sought: Sought) -> bool:
    """Looks for the row, and changes it if it is there. Raises as `SqlSession.run`."""
    change, reader = sought.change, sought.reader
    inexact = {
        column: _PROBES[Tp(column.field_type.tp)] % sql.ident(column.name)
        for column in change.found_by
        if column.field_type.tp in _PROBES and change.values[column.id] is not None
    }
    if not inexact:
        return False
    exact = [
        reader.equals(column, change.values[column.id], is_key=change.is_by_key)
        for column in change.found_by
        if column not in inexact
    ]
    printed = b",".join(b"CONCAT(" + probe + b")" for probe in inexact.values())
    rows = await session.rows(
        b"SELECT %b FROM %b WHERE %b LIMIT %d FOR UPDATE"
        % (printed, reader.target.name, b" AND ".join(exact or [b"TRUE"]), CANDIDATES_MAX)
    )
    for row in rows:
        texts = [_text(each) for each in row]
        pairs = zip(inexact, texts, strict=True)
        if all(_is_equal(column, change.values[column.id], text) for column, text in pairs):
            named = [
                b"CAST(CONCAT(" + probe + b") AS BINARY) = _binary" + sql.text(text or "")
                for probe, text in zip(inexact.values(), texts, strict=True)
            ]
            where = b" WHERE " + b" AND ".join(exact + named) + b" LIMIT 1"
            return (await session.run(change.head + where)).affected > 0
    return False


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return None if value is None else str(value)


def _is_equal(column: Column, value: Value, printed: str | None) -> bool:
    """Whether what the server printed means the value."""
    if printed is None:
        return False
    tp = column.field_type.tp
    try:
        if tp == Tp.JSON:
            return _document(str(value)) == _document(printed)
        if tp in (Tp.ENUM, Tp.SET):
            return value == int(printed)
        there, here = float(printed), float(value or 0)
        return there == here or (tp == Tp.FLOAT and single(there) == single(here))
    except (ValueError, OverflowError):
        return False


def _document(text: str) -> object:
    """Numbers beyond 64 bits are doubles, as servers have them."""
    return json.loads(text, parse_int=_number)


def _number(digits: str) -> float:
    return int(digits) if len(digits) <= _DIGITS_OF_64_BITS else float(digits)
