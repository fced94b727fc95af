"""Commits to a version of an Iceberg table that do not cost more with each version before it.

What pyiceberg's own transaction does, but for two things by which a commit grows: it copies all
that a table tells, with every version, at each of some twenty looks at it; and its overwrite lets
go of no manifest of files that went, so that there is one more at each commit, which the next ones
read. And no catalog is asked, whose SQL is much of what is left.
Source: pyiceberg.table.update.snapshot; Iceberg Table Spec, Manifests.
"""

from __future__ import annotations

from typing import NamedTuple

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles


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
