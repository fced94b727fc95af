"""Reads data files of a snapshot back, as the manifest says that they are to be read.

Whoever checks a snapshot reads it the way its users do; so the options stand here, once, and the
documentation shows the same.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as json
import pyarrow.orc as orc
import pyarrow.parquet as pq

from binlogd.errors import Corrupt
from binlogd.snapshot.formats.columns import ARROW_TYPES, DECIMAL128, VARIANT
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.formats.texts import NULL, checksum
from binlogd.snapshot.spec import ColumnEntry, FileEntry, Manifest, TableEntry
from binlogd.tidb.times import duration_us

BLOCK_BYTES = 64 << 20
"""A row of CSV or JSON must fit into one."""
_TYPES = {str(each): each for each in (*ARROW_TYPES, VARIANT)}
_OLD_LIST = re.compile(r"list<\w+: string>")


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that a manifest names. Raises Corrupt."""
    decimal = DECIMAL128.fullmatch(text)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if _OLD_LIST.fullmatch(text):
        return pa.list_(pa.string())
    try:
        return _TYPES[text]
    except KeyError:
        raise Corrupt(f"the manifest names the Arrow type {text}, which no snapshot has") from None


def schema_of(table: TableEntry) -> pa.Schema:
    """What a reader of the table's files asks for."""
    return pa.schema([(each.name, arrow_type(each.arrow_type)) for each in table.columns])


def can_be_read(manifest: Manifest) -> bool:
    """Whether rows can be read back: not what only MySQL and TiDB read."""
    return manifest.layout == "plain" or manifest.data_format == "parquet"


def batches(path: Path, manifest: Manifest, table: TableEntry) -> Iterator[pa.RecordBatch]:
    """The rows of a data file, as its format keeps them. Raises OSError, pa.ArrowException."""
    kind = FileKind(manifest.data_format, manifest.layout)
    read = _parquet if kind.is_parquet else _READERS[kind.format]
    return read(path, schema_of(table))


class FileRows(NamedTuple):
    """How many rows a data file has, and what `texts.checksum` says of them."""

    rows: int
    total: int


def file_rows(snapshot: Path, file: FileEntry, manifest: Manifest, table: TableEntry) -> FileRows:
    """Reads a data file through. Raises as `batches`."""
    rows = total = 0
    for batch in batches(snapshot / file.name, manifest, table):
        columns = [
            decoded(column, entry)
            for column, entry in zip(batch.columns, table.columns, strict=True)
        ]
        total += checksum(columns)
        rows += batch.num_rows
    return FileRows(rows, total)


def decoded(column: pa.Array, entry: ColumnEntry) -> pa.Array:
    """Values out of their text, where they were encoded."""
    if entry.encoding == "base64":
        return _each(column, base64.b64decode, pa.binary())
    if entry.encoding == "time":
        return _each(column, duration_us, pa.int64())
    return column


def _each(column: pa.Array, decode: Callable[[str], object], type_: pa.DataType) -> pa.Array:
    values = [None if each is None else decode(each) for each in column.to_pylist()]
    return pa.array(values, type_)


def _parquet(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield _cast(batch, schema)


def _orc(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    file = orc.ORCFile(path)
    for stripe in range(file.nstripes):
        yield _cast(file.read_stripe(stripe), schema)


def _csv(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader = csv.open_csv(
        path,
        csv.ReadOptions(block_size=BLOCK_BYTES),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=schema,
            null_values=[NULL],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    yield from reader


def _json(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not path.stat().st_size:
        return
    texts = pa.schema(  # pyarrow takes dates of JSON for numbers
        field.with_type(pa.string()) if field.type == pa.date32() else field for field in schema
    )
    parse = json.ParseOptions(explicit_schema=texts, unexpected_field_behavior="error")
    table = json.read_json(path, json.ReadOptions(block_size=BLOCK_BYTES), parse)
    for batch in table.to_batches():
        yield _cast(batch, schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_READERS: dict[str, Callable[[Path, pa.Schema], Iterator[pa.RecordBatch]]] = {
    "orc": _orc,
    "csv": _csv,
    "json": _json,
}
