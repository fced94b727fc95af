"""Versions of Iceberg tables, by pyiceberg: copy on write, one commit for a batch's rows.

A version is a file of metadata, made out of the one to begin with and named in no catalog; what
holds is what `tables.json` names. So commits of a batch that was killed lead to nothing, and nobody
has to take them back. In a directory a SQLite catalog beside the tables has their names, renewed as
a whole with each batch; in an object store a reader takes the file of metadata out of
`tables.json`.

Commits do not cost more with each version before: they are what pyiceberg's own transaction does,
but for two things by which a commit grows. It copies all that a table tells, with every version, at
each of some twenty looks at it; and its overwrite lets go of no manifest of files that went, so
that there is one more at each commit, which the next ones read. And no catalog is asked, whose SQL
is much of what is left.

Field ids are TiDB's column ids, by which columns are found in files that are older than the names,
the order or the width of them.
Source: Iceberg Table Spec, version 2, Manifests; pyiceberg.table.update.snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_files_to_data_files, pyarrow_to_schema
from pyiceberg.manifest import DataFile as HeldFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.typedef import EMPTY_DICT, Properties

from binlogd.host.clock import WallClock
from binlogd.snapshot.publishing.file_systems import path_in_azure
from binlogd.snapshot.publishing.lake.iceberg import catalog_uri, set_schema, set_spec, version_of
from binlogd.snapshot.publishing.lake.version import COMMIT_TS_KEY
from binlogd.spark.lake.files import DataFile
from binlogd.spark.lake.kinds import LakeFailed
from binlogd.spark.lake.layout import LakeLayout, field_id
from binlogd.spark.lake.manifest import LakeTable, LakeTables
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import KEY_ID, is_readable_as

SNAPSHOT_AGE = timedelta(days=1)
"""So long a version can be read behind the next one."""
TIDY_EVERY = 500
"""Versions after which older ones are forgotten, with the files that only they have."""

_CATALOG = "binlogd"
_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "": IdentityTransform(),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
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


class AzureFileIO(PyArrowFileIO):
    """Files in Azure's store: pyiceberg 0.12 takes `CONTAINER@ACCOUNT.dfs...` for the container."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Scheme, host, and the path as pyarrow takes it."""
        scheme, host, _ = PyArrowFileIO.parse_location(location, properties)
        return scheme, host, path_in_azure(location)


class Iceberg:
    """See Kind."""

    def __init__(self, place: LakeLocation) -> None:
        self._place, self._versions = place, Versions(_CATALOG, **place.iceberg_properties())

    def create(self, table: LakeTable, schema: pa.Schema, name: str, end: int) -> LakeTable:
        """See Kind."""
        location = f"{self._place.bare}/{table.directory}"
        wanted = pyarrow_to_schema(schema)
        properties = {**_PROPERTIES, "comment": name, COMMIT_TS_KEY: str(end)}
        try:
            made = self._versions.begun(wanted, location, properties)
            with made.transaction() as changes:
                set_schema(changes, made, wanted)
                if table.layout.partition_by:
                    set_spec(changes, _spec(table.layout))
            return _head(table, made)
        except _FAILS as error:
            raise LakeFailed(f"{self._place.shown}/{table.directory}: {error}") from error

    def files(self, head: LakeTable) -> list[DataFile]:
        """See Kind."""
        with self._opened(head) as table:
            return [
                DataFile(name, each.file_size_in_bytes, *_bounds(each))
                for name, each in _files(table).items()
            ]

    def evolve(
        self, head: LakeTable, before: pa.Schema, schema: pa.Schema, end: int
    ) -> LakeTable | None:
        """See Kind. All but a type that files cannot be read as."""
        if before.equals(schema, check_metadata=True):
            return head
        held = {field_id(each): each.type for each in before}
        if not all(
            is_readable_as(held.get(field_id(each), each.type), each.type) for each in schema
        ):
            return None
        with self._opened(head) as table:
            return self._committed(head, table, schema, {}, [], end)

    def replace(
        self, head: LakeTable, schema: pa.Schema, gone: Sequence[str], come: Sequence[str], end: int
    ) -> LakeTable:
        """See Kind."""
        with self._opened(head) as table:
            files = _files(table) if gone else {}
            return self._committed(
                head, table, schema, {each: files[each] for each in gone}, come, end
            )

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, come: Sequence[str], end: int
    ) -> LakeTable:
        """See Kind."""
        with self._opened(head) as table:
            return self._committed(head, table, schema, _files(table), come, end)

    def show(self, now: LakeTables) -> None:
        """See Kind. All names at once: whoever opens the catalog sees one moment."""
        if not self._place.is_local:
            return
        from pyiceberg.catalog.sql import SqlCatalog  # a second of CPU, which no worker needs

        where = catalog_uri(Path(self._place.url))
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
            yield self._versions.opened(head.metadata)
        except _FAILS as error:
            raise LakeFailed(f"{self._place.shown}/{head.directory}: {error}") from error

    def _committed(
        self,
        head: LakeTable,
        table: Table,
        schema: pa.Schema,
        gone: Mapping[str, HeldFile],
        come: Sequence[str],
        end: int,
    ) -> LakeTable:
        paths = (f"{table.location()}/{each}" for each in come)
        properties = {COMMIT_TS_KEY: str(end)}
        with VersionChanges(table) as changes:
            set_schema(changes, table, pyarrow_to_schema(schema))
            # an append looks at no older manifest, but to put many small ones together
            with (
                Replacing(table, changes, properties)
                if gone
                else changes.update_snapshot(snapshot_properties=properties).merge_append()
            ) as snapshot:
                for file in gone.values():
                    snapshot.delete_data_file(file)
                for file in parquet_files_to_data_files(table.io, changes.table_metadata, paths):
                    snapshot.append_data_file(file)
        if len(table.snapshots()) % TIDY_EVERY == 0:
            _forget(table, end, *self._place.filesystem(head.directory))
        return _head(head, table)


