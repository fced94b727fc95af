"""Arrow batches of one table into files, each synced and hashed where it is written.

Where the columns of a table do not tell which row is which (a hidden row id, a key of several
columns), the handles stand in a file of their own beside the data, row by row, for the snapshot
that is built on this one. Its name begins with `_`: readers of a directory pass it over.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.snapshot.formats import file_kinds
from binlogd.snapshot.formats.file_kinds import PLAIN_PARQUET, ROW_GROUP_ROWS, FileKind
from binlogd.snapshot.formats.texts import checksum, checksum_text
from binlogd.snapshot.publishing import marks
from binlogd.snapshot.publishing.marks import Written as Written
from binlogd.snapshot.spec import FileEntry, KeysEntry, TypeOptions

ROW_GROUP_BYTES = 64 << 20
KEY_COLUMN = "key"

RESULTS = pa.schema([("written", pa.binary())])
"""One `Written` each, as JSON."""


Send = Callable[[Path, str], None]
"""Takes a file, and its name in the snapshot."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where and how files are written; `keys` is where the keys that changed are put down, `state`
    where marks of what is finished are, "" without any. With `send`, each file is given away by it
    when it is whole, under its name in the snapshot."""

    staging: str
    types: TypeOptions
    rows_per_file_max: int
    keys: str = ""
    kind: FileKind = PLAIN_PARQUET
    state: str = ""
    send: Send | None = None

    @contextmanager
    def of_task(self) -> Iterator[FileTarget]:
        """The same for one task; what it sends is made in a directory of its own, below that of
        Spark, which removes what a killed executor leaves."""
        if self.send is None:
            yield self
            return
        local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        with tempfile.TemporaryDirectory(dir=local if Path(local).is_dir() else None) as made:
            yield replace(self, staging=made)

    def sent(self, name: str) -> None:
        """A file of the staging directory is whole."""
        if self.send is not None:
            path = Path(self.staging, name)
            self.send(path, name)
            path.unlink()

    def finished(self, table_id: int, part: str) -> list[Written] | None:
        """What an earlier run of this export wrote for a part, if it came to its end."""
        if not self.state:
            return None
        return marks.marked(Path(self.state), Path(self.staging), table_id, part)

    def finish(self, table_id: int, part: str, done: list[Written]) -> None:
        """Notes that a part is finished, for whoever goes on after a crash."""
        if self.state and done:
            marks.mark(Path(self.state), table_id, part, done)


def keys_name(name: str) -> str:
    """The file of row handles beside a data file."""
    directory, _, file = name.rpartition("/")
    return f"{directory}/_keys-{file}"


def results(done: list[Written]) -> pa.RecordBatch:
    """`RESULTS` of some files."""
    return pa.record_batch([pa.array(map(msgspec.json.encode, done), pa.binary())], schema=RESULTS)


def parse_results(rows: Iterable[Any]) -> list[Written]:
    """What `results` gave, in rows of Spark's or mappings."""
    return [msgspec.json.decode(row["written"], type=Written) for row in rows]


@dataclass(slots=True)
class TableFiles:
    """The files of one table in one partition; `part` makes their names its own.

    `mysql_types` are those of the columns, `table` is what SQL statements name. Only Parquet files
    get a file of row handles beside them: nothing is built on the other formats.
    """

    table_id: int
    directory: str
    schema: pa.Schema
    target: FileTarget
    part: str
    key_type: pa.DataType | None = None
    mysql_types: tuple[str, ...] = ()
    table: str = ""
    losses: dict[str, Counter[str]] = field(default_factory=dict)
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _keys: list[pa.Array] = field(default_factory=list)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0
    _rows: int = 0
    _checksum: int = 0
    _path: Path = Path()
    _file: file_kinds.RowsFile | None = None
    _keys_file: pq.ParquetWriter | None = None
    _done: list[Written] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, keys: pa.Array | None, size_bytes: int) -> None:
        """Takes rows, with their handles where the table has a `key_type`."""
        self._waiting.append(batch)
        if keys is not None:
            self._keys.append(keys)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += size_bytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> list[Written]:
        """Finishes the last file. What was written."""
        if self._waiting:
            self._write_row_group()
        self._finish_file()
        return self._done

    def _write_row_group(self) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        rows = pa.Table.from_batches(self._waiting, self.schema)
        self._file.write(rows)
        for batch in self._waiting:
            self._checksum += checksum(batch.columns)
        if self._keys_file is not None:
            keys = pa.table({KEY_COLUMN: pa.chunked_array(self._keys, self.key_type)})
            self._keys_file.write_table(keys, row_group_size=ROW_GROUP_ROWS)  # as the rows are
        self._rows += self._waiting_rows
        self._waiting.clear()
        self._keys.clear()
        self._waiting_rows = self._waiting_bytes = 0
        if self._rows >= self.target.rows_per_file_max:
            self._finish_file()

    def _open(self) -> None:
        name = f"part-{self.part}-{len(self._done):03d}.{self.target.kind.suffix}"
        self._path = Path(self.target.staging, self.directory, name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        mysql_types = self.mysql_types or ("",) * len(self.schema)
        self._file = file_kinds.create(
            self._path, self.target.kind, self.schema, mysql_types, self.table
        )
        if self.key_type is not None:
            encoding = "DELTA_BINARY_PACKED" if self.key_type == pa.int64() else "DELTA_BYTE_ARRAY"
            self._keys_file = pq.ParquetWriter(
                self._keys_path(),
                pa.schema([(KEY_COLUMN, self.key_type)]),
                compression="zstd",
                use_dictionary=False,
                column_encoding={KEY_COLUMN: encoding},
            )

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        name, keys = f"{self.directory}/{self._path.name}", None
        if self._keys_file is not None:
            self._keys_file.close()
            self._keys_file = None
            keys = KeysEntry(keys_name(name), *synced(self._keys_path()))
            self.target.sent(keys.name)
        size_bytes, sha256 = synced(self._path)
        self.target.sent(name)
        losses = {column: dict(+lost) for column, lost in self.losses.items() if +lost}
        self.losses.clear()
        checksum = checksum_text(self._checksum)
        file = FileEntry(name, self._rows, size_bytes, sha256, keys, checksum)
        self._done.append(Written(self.table_id, file, losses))
        self._rows = self._checksum = 0

    def _keys_path(self) -> Path:
        return Path(self.target.staging, keys_name(f"{self.directory}/{self._path.name}"))


def synced(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file that is on the disk from now on."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path.stat().st_size, digest
