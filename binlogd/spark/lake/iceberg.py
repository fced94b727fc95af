"""Versions of Iceberg tables, by pyiceberg: copy on write, one commit for a batch's rows.

A version is a file of metadata. It is made by a catalog that lives as long as the call and knows
nothing but the version to begin with; what holds is what `tables.json` names. So commits of a batch
that was killed lead to nothing, and nobody has to take them back. In a directory a SQLite catalog
beside the tables has their names, renewed as a whole with each batch; in an object store a reader
takes the file of metadata out of `tables.json`.

Rows that change are found by the keys in the files. A file without any is left; the others are
written anew without those rows, and new rows go behind. Field ids are TiDB's column ids, by which
columns are found in files that are older than the names, the order or the width of them.
Source: Iceberg Table Spec, version 2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import parquet_files_to_data_files, pyarrow_to_schema
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from binlogd.host.clock import WallClock
from binlogd.snapshot.publishing.lake.iceberg import CATALOG_FILE, set_schema, version_of
from binlogd.spark.lake.files import FileWriter
from binlogd.spark.lake.kinds import COMMIT_TS_KEY, LakeFailed
from binlogd.spark.lake.manifest import LakeTable, LakeTables
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID, KeyChanges, is_readable_as

SMALL_BYTES, SMALL_MAX = 8 << 20, 16
"""When more files than that are smaller than that, the next batch puts them together."""
SNAPSHOT_AGE = timedelta(days=1)
"""So long a version can be read behind the next one."""
TIDY_EVERY = 500
"""Versions after which older ones are forgotten, with the files that only they have."""
READ_ROWS = 32_768

_CATALOG = "binlogd"
_NAMES = (
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
    " VALUES (?, ?, ?, ?)"
)
_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_FAILS = (CommitFailedException, ValidationError, ValueError, NotImplementedError, OSError)


class Iceberg:
    """See Kind."""

    def __init__(self, place: LakeLocation) -> None:
        self._place, self._numbers = place, count()
        properties = {**place.iceberg_properties(), "warehouse": place.bare}
        self._catalog = SqlCatalog(_CATALOG, uri="sqlite:///:memory:", **properties)
        self._catalog.create_namespace(_CATALOG)

    def close(self) -> None:
        """See Kind."""
        self._catalog.close()

    def create(
        self, table_id: int, directory: str, schema: pa.Schema, name: str, end: int
    ) -> LakeTable:
        """See Kind."""
        location = f"{self._place.bare}/{directory}"
        wanted = pyarrow_to_schema(schema)
        properties = {**_PROPERTIES, "comment": name, COMMIT_TS_KEY: str(end)}
        try:
            table = self._catalog.create_table(
                self._name(), wanted, location=location, properties=properties
            )
            with table.transaction() as changes:
                set_schema(changes, table, wanted)
            return _head(LakeTable(table_id, directory, 0), table)
        except _FAILS as error:
            raise LakeFailed(f"{self._place.shown}/{directory}: {error}") from error

    def append(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """See Kind."""
        with self._opened(head) as table:
            paths = _written(table, schema, rows)
            return self._committed(head, table, schema, [], paths, end)

    def read(self, head: LakeTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See Kind."""
        with self._opened(head) as table:
            for each in _files(table):
                yield from _read(table, each, schema)

    def evolve(
        self, head: LakeTable, before: pa.Schema, schema: pa.Schema, end: int
    ) -> LakeTable | None:
        """See Kind. All but a type that files cannot be read as."""
        held = {_id(each): each.type for each in before}
        if not all(is_readable_as(held.get(_id(each), each.type), each.type) for each in schema):
            return None
        with self._opened(head) as table:
            return self._committed(head, table, schema, [], [], end)

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """See Kind."""
        with self._opened(head) as table:
            paths = _written(table, schema, rows)
            return self._committed(head, table, schema, _files(table), paths, end)

    def merge(
        self, head: LakeTable, schema: pa.Schema, changes: Iterable[KeyChanges], end: int
    ) -> LakeTable:
        """See Kind. All of `changes` are one commit; their keys are in memory together."""
        with self._opened(head) as table:
            writer, keys = _writer(table, schema), list[pa.ChunkedArray]()
            for each in changes:
                keys.append(each.keys)
                for rows in each.puts.to_batches():
                    writer.add(rows)
            replaced = _replace(table, _Keys.of(keys), writer, schema)
            return self._committed(head, table, schema, replaced, writer.close(), end)

    def append_files(
        self,
        head: LakeTable,
        before: pa.Schema,
        schema: pa.Schema,
        names: Sequence[str],
        end: int,
    ) -> LakeTable:
        """See Kind. Columns and files are one commit."""
        with self._opened(head) as table:
            paths = [f"{table.location()}/{each}" for each in names]
            return self._committed(head, table, schema, [], paths, end)

    def show(self, now: LakeTables) -> None:
        """See Kind. All names at once: whoever opens the catalog sees one moment."""
        if not self._place.is_local:
            return
        where = f"sqlite:///{self._place.url}/{CATALOG_FILE}"
        with closing(SqlCatalog(_CATALOG, uri=where, warehouse=self._place.bare)) as catalog:
            rows = [
                (_CATALOG, *name.split(".", 1), each.metadata) for name, each in now.tables.items()
            ]
            with catalog.engine.begin() as connection:
                connection.exec_driver_sql("DELETE FROM iceberg_tables")
                if rows:
                    connection.exec_driver_sql(_NAMES, rows)

    # --- the table -----------------------------------------------------------------------------

    @contextmanager
    def _opened(self, head: LakeTable) -> Iterator[Table]:
        """The table at this version, whatever was made of it since."""
        try:
            yield self._catalog.register_table(self._name(), head.metadata)
        except _FAILS as error:
            raise LakeFailed(f"{self._place.shown}/{head.directory}: {error}") from error

    def _name(self) -> tuple[str, str]:
        """Of this call alone."""
        return _CATALOG, f"table_{next(self._numbers)}"

    def _committed(
        self,
        head: LakeTable,
        table: Table,
        schema: pa.Schema,
        gone: Sequence[DataFile],
        paths: Iterable[str],
        end: int,
    ) -> LakeTable:
        properties = {COMMIT_TS_KEY: str(end)}
        with table.transaction() as changes:
            set_schema(changes, table, pyarrow_to_schema(schema))
            update = changes.update_snapshot(snapshot_properties=properties)
            # an append looks at no older manifest, but to put many small ones together
            with update.overwrite() if gone else update.merge_append() as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file)
                for file in parquet_files_to_data_files(
                    table.io, changes.table_metadata, iter(paths)
                ):
                    snapshot.append_data_file(file)
        if len(table.snapshots()) % TIDY_EVERY == 0:
            _forget(table, end, *self._place.filesystem(head.directory))
        return _head(head, table)


