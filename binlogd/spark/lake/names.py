"""The tables of an Iceberg lake by their names, in a catalog of the user's.

A name is a table of the catalog that has snapshots of the lake's tables: of the one that
`tables.json` has under this name, and its files. It has metadata files of its own (`_names/`), as
each catalog writes them and removes old ones. So TRUNCATE, or two tables that swap their names, are
one commit as any batch is, and a name is never gone in between: but for a moment where its table is
not partitioned as the last one was.

Invariant. Whoever loads a name finds a version that `tables.json` named, now or before its last
turn. Why it holds: names move after the page was turned, each by one commit of the catalog, and no
other page is turned before all are there: a new run begins with that. `_catalog.json` says what the
catalog has at the end, so that a batch asks for those names alone that are others by now.
Source: Iceberg REST Catalog API (updateTable: create with assert-create; TableUpdate).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from functools import partial

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssertRefSnapshotId,
    AssignUUIDUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

from binlogd.archive.store import ArchiveStore, Document
from binlogd.log.checked_text import checksummed_json
from binlogd.snapshot.publishing.lake.catalogs import NamedCatalog
from binlogd.snapshot.publishing.lake.iceberg import schema_updates
from binlogd.spark.lake.manifest import DIRECTORY, LakeTables, PipelineStopped
from binlogd.spark.lake.place import LakeLocation

NAMES = "_names"
NOTE_NAME = "_catalog.json"


class Noted(Document, frozen=True, kw_only=True):
    """What a catalog has: by name the metadata of the lake's table."""

    catalog: str = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)


class CatalogNames:
    """Raises CatalogFailed, ConfigError, what a store raises, and PipelineStopped."""

    def __init__(self, place: LakeLocation, catalog: str) -> None:
        self._place, self._name = place, catalog
        self._store = ArchiveStore.open(place.url, what="lake")
        self._catalog = NamedCatalog(catalog, place.iceberg_properties())

    def follow(self, now: LakeTables, *, checks_all: bool) -> None:
        """Brings the catalog to this page; `checks_all` does not believe what was noted."""
        with closing(self._catalog):
            if checks_all:
                self._catalog.ask("opening it", bool)
            noted = self._store.document(NOTE_NAME, Noted)
            there = noted.names if noted.catalog == self._name else {}
            left = [name for name in there if name not in now.tables]
            moved = {
                name: head.metadata
                for name, head in now.tables.items()
                if checks_all or there.get(name) != head.metadata
            }
            for name, metadata in moved.items():
                self._catalog.ask(name, partial(self._move, name, metadata))
            for name in left:
                self._catalog.ask(name, partial(self._take_out, name))
            if moved or left:
                names = {name: head.metadata for name, head in now.tables.items()}
                text = msgspec.json.encode(Noted(catalog=self._name, names=names))
                self._store.put(NOTE_NAME, checksummed_json(text))

    def _move(self, name: str, metadata: str, catalog: Catalog) -> None:
        """To a version of a table of the lake, unless it is there."""
        parts = _parts(name)
        head = StaticTable.from_metadata(metadata, self._place.iceberg_properties())
        held = self._held(name, catalog)
        if held is not None and _differ(held.metadata, head.metadata):
            catalog.drop_table(parts)
            held = None
        if held is not None:
            if updates := _moves(held.metadata, head.metadata):
                known = held.metadata.current_snapshot_id
                asserted = AssertRefSnapshotId.model_validate(
                    {"ref": MAIN_BRANCH, "snapshot-id": known}
                )
                catalog.commit_table(held, (asserted,), updates)
            return
        if not catalog.namespace_exists(parts[:-1]):
            catalog.create_namespace(parts[:-1])
        own = self._own(name)
        where = {"write.metadata.path": f"{self._place.bare}/{NAMES}/{own}"}
        made = Table(parts, head.metadata, metadata, head.io, catalog)
        catalog.commit_table(made, (AssertCreate(),), _creates(head.metadata, own, where))

    def _take_out(self, name: str, catalog: Catalog) -> None:
        if self._held(name, catalog) is not None:
            catalog.drop_table(_parts(name))
        self._store.remove_directory(f"{NAMES}/{self._own(name)}")

    def _held(self, name: str, catalog: Catalog) -> Table | None:
        """What the catalog has; none of others'."""
        try:
            found = catalog.load_table(_parts(name))
        except NoSuchTableError:
            return None
        if not found.location().startswith(f"{self._place.bare}/{DIRECTORY}"):
            raise PipelineStopped(
                f"the catalog {self._name} has a table {name} at {found.location()}, which"
                f" is none of the lake {self._place.shown}: take it out of the catalog, or use"
                " another one (--catalog)"
            )
        return found

    def _own(self, name: str) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self._place.bare}/{name}")


