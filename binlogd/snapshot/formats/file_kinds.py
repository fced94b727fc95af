"""The file formats of a snapshot: how each keeps a column, how rows are written, how they are read.

| format | |
|---|---|
| `parquet` | zstd; types as they are. `delta` and `iceberg` keep the same files |
| `orc` | zstd; DATE and DATETIME as text: ORC readers disagree on the calendar before 1582, on \
fractions of seconds before 1970, and on what a wall clock is |
| `csv` | header, `,`, text in `"` (doubled inside), NULL as `\\N`; BINARY in base64, TIME as text |
| `json` | an object per line, NULLs named; BINARY in base64, TIME as text |
| `sql` | INSERT statements, in the layout of Dumpling only |

In the layout of Dumpling the readers are TiDB Lightning, MyLoader and MySQL: TIME is text in
Parquet too, TIMESTAMP is UTC without a `Z`, and CSV has bytes as they are and backslash escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from binlogd.snapshot.formats.columns import spark_type
from binlogd.snapshot.formats.texts import NULL, joined_bytes, lines, replaced, text_of, time_text
from binlogd.snapshot.spec import FORMATS, PARQUET_KINDS, Layout

_SUFFIXES = {"orc": "zstd.orc", "csv": "csv", "json": "json", "sql": "sql"}
_PARQUET_SUFFIX = "zstd.parquet"
STATEMENT_BYTES = 1_000_000
"""Of an INSERT, as Dumpling's --statement-size."""
ROW_GROUP_ROWS = 131_072
SLICE_ROWS = 4_096
"""Rows that become text at a time."""
Encoding = Literal["", "base64", "time"]


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """How a file keeps a column.

    `type` is what a reader of the file has to ask for. `encoding` says what its text stands for:
    bytes in base64, or a TIME.
    """

    type: pa.DataType
    encoding: Encoding = ""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A format together with a layout."""

    format: str = "parquet"
    layout: Layout = "plain"

    @property
    def is_parquet(self) -> bool:
        """Its data files are Parquet."""
        return self.format in PARQUET_KINDS

    @property
    def is_base(self) -> bool:
        """Another snapshot can be built on its files."""
        return self.is_parquet and self.layout == "plain"

    @property
    def suffix(self) -> str:
        """What names of data files end with."""
        if self.layout == "dumpling":
            return self.format
        return _SUFFIXES.get(self.format, _PARQUET_SUFFIX)

    def kept(self, type_: pa.DataType, mysql_type: str) -> ColumnForm:
        """How it keeps a column of this Arrow type."""
        is_time = mysql_type.split("(")[0] == "time" and type_ in (pa.int64(), pa.duration("us"))
        if is_time and (self.layout == "dumpling" or self.format in ("csv", "json")):
            return ColumnForm(pa.string(), "time")
        if self.format == "orc" and type_ in (pa.date32(), pa.timestamp("us"), pa.time64("us")):
            return ColumnForm(pa.string())
        if self.format == "orc" and type_ == pa.duration("us"):
            return ColumnForm(pa.int64())
        if self.format in ("csv", "json") and type_ == pa.binary() and self.layout == "plain":
            return ColumnForm(pa.string(), "base64")
        if self.format == "csv" and pa.types.is_list(type_):
            return ColumnForm(pa.string())
        return ColumnForm(type_)


PLAIN_PARQUET = FileKind()


def create(
    path: Path, kind: FileKind, schema: pa.Schema, mysql_types: Sequence[str], table: str
) -> RowsFile:
    """A new data file for rows of a schema; `table` is what SQL statements name.

    `write` takes rows of the table's own types; `close` ends the file, which is not synced then.
    """
    if kind.format not in FORMATS:
        raise ValueError(f"no format {kind.format}")
    kept = [kind.kept(field.type, mysql) for field, mysql in zip(schema, mysql_types, strict=True)]
    if kind.is_parquet or kind.format == "orc":
        return _ColumnarFile(path, kind, schema, kept)
    return _TextFile(path, kind, schema, kept, mysql_types, table)


# --- columnar --------------------------------------------------------------------------------


class _ColumnarFile:
    """Parquet and ORC."""

    def __init__(
        self, path: Path, kind: FileKind, schema: pa.Schema, kept: Sequence[ColumnForm]
    ) -> None:
        self._kept = kept
        fields = [field.with_type(each.type) for field, each in zip(schema, kept, strict=True)]
        self._schema = for_spark(pa.schema(fields))
        self._file = (
            orc.ORCWriter(path, compression="zstd")
            if kind.format == "orc"
            else pq.ParquetWriter(path, self._schema, compression="zstd", coerce_timestamps="us")
        )

    def write(self, rows: pa.Table) -> None:
        """Rows in the types of their columns, as the file keeps these; as row groups of Parquet."""
        columns = [
            _as_kept(column, kept) for column, kept in zip(rows.columns, self._kept, strict=True)
        ]
        kept = pa.Table.from_arrays(columns, schema=self._schema)
        if isinstance(self._file, pq.ParquetWriter):
            self._file.write_table(kept, row_group_size=ROW_GROUP_ROWS)
        else:
            self._file.write(kept)

    def close(self) -> None:
        self._file.close()


def for_spark(schema: pa.Schema) -> pa.Schema:
    """With what Spark needs to know types by itself that Parquet has no name for, where any is."""
    if not any(pa.types.is_duration(each) or pa.types.is_struct(each) for each in schema.types):
        return schema
    fields = [
        {"name": each.name, "type": _spark_json(each.type), "nullable": True, "metadata": {}}
        for each in schema
    ]
    spark_schema = msgspec.json.encode({"type": "struct", "fields": fields})
    return schema.with_metadata({_SPARK_SCHEMA: spark_schema})


_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
_SPARK_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


def _spark_json(type_: pa.DataType) -> object:
    """A type as Spark's JSON has it. Source: apache/spark sql/api DataType.scala (fromJson)."""
    if pa.types.is_list(type_):
        element = _spark_json(type_.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    name = spark_type(type_).lower()
    return _SPARK_NAMES.get(name, name)


def _as_kept(column: pa.ChunkedArray, kept: ColumnForm) -> pa.ChunkedArray:
    if column.type == kept.type:
        return column
    if kept.type == pa.int64():
        return column.cast(kept.type)
    to_text = time_text if kept.encoding == "time" else text_of
    return pa.chunked_array([to_text(chunk) for chunk in column.chunks], pa.string())


# --- text --------------------------------------------------------------------------------------


class _TextFile:
    """CSV, JSON and SQL: rows become lines in small pieces."""

    def __init__(
        self,
        path: Path,
        kind: FileKind,
        schema: pa.Schema,
        kept: Sequence[ColumnForm],
        mysql_types: Sequence[str],
        table: str,
    ) -> None:
        self._file: BinaryIO = path.open("wb")
        self._kept = kept
        is_loaded = kind.layout == "dumpling" and kind.format == "csv"
        self._special = [_loaded(mysql) if is_loaded else None for mysql in mysql_types]
        self._render = _renderer(kind, schema, table)
        if kind.format == "csv":
            names = [name.replace('"', '""') for name in schema.names]
            self._file.write((",".join(f'"{name}"' for name in names) + "\n").encode())
        elif kind.format == "sql":
            self._file.write(_ROWS_HEAD)

    def write(self, rows: pa.Table) -> None:
        """Rows as text, a slice of them in memory at a time."""
        for batch in rows.to_batches(max_chunksize=SLICE_ROWS):
            columns = [
                time_text(column) if kept.encoding == "time" else column
                for column, kept in zip(batch.columns, self._kept, strict=True)
            ]
            for place, special in enumerate(self._special):
                if special is not None:
                    columns[place] = special(columns[place])
            self._file.write(self._render(columns))

    def close(self) -> None:
        self._file.close()


RowsFile = _ColumnarFile | _TextFile
"""A data file that is being written."""


def _loaded(mysql_type: str) -> Callable[[pa.Array], pa.Array] | None:
    """What LOAD DATA, and whoever does as it does, would take for something else."""
    if mysql_type.startswith("year"):  # the text 0 is the year 2000, 0000 is not
        return lambda array: pc.utf8_lpad(array.cast(pa.string()), width=4, padding="0")
    if mysql_type.startswith("bit("):  # the text 1 is the byte 0x31
        size = (int(mysql_type[4:-1]) + 7) // 8
        return lambda array: _bytes_of(array, size)
    return None


def _bytes_of(array: pa.Array, size: int) -> pa.Array:
    values = [None if each is None else int(each).to_bytes(size) for each in array.to_pylist()]
    return pa.array(values, pa.binary())


def _renderer(kind: FileKind, schema: pa.Schema, table: str) -> Callable[[list[pa.Array]], bytes]:
    if kind.format == "json":
        return lambda columns: _json_lines(schema.names, columns)
    if kind.format == "sql":
        names = ",".join(quoted(name) for name in schema.names)
        head = f"INSERT INTO {quoted(table)} ({names}) VALUES\n".encode()
        return lambda columns: _inserts(head, columns)
    quote = _mysql_csv if kind.layout == "dumpling" else _plain_csv
    null = pa.binary() if kind.layout == "dumpling" else pa.string()
    null_text = pa.scalar(NULL, pa.string()).cast(null)
    return lambda columns: lines([pc.fill_null(quote(each), null_text) for each in columns])


def quoted(name: str) -> str:
    """A name in back quotes, as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def _is_free_text(array: pa.Array) -> bool:
    type_ = array.type
    return bool(pa.types.is_string(type_) or pa.types.is_list(type_) or pa.types.is_binary(type_))


def _around(array: pa.Array, mark: str) -> pa.Array:
    scalar = pa.scalar(mark, pa.string()).cast(array.type)
    return pc.binary_join_element_wise(scalar, array, scalar, pa.scalar("").cast(array.type))


def _plain_csv(array: pa.Array) -> pa.Array:
    text = text_of(array)
    return _around(replaced(text, [('"', '""')]), '"') if _is_free_text(array) else text


def _mysql_csv(array: pa.Array) -> pa.Array:
    if not _is_free_text(array):
        return _mysql_text(array).cast(pa.binary())
    raw = array if array.type == pa.binary() else text_of(array).cast(pa.binary())
    return _around(replaced(raw, [("\\", "\\\\"), ('"', '\\"'), ("\0", "\\0")]), '"')


def _mysql_text(array: pa.Array) -> pa.Array:
    """Numbers, dates and instants as MySQL in UTC reads them."""
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8()).cast(pa.string())
    if pa.types.is_timestamp(array.type):
        return text_of(array.cast(pa.timestamp("us")))
    return text_of(array)


SQL_HEAD = "/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n/*!40101 SET NAMES utf8mb4*/;\n"
"""What every file of Dumpling's SQL begins with."""
_ROWS_HEAD = f"{SQL_HEAD}/*!40103 SET TIME_ZONE='+00:00' */;\n".encode()
_SQL_ESCAPES = (
    ("\\", "\\\\"),
    ("'", "\\'"),
    ("\0", "\\0"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\x1a", "\\Z"),
)


def _sql_literal(array: pa.Array) -> pa.Array:
    if array.type == pa.binary():
        values = array.to_pylist()
        hexes = [None if each is None else f"x'{each.hex()}'" for each in values]
        return pa.array(hexes, pa.string())
    if _is_free_text(array):
        return _around(replaced(text_of(array), _SQL_ESCAPES), "'")
    text = _mysql_text(array)
    is_quoted = pa.types.is_date(array.type) or pa.types.is_timestamp(array.type)
    return _around(text, "'") if is_quoted else text


def _inserts(head: bytes, columns: list[pa.Array]) -> bytes:
    """Statements of some rows each."""
    literals = [pc.fill_null(_sql_literal(each), "NULL") for each in columns]
    rows = pc.binary_join_element_wise(*literals, ",")
    rows = pc.binary_join_element_wise("(", rows, ")", "")
    sizes = pc.binary_length(rows).to_pylist()
    statements, begin, gathered = [], 0, 0
    for at, size in enumerate(sizes):
        if gathered + size > STATEMENT_BYTES and at > begin:
            statements.append(_insert(head, rows.slice(begin, at - begin)))
            begin, gathered = at, 0
        gathered += size
    statements.append(_insert(head, rows.slice(begin)))
    return b"".join(statements)


def _insert(head: bytes, rows: pa.Array) -> bytes:
    with_commas = pc.binary_join_element_wise(rows, ",\n", "")
    return head + joined_bytes(with_commas)[:-2] + b";\n"


_JSON = msgspec.json.Encoder(decimal_format="number")


def _json_lines(names: Sequence[str], columns: list[pa.Array]) -> bytes:
    values = [_json_values(each) for each in columns]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return _JSON.encode_lines(rows)


def _json_values(array: pa.Array) -> list[object]:
    type_ = array.type
    if type_ == pa.float32():  # the shortest text, not that of the nearest double
        array = array.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_temporal(type_) or pa.types.is_binary(type_):
        array = text_of(array)
    values: list[object] = array.to_pylist()
    return values
