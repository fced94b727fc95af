"""Transactions as people and programs read them: lines of text, and lines of JSON.

Both are written row by row. A line of JSON stands for itself: it tells the commit_ts of its
transaction, so that lines can be filtered one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from rich.color import ColorSystem
from rich.style import Style

from binlogd.drainer.messages.named import NamedColumn, NamedRow, RowKind
from binlogd.settings.quantities import wall_clock
from binlogd.tidb.columns import Value
from binlogd.tools.transaction import Transaction

VALUE_CHARS_MAX = 200
KINDS = {RowKind.INSERT: "insert", RowKind.UPDATE: "update", RowKind.DELETE: "delete"}
_BINARY = ("blob", "binary", "bit", "geometry")

Write = Callable[[str], object]


def is_binary(mysql_type: str) -> bool:
    """Whether a type holds bytes and no text."""
    return any(word in mysql_type for word in _BINARY)


# --- for people ----------------------------------------------------------------------------


def _painter(style: str) -> Callable[[str], str]:
    before, _, after = (
        Style.parse(style).render("|", color_system=ColorSystem.STANDARD).partition("|")
    )
    return lambda text: f"{before}{text}{after}"


def _plain(text: str) -> str:
    return text


class TextWriter:
    """Lines for people; `value_chars_max` None shows values whole."""

    def __init__(
        self, write: Write, *, is_coloured: bool, value_chars_max: int | None = VALUE_CHARS_MAX
    ) -> None:
        self._write, self._value_chars_max = write, value_chars_max
        painter: Callable[[str], Callable[[str], str]] = (
            _painter if is_coloured else lambda _style: _plain
        )
        self._dim, self._head, self._warn = painter("dim"), painter("bold"), painter("bold red")
        self._ddl, self._name = painter("magenta"), painter("cyan")
        self._of_kind = {
            RowKind.INSERT: painter("green")("+"),
            RowKind.UPDATE: painter("yellow")("~"),
            RowKind.DELETE: painter("red")("-"),
        }

    def transaction(self, found: Transaction, rows: Iterator[NamedRow] | None) -> None:
        """The head, then its DDL or rows; without rows (None) the head alone."""
        start = f" start_ts {found.start_ts}" if found.start_ts else ""
        place = f"{found.place.path}:{found.place.offset} ({found.size_bytes} bytes)"
        self._write(
            f"{self._head(f'commit_ts {found.commit_ts}')}{start}"
            f" {wall_clock(found.commit_ts)} {self._dim(place)}\n"
        )
        if found.note:
            self._write(f"  {self._warn(found.note)}\n")
        if found.ddl is not None:
            use = f"use {printable(found.ddl.database)}; " if found.ddl.database else ""
            self._write(f"  {self._dim(use)}{self._ddl(printable(found.ddl.text))}\n")
        for row in rows or ():
            self._row(row)

    def failure(self, _found: Transaction, reason: str) -> None:
        """The rows of the transaction shown last end here."""
        self._write(f"  {self._warn(f'the rows from here on do not decode: {reason}')}\n")

    def _row(self, row: NamedRow) -> None:
        name = self._name(printable(f"{row.database}.{row.table}"))
        cells = " ".join(self._cell(row.kind, column) for column in row.columns)
        self._write(f"  {self._of_kind[row.kind]} {name} {cells}\n")

    def _cell(self, kind: RowKind, column: NamedColumn) -> str:
        name = printable(column.name)
        if kind is RowKind.UPDATE and column.old != column.new:
            old, new = (self._value(each, column.mysql_type) for each in (column.old, column.new))
            return f"{name}={old}→{new}"
        value = column.old if kind is not RowKind.INSERT else column.new
        return f"{name}={self._value(value, column.mysql_type)}"

    def _value(self, value: Value, mysql_type: str) -> str:
        text, limit = value_text(value, mysql_type), self._value_chars_max
        return text if limit is None else cut(text, limit)


def value_text(value: Value, mysql_type: str) -> str:
    """A value as it would stand in a statement, control characters escaped."""
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes):
        text = None if is_binary(mysql_type) else decoded(value)
        if text is None:
            return f"x'{value.hex()}'"
        value = text
    if mysql_type == "decimal":
        return value
    return "'" + printable(value).replace("'", "''") + "'"


def printable(text: str) -> str:
    """On one line, with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "replace").decode()
        for each in text
    )


def readable(text: str) -> str:
    """In UTF-8; what came as other bytes is U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def cut(text: str, chars_max: int) -> str:
    """Its beginning, where it is longer, and how long it is."""
    return text if len(text) <= chars_max else f"{text[:chars_max]}… ({len(text)} characters)"


# --- for programs --------------------------------------------------------------------------


class JsonWriter:
    """A line of JSON per row, per DDL, and per transaction whose rows nobody can tell."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def transaction(self, found: Transaction, rows: Iterator[NamedRow] | None) -> None:
        """One line or more; without rows (None) one line that says "transaction"."""
        head: dict[str, Any] = {
            "commit_ts": found.commit_ts,
            "time": wall_clock(found.commit_ts),
            "path": str(found.place.path),
            "offset": found.place.offset,
        }
        if found.start_ts:
            head["start_ts"] = found.start_ts
        if found.note:
            head["note"] = found.note
        if found.ddl is not None:
            sql = readable(found.ddl.text)
            self._line(head | {"kind": "ddl", "database": found.ddl.database, "sql": sql})
            return
        is_empty = True
        for row in rows or ():
            is_empty = False
            self._line(head | _row_document(row))
        if is_empty:
            self._line(head | {"kind": "transaction", "size_bytes": found.size_bytes})

    def failure(self, found: Transaction, reason: str) -> None:
        """The rows of the transaction shown last end here."""
        self._line({"commit_ts": found.commit_ts, "kind": "unreadable", "reason": reason})

    def _line(self, document: dict[str, Any]) -> None:
        self._write(msgspec.json.encode(document).decode() + "\n")


def _row_document(row: NamedRow) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": KINDS[row.kind],
        "database": row.database,
        "table": row.table,
    }
    if row.kind is not RowKind.INSERT:
        document["old"] = {each.name: json_value(each.old, each.mysql_type) for each in row.columns}
    if row.kind is not RowKind.DELETE:
        document["new"] = {each.name: json_value(each.new, each.mysql_type) for each in row.columns}
    return document


def json_value(value: Value, mysql_type: str) -> Any:
    """Numbers and text as they are; bytes, and text that is no UTF-8, as {"hex": ...}."""
    if not isinstance(value, bytes):
        return value
    text = None if is_binary(mysql_type) else decoded(value)
    return {"hex": value.hex()} if text is None else text


def decoded(raw: bytes) -> str | None:
    """Bytes that are text in UTF-8; None for others."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