def _creates(
    head: TableMetadata, own: uuid.UUID, properties: Mapping[str, str]
) -> tuple[TableUpdate, ...]:
    """Makes a table of what there is of another one, with its field ids."""
    version = {"format-version": head.format_version}
    schema, now = Schema(*head.schema().fields), head.current_snapshot()
    return (
        AssignUUIDUpdate(uuid=own),
        UpgradeFormatVersionUpdate.model_validate(version),
        AddSchemaUpdate(schema=schema),
        SetCurrentSchemaUpdate(),
        *(AddPartitionSpecUpdate(spec=each) for each in head.partition_specs),
        SetDefaultSpecUpdate(),
        AddSortOrderUpdate.model_validate({"sort-order": head.sort_order()}),
        SetDefaultSortOrderUpdate(),
        SetLocationUpdate(location=head.location),
        SetPropertiesUpdate(updates={**head.properties, **properties}),
        *(_main(now, schema.schema_id) if now is not None else ()),
    )


def _differ(held: TableMetadata, head: TableMetadata) -> bool:
    """Whether files of two tables are apart by other columns: no table can show both, as versions
    say a number only of what they are apart by."""
    specs = {each.spec_id: each for each in held.partition_specs}
    return any(specs.get(each.spec_id, each) != each for each in head.partition_specs)


def _moves(held: TableMetadata, head: TableMetadata) -> tuple[TableUpdate, ...]:
    """Makes a table show what another one has, or nothing where it does."""
    now, kept = head.current_snapshot(), {each.snapshot_id for each in head.snapshots}
    schema_id, of_schema = schema_updates(held, Schema(*head.schema().fields))
    updates: list[TableUpdate] = [*of_schema]
    known = {each.spec_id for each in held.partition_specs}
    for spec in head.partition_specs:
        if spec.spec_id not in known:
            updates += AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate()
    if held.location != head.location:
        updates.append(SetLocationUpdate(location=head.location))
    if now is None and held.current_snapshot_id is not None:
        updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": MAIN_BRANCH}))
    if now is not None and now.snapshot_id != held.current_snapshot_id:
        updates += _main(now, schema_id, held)
    if gone := [each.snapshot_id for each in held.snapshots if each.snapshot_id not in kept]:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}))
    return tuple(updates)


def _main(
    now: Snapshot, schema_id: int, held: TableMetadata | None = None
) -> tuple[TableUpdate, ...]:
    """Makes a version the one that is shown. It is not newer than the table's last one where that
    showed another table, so the rules for one that follows another do not hold: no parent then."""
    ref = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": now.snapshot_id}
    shown = SetSnapshotRefUpdate.model_validate(ref)
    if held is None:
        added = now.model_copy(update={"schema_id": schema_id, "parent_snapshot_id": None})
        return AddSnapshotUpdate(snapshot=added), shown
    if held.snapshot_by_id(now.snapshot_id) is not None:
        return (shown,)
    last = 0 if isinstance(held, TableMetadataV1) else held.last_sequence_number
    follows = (now.sequence_number or 0) > last
    of_the_table = {
        "schema_id": schema_id,
        "parent_snapshot_id": held.current_snapshot_id if follows else None,
        "timestamp_ms": max(now.timestamp_ms, held.last_updated_ms),
    }
    return AddSnapshotUpdate(snapshot=now.model_copy(update=of_the_table)), shown


def _parts(name: str) -> tuple[str, ...]:
    return tuple(name.split(".", 1))