def _head(head: LakeTable, table: Table) -> LakeTable:
    snapshot = table.current_snapshot()
    counted = dict(snapshot.summary.additional_properties) if snapshot and snapshot.summary else {}
    rows, files = (int(counted.get(f"total-{of}", 0)) for of in ("records", "data-files"))
    where = table.metadata_location
    return LakeTable(head.table_id, head.directory, version_of(table), where, rows, files)


def _forget(table: Table, end: int, system: FileSystem, path: str) -> None:
    """Versions that are old, and files that are old and in no version: of those, or of a batch that
    was killed. The version before this batch stays: it is begun with again if this one is killed.
    """
    limit = datetime.fromtimestamp(WallClock().wall_ms() / 1000, UTC) - SNAPSHOT_AGE
    before = [each for each in table.snapshots() if _end_of(each) != end]
    old = [each.snapshot_id for each in before[:-1] if each.timestamp_ms < limit.timestamp() * 1000]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    kept = {name.removeprefix(table.location() + "/") for name in _named(table)}
    for info in system.get_file_info(FileSelector(path, recursive=True)):
        name = info.path.removeprefix(path + "/")
        if info.is_file and name not in kept and info.mtime < limit:
            system.delete_file(info.path)


def _end_of(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None, "each version is made with one"
    return int(snapshot.summary.additional_properties[COMMIT_TS_KEY])


def _named(table: Table) -> Iterator[str]:
    """The files that a table still needs."""
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    seen = set[str]()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


# --- files ---------------------------------------------------------------------------------------


def _files(table: Table) -> list[DataFile]:
    return [each.file for each in table.scan().plan_files()]


def _id(field: pa.Field) -> bytes:
    found: bytes = field.metadata[b"PARQUET:field_id"]
    return found


def _read(table: Table, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with these columns, NULL where the file is older than a column."""
    with table.io.new_input(file.file_path).open() as stream:
        held = pq.ParquetFile(stream)
        fields = {_id(each): each for each in held.schema_arrow}
        found = [(fields.get(_id(each)), each) for each in schema]
        for was, now in found:
            if was is not None and not is_readable_as(was.type, now.type):
                raise ValueError(f"{file.file_path}: {was.name} is {was.type}, not {now.type}")
        names = [was.name for was, _ in found if was is not None]
        for rows in held.iter_batches(READ_ROWS, columns=names):
            of, size = rows.column, rows.num_rows
            arrays = [
                pa.nulls(size, now.type) if was is None else of(was.name).cast(now.type)
                for was, now in found
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _writer(table: Table, schema: pa.Schema) -> FileWriter:
    """Rows into new data files of a table."""

    def create(name: str) -> tuple[str, OutputStream]:
        path = table.location_provider().new_data_location(name)
        return path, table.io.new_output(path).create()

    return FileWriter(create, schema)


def _written(table: Table, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> list[str]:
    writer = _writer(table, schema)
    for each in rows:
        writer.add(each)
    return writer.close()


@dataclass(frozen=True, slots=True)
class _Keys(Sequence[bytes]):
    """Keys in their order."""

    array: pa.Array

    @classmethod
    def of(cls, keys: Iterable[pa.ChunkedArray]) -> _Keys:
        chunks = [chunk for each in keys for chunk in each.chunks]
        whole = pa.chunked_array(chunks, pa.binary()).combine_chunks()
        return cls(whole.take(pc.sort_indices(whole)))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        return self.array[at].as_py()

    def within(self, file: DataFile) -> pa.Array:
        """Those that may be in a file, by its bounds; a bound may be shortened, never narrowed."""
        low, high = (
            (bounds or {}).get(KEY_ID) for bounds in (file.lower_bounds, file.upper_bounds)
        )
        begin = 0 if low is None else bisect_left(self, low)
        end = len(self) if high is None else bisect_right(self, high)
        return self.array.slice(begin, max(0, end - begin))


def _replace(table: Table, keys: _Keys, writer: FileWriter, schema: pa.Schema) -> list[DataFile]:
    """Writes what is left of files that hold some of the keys, or are too many and small; these."""
    files = _files(table)
    small = {file.file_path for file in files if file.file_size_in_bytes < SMALL_BYTES}
    folded = small if len(small) > SMALL_MAX else set[str]()
    replaced = []
    for file in files:
        wanted = keys.within(file)
        gone = _mask(table, file, wanted) if len(wanted) else None
        if file.file_path not in folded and (gone is None or not gone.true_count):
            continue
        replaced.append(file)
        offset = 0
        for rows in _read(table, file, schema):
            kept = rows
            if gone is not None:
                kept = rows.filter(pc.invert(gone.slice(offset, rows.num_rows)))
            writer.add(kept)
            offset += rows.num_rows
    return replaced


def _mask(table: Table, file: DataFile, keys: pa.Array) -> pa.BooleanArray:
    with table.io.new_input(file.file_path).open() as stream:
        held = pq.ParquetFile(stream).read([KEY_COLUMN])[KEY_COLUMN].combine_chunks()
    return pc.is_in(held, value_set=keys)