def _head(head: LakeTable, table: Table) -> LakeTable:
    snapshot = table.current_snapshot()
    counted = dict(snapshot.summary.additional_properties) if snapshot and snapshot.summary else {}
    rows, files = (int(counted.get(f"total-{of}", 0)) for of in ("records", "data-files"))
    version, where = version_of(table), table.metadata_location
    return msgspec.structs.replace(head, version=version, metadata=where, rows=rows, files=files)


def _spec(layout: LakeLayout) -> PartitionSpec:
    """The second one of its table: the first one is that of a table without a layout."""
    names = (f"{by.column}_{by.unit}" if by.unit else by.column for by in layout.partition_by)
    fields = (
        PartitionField(by.id, number, _TRANSFORMS[by.unit], name)
        for number, (by, name) in enumerate(zip(layout.partition_by, names, strict=True), 1000)
    )
    return PartitionSpec(*fields, spec_id=1)


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


def _files(table: Table) -> dict[str, HeldFile]:
    """Those of the version by their names in the directory of the table."""
    root = table.location() + "/"
    snapshot = table.current_snapshot()
    found = (
        entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )
    return {each.file_path.removeprefix(root): each for each in found}


def _bounds(file: HeldFile) -> tuple[bytes | None, bytes | None]:
    """Of the keys; one may be shortened, never narrowed."""
    low, high = ((of or {}).get(KEY_ID) for of in (file.lower_bounds, file.upper_bounds))
    return low, high


# --- commits -------------------------------------------------------------------------------------


class _Look(NamedTuple):
    """What a table with these changes tells."""

    table: TableMetadata
    updates: tuple[TableUpdate, ...]
    found: TableMetadata


class VersionChanges(Transaction):
    """One that makes what a table tells once for each state of it. Nobody alters what it gives."""

    _look: _Look | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """See Transaction."""
        look, table = self._look, self._table.metadata
        if look is None or look.table is not table or look.updates is not self._updates:
            look = self._look = _Look(table, self._updates, super().table_metadata)
        return look.found


class Replacing(_OverwriteFiles, _MergeAppendFiles):
    """Files in the place of others. Manifests that name no file of the version are dropped, and
    many small ones are put together, as an append does it."""

    def __init__(self, table: Table, changes: Transaction, properties: dict[str, str]) -> None:
        super().__init__(Operation.OVERWRITE, changes, table.io, snapshot_properties=properties)

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        return [each for each in found if each.has_added_files() or each.has_existing_files()]


class Versions(NoopCatalog, MetastoreCatalog):
    """A catalog that has no names: what is committed is a new file of metadata, and nothing else.
    So the tables of one are versions, whatever was made of them since."""

    def begun(self, schema: Schema, location: str, properties: dict[str, str]) -> Table:
        """A new table."""
        staged = self._create_staged_table(
            (self.name, location), schema, location, properties=properties
        )
        where = staged.metadata_location
        self._write_metadata(staged.metadata, staged.io, where)
        return Table(staged.name(), staged.metadata, where, staged.io, self)

    def opened(self, location: str) -> Table:
        """The version of a file of metadata."""
        io = self._load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        io = self._load_file_io(metadata.properties, location)
        return Table((self.name, location), metadata, location, io, self)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """See Catalog."""
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        where = staged.metadata_location
        self._write_metadata(staged.metadata, staged.io, where)
        return CommitTableResponse.model_validate(
            {"metadata": staged.metadata, "metadata-location": where}
        )
