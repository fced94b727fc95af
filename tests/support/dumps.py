"""Writes a table as Dumpling does: SQL or CSV, without asking anything for options."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tso import Tso

_QUOTED = (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION, Tp.YEAR, Tp.JSON, Tp.ENUM, Tp.SET)


def write_metadata(directory: Path, commit_ts: Tso) -> None:
    """A finished dump of a moment."""
    directory.mkdir(exist_ok=True)
    (directory / "metadata").write_text(
        f"Started dump at: 2024-01-01 00:00:00\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n"
        f"\tPos: {commit_ts}\n\tGTID:\n\nFinished dump at: 2024-01-01 00:00:01\n"
    )


def write_table(
    directory: Path,
    name: tuple[str, str],
    columns: Sequence[Column],
    rows: Sequence[Sequence[Value]],
    *,
    kind: str = "sql",
    is_packed: bool = False,
) -> None:
    """The files of one table, in two pieces where it has two rows."""
    stem = ".".join(name)
    (directory / f"{stem}-schema.sql").write_text("/*!40101 SET NAMES binary*/;\nCREATE TABLE ...")
    half = (len(rows) + 1) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        if part:
            content = _sql(name[1], columns, part) if kind == "sql" else _csv(columns, part)
            file = f"{stem}.{number:09d}.{kind}"
            if is_packed:
                (directory / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (directory / file).write_bytes(content)


def _sql(table: str, columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> bytes:
    texts = [
        b"(" + b",".join(_sql_value(*each) for each in zip(columns, row, strict=True)) + b")"
        for row in rows
    ]
    statements = [texts[at : at + 7] for at in range(0, len(texts), 7)]
    head = b"/*!40101 SET NAMES binary*/;\n"
    return head + b"".join(
        f"INSERT INTO `{table}` VALUES\n".encode() + b",\n".join(each) + b";\n"
        for each in statements
    )


def _sql_value(column: Column, value: Value) -> bytes:
    if value is None:
        return b"NULL"
    tp = column.field_type.tp
    raw = _raw(column, value)
    if tp == Tp.BIT or column.is_binary:
        return b"x'" + raw.hex().encode() + b"'"
    if tp in STRING_TYPES or tp in _QUOTED:
        return b"'" + _escaped(raw, b"'") + b"'"
    return raw


def _csv(columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> bytes:
    lines = [b",".join(b'"' + column.name.encode() + b'"' for column in columns)]
    for row in rows:
        fields = []
        for column, value in zip(columns, row, strict=True):
            tp = column.field_type.tp
            is_quoted = tp == Tp.BIT or tp in STRING_TYPES or tp in _QUOTED
            raw = b"\\N" if value is None else _raw(column, value)
            if value is not None and is_quoted:
                raw = b'"' + _escaped(raw, b'"') + b'"'
            fields.append(raw)
        lines.append(b",".join(fields))
    return b"".join(line + b"\r\n" for line in lines)


def _raw(column: Column, value: Value) -> bytes:
    kind = column.field_type
    if isinstance(value, bytes):
        return value
    if kind.tp == Tp.BIT:
        assert isinstance(value, int)
        return value.to_bytes((kind.flen + 7) // 8, "big")
    if kind.tp == Tp.ENUM:
        assert isinstance(value, int)
        return ["", *kind.elems][value].encode()
    if kind.tp == Tp.SET:
        assert isinstance(value, int)
        labels = (label for at, label in enumerate(kind.elems) if value >> at & 1)
        return ",".join(labels).encode()
    return str(value).encode()


def _escaped(raw: bytes, quote: bytes) -> bytes:
    raw = raw.replace(b"\\", b"\\\\").replace(quote, b"\\" + quote).replace(b"\0", b"\\0")
    return raw.replace(b"\n", b"\\n").replace(b"\r", b"\\r")
