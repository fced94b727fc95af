"""Reads a published snapshot with pyarrow, in the notation of `recordings_reader.py`."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import ColumnEntry, FileEntry, KeysEntry, Manifest, TableEntry
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column as SchemaColumn
from binlogd.tidb.row import Value
from tests.support.recordings_reader import Canonical, Column, Row, Table, canonical_value

_LABEL = re.compile(r"'((?:[^']|'')*)'")
_TEMPORAL = ("date", "datetime", "timestamp")


def tables(snapshot: Path) -> dict[str, TableEntry]:
    """The tables of a manifest, by `database.table`."""
    return {f"{each.database}.{each.table}": each for each in read_manifest(snapshot).tables}


def whole_manifest(snapshot: Path) -> Manifest:
    """The manifest of a snapshot; fails where it says of any file what is not so."""
    manifest = read_manifest(snapshot)
    assert manifest.schema is not None
    listed = {"manifest.json", manifest.schema.name}
    for table in manifest.tables:
        assert sum(file.rows for file in table.files) == table.rows
        for file in table.files:
            beside: list[FileEntry | KeysEntry] = [file.keys] if file.keys else []
            for each in [file, *beside]:
                content = (snapshot / each.name).read_bytes()
                assert hashlib.sha256(content).hexdigest() == each.sha256
                assert len(content) == each.size_bytes
                listed.add(each.name)
            ids = [
                int(field.metadata[b"PARQUET:field_id"])
                for field in pq.read_schema(snapshot / file.name)
            ]
            assert ids == [column.id for column in table.columns]
    assert {str(each.relative_to(snapshot)) for each in snapshot.rglob("*") if each.is_file()} == (
        listed
    )
    return manifest


def rows(snapshot: Path, table: TableEntry) -> Counter[Row]:
    """The rows of a table, canonical, in the manifest's order of columns."""
    readers = [_reader(column) for column in table.columns]
    found: Counter[Row] = Counter()
    for file in table.files:
        data = pq.read_table(snapshot / file.name)
        assert data.num_rows == file.rows
        assert data.column_names == [column.name for column in table.columns]
        found.update(_canonical(data, readers))
    return found


def rows_of(data: pa.Table, columns: Sequence[ColumnEntry]) -> Counter[Row]:
    """The rows of an Arrow table with these columns, canonical."""
    return Counter(_canonical(data, [_reader(column) for column in columns]))


def _canonical(data: pa.Table, readers: Sequence[Callable[[Any], Canonical]]) -> Iterator[Row]:
    columns = (column.to_pylist() for column in data.columns)
    for row in zip(*columns, strict=True):
        yield tuple(
            None if value is None else read(value) for read, value in zip(readers, row, strict=True)
        )


def expected_rows(table: Table, entry: TableEntry) -> Counter[Row]:
    """The recorded rows as a snapshot holds them: its columns, labels, possible dates, UTF-8."""
    assert table.rows is not None
    places = {column.name: place for place, column in enumerate(table.columns)}
    wanted = [(places[column.name], _as_held(column)) for column in entry.columns]
    return Counter(
        tuple(None if row[place] is None else held(row[place]) for place, held in wanted)
        for row in table.rows
    )


def as_held(column: SchemaColumn, value: Value) -> Canonical:
    """A value of the row decoder as a snapshot holds it."""
    kind = column.field_type
    if value is None:
        return None
    if kind.tp == Tp.ENUM:
        assert isinstance(value, int)
        return ["", *kind.elems][value]
    if kind.tp == Tp.SET:
        assert isinstance(value, int)
        return ",".join(label for at, label in enumerate(kind.elems) if value >> at & 1)
    if kind.tp == Tp.JSON:
        return canonical_value(Column(column.name, "json", "json"))(value)
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP):
        return _possible(str(value))
    if isinstance(value, bytes):
        return "hex:" + value.hex() if column.is_binary else value.decode()
    return value


def _as_held(column: ColumnEntry) -> Callable[[Any], Canonical]:
    if _is_date(column):
        return _possible
    kind = column.mysql_type.split("(")[0]
    labels = [label.replace("''", "'") for label in _LABEL.findall(column.mysql_type)]
    if kind == "enum":
        return ["", *labels].__getitem__
    if kind == "set":
        return lambda mask: ",".join(label for at, label in enumerate(labels) if mask >> at & 1)
    if column.spark_type == "STRING":
        return _repaired
    return lambda value: value


def _repaired(value: Canonical) -> Canonical:
    """Text, where it was no UTF-8 with U+FFFD in it."""
    text = str(value)
    is_hex = text.startswith("hex:")
    return bytes.fromhex(text[4:]).decode(errors="replace") if is_hex else text


def _is_date(column: ColumnEntry) -> bool:
    return column.mysql_type.split("(")[0] in _TEMPORAL


def _possible(value: Canonical) -> Canonical:
    """A date, or NULL for one that no calendar holds."""
    try:
        datetime.date.fromisoformat(str(value)[:10])
    except ValueError:
        return None
    return value


def _reader(column: ColumnEntry) -> Callable[[Any], Canonical]:
    kind = re.split(r"[( ]", column.mysql_type)[0]
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(column.mysql_type)
    if column.spark_type == "BINARY":
        return lambda value: "hex:" + value.hex()
    canonical = canonical_value(Column(column.name, column.mysql_type, kind))
    return lambda value: canonical(str(value))


def _fraction(mysql_type: str) -> int:
    found = re.search(r"\((\d)\)", mysql_type)
    return int(found[1]) if found else 0


def _moment(mysql_type: str) -> Callable[[Any], Canonical]:
    cut = 19 + (_fraction(mysql_type) and _fraction(mysql_type) + 1)
    return lambda value: f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")[:cut]


def _time(mysql_type: str) -> Callable[[Any], Canonical]:
    digits = _fraction(mysql_type)

    def read(value: int) -> str:
        seconds, micros = divmod(abs(value), 1_000_000)
        text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        text += f".{micros:06d}"[: digits + 1] if digits else ""
        return "-" + text if value < 0 else text

    return read


_SPECIAL: dict[str, Callable[[str], Callable[[Any], Canonical]]] = {
    "datetime": _moment,
    "timestamp": _moment,
    "time": _time,
    "enum": lambda _: str,
    "set": lambda _: str,
    "bit": lambda _: int,
    "decimal": lambda _: lambda value: value if isinstance(value, str) else f"{value:f}",
}
