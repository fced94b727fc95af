"""Files of Parquet with rows of a table, which are nothing to it before somebody names them.

They lie in the directory of the table, and are the same in lakes of each kind. A column is found by
TiDB's column id, or by its name where a file does not know ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import PurePosixPath
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.spark.lake.layout import LakeLayout, field_id
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import KEY_COLUMN, is_readable_as

FILE_BYTES = 128 << 20
"""About where a file ends, before it is compressed."""
HELD_BYTES = 32 << 20
"""Of rows that wait for others of their partition, or to be sorted with others."""
OPEN_MAX = 64
"""Files of partitions that may get more rows."""
READ_ROWS = 32_768
_ROOM = "data"


class DataFile(NamedTuple):
    """A file that a version has. `low` and `high` are bounds of its keys, which may be wider than
    these; None where the version does not tell them."""

    name: str
    size_bytes: int
    low: bytes | None
    high: bytes | None

    @property
    def room(self) -> str:
        """The same for all files of a partition."""
        return self.name.rpartition("/")[0]


class LakeFiles:
    """The files of one table, by their names in its directory. Raises OSError."""

    def __init__(self, place: LakeLocation, table: LakeTable) -> None:
        self._system, self._path = place.filesystem(table.directory)
        self._is_local, self.layout = place.is_local, table.layout

    def written(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> list[str]:
        """Rows in new files."""
        writer = FileWriter(self, schema)
        for each in rows:
            writer.add(each)
        return writer.close()

    def create(self, name: str) -> pa.NativeFile:
        """A file to write to."""
        if self._is_local:
            self._system.create_dir(f"{self._path}/{PurePosixPath(name).parent}")
        return self._system.open_output_stream(f"{self._path}/{name}")

    @contextmanager
    def opened(self, name: str) -> Iterator[pq.ParquetFile]:
        """A file to read from."""
        with self._system.open_input_file(f"{self._path}/{name}") as stream:
            yield pq.ParquetFile(stream)

    def read(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, NULL where the file is older than a column. Raises ValueError
        for a type that cannot be read as the one of now."""
        with self.opened(name) as held:
            found = [(_held(held.schema_arrow, each), each) for each in schema]
            for was, now in found:
                if was is not None and not is_readable_as(was.type, now.type):
                    raise ValueError(
                        f"{self._path}/{name}: {was.name} is {was.type}, not {now.type}"
                    )
            names = [was.name for was, _ in found if was is not None]
            for rows in held.iter_batches(READ_ROWS, columns=names):
                of, size = rows.column, rows.num_rows
                arrays = [
                    pa.nulls(size, now.type) if was is None else of(was.name).cast(now.type)
                    for was, now in found
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def keys(self, name: str) -> pa.ChunkedArray:
        """The keys of a file, in the order of its rows."""
        with self.opened(name) as held:
            return held.read([KEY_COLUMN])[KEY_COLUMN].cast(pa.binary())

    def size(self, name: str) -> tuple[int, int]:
        """Bytes of a file, and when it was written, in ms since 1970."""
        info = self._system.get_file_info(f"{self._path}/{name}")
        return info.size, (info.mtime_ns or 0) // 1_000_000


def _held(schema: pa.Schema, wanted: pa.Field) -> pa.Field | None:
    """The field of a file that a column is."""
    if field_id(wanted) and any(map(field_id, schema)):
        same = (each for each in schema if field_id(each) == field_id(wanted))
    else:
        same = (each for each in schema if each.name == wanted.name)
    return next(same, None)


class FileWriter:
    """New files of a table. Rows of a table with a layout are kept until there are `HELD_BYTES` of
    them, and come into the files of their partition, in order."""

    def __init__(self, files: LakeFiles, schema: pa.Schema) -> None:
        self.files, self._schema = files, schema
        self._held_max = HELD_BYTES if files.layout != LakeLayout() else 0
        self._held: dict[bytes, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._open: dict[bytes, _OpenFile] = {}
        self._names: list[str] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """More rows, with these columns. Raises ValueError for one that can lie in no file."""
        if not rows.num_rows:
            return
        whole = pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)
        for where, some in self.files.layout.apart(whole):
            self._held.setdefault(where, []).append(some)
            self._held_bytes += some.nbytes
        if self._held_bytes >= self._held_max:
            self._write()

    def close(self) -> list[str]:
        """The names of all files so far."""
        self._write()
        self._end(list(self._open))
        return self._names

    def _write(self) -> None:
        for where, some in self._held.items():
            if where not in self._open:
                self._open[where] = self._opened(where)
            self._open[where].add(self.files.layout.in_order(pa.Table.from_batches(some)))
        self._held, self._held_bytes = {}, 0
        is_many = len(self._open) > OPEN_MAX
        self._end([at for at, of in self._open.items() if is_many or of.size >= FILE_BYTES])

    def _opened(self, where: bytes) -> _OpenFile:
        room = f"{_ROOM}/{sha256(where).hexdigest()[:16]}" if where else _ROOM
        # never a name that an attempt had which was killed
        self._names.append(f"{room}/{uuid.uuid4()}.zstd.parquet")  # noqa: TID251 - see above
        return _OpenFile(self.files.create(self._names[-1]), self._schema)

    def _end(self, which: Iterable[bytes]) -> None:
        for each in which:
            self._open.pop(each).close()


class _OpenFile:
    """A file that gets rows; `size` is what they take in memory."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema) -> None:
        # keys and numbers seldom repeat: a dictionary of them is twice the bytes and the work
        texts = [each.name for each in schema if pa.types.is_string(each.type)]
        options = {"compression": "zstd", "use_dictionary": texts or False}
        self._stream, self._writer = stream, pq.ParquetWriter(stream, schema, **options)
        self.size = 0

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.size += rows.nbytes

    def close(self) -> None:
        self._writer.close()
        self._stream.close()
