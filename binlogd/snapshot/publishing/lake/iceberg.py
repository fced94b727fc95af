"""Iceberg by pyiceberg, in a SQLite catalog beside the tables, or in one that the user has.

TiDB's column ids are the field ids, in the files as in the tables: a renamed column stays what it
was, one that is dropped and made again is another. Each version has its own schema, so that going
back in time finds the columns of then.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate

from binlogd.errors import ConfigError
from binlogd.snapshot.publishing.lake.version import COMMIT_TS_KEY, LakeError, Registered
from binlogd.snapshot.spec import TableEntry

CATALOG_FILE = "catalog.db"


class Committer:
    """One catalog. Raises ConfigError where the user's own cannot be had."""

    def __init__(self, root: Path, catalog: str | None) -> None:
        self._catalog = _own_catalog(root) if catalog is None else _catalog_of(catalog)

    def commit(self, entry: TableEntry, files: list[Path], commit_ts: int) -> Registered:
        """Replaces the contents of a table, made if need be. Raises LakeError."""
        try:
            return self._commit(entry, files, commit_ts)
        except (CommitFailedException, ValidationError, ValueError, NotImplementedError) as error:
            raise LakeError("Iceberg", f"{entry.database}.{entry.table}", str(error)) from error

    def _commit(self, entry: TableEntry, files: list[Path], commit_ts: int) -> Registered:
        schema = pyarrow_to_schema(pq.read_schema(files[0]))
        table = self._table(entry, schema)
        known = _commit_ts_of(table)
        if known is not None and known >= commit_ts:
            return _registered(entry, table, is_new=False)
        properties = {COMMIT_TS_KEY: str(commit_ts)}
        with table.transaction() as changes:
            set_schema(changes, table, schema)
            if known is not None:
                changes.delete(AlwaysTrue(), snapshot_properties=properties)
            changes.add_files([file.absolute().as_uri() for file in files], properties)
        return _registered(entry, table.refresh(), is_new=True)

    def _table(self, entry: TableEntry, schema: Schema) -> Table:
        name = (entry.database, entry.table)
        try:
            return self._catalog.load_table(name)
        except NoSuchTableError:
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace((entry.database,))
            return self._catalog.create_table(name, schema)


def _own_catalog(root: Path) -> Catalog:
    root.mkdir(parents=True, exist_ok=True)
    place = root.absolute()
    return SqlCatalog("binlogd", uri=f"sqlite:///{place / CATALOG_FILE}", warehouse=place.as_uri())


def _catalog_of(name: str) -> Catalog:
    try:
        return load_catalog(name)
    except ValueError as error:
        raise ConfigError(
            f"the Iceberg catalog {name} is not configured ({error}): describe it in"
            " ~/.pyiceberg.yaml or in PYICEBERG_CATALOG__..."
        ) from error


def set_schema(changes: Transaction, table: Table, schema: Schema) -> None:
    """Makes this the schema of a table; the ids are TiDB's, not those that a catalog gives out."""
    if _same(table.schema(), schema):
        return
    numbers = [each.schema_id for each in table.metadata.schemas]
    same = next((each for each in table.metadata.schemas if _same(each, schema)), None)
    number = same.schema_id if same is not None else max(numbers) + 1
    fresh = Schema(*schema.fields, schema_id=number)
    updates = [] if same is not None else [AddSchemaUpdate(schema=fresh)]
    changes._apply(  # noqa: SLF001 - what update_schema() itself ends in; it gives out new ids
        (*updates, SetCurrentSchemaUpdate.model_validate({"schema-id": number})),
        (AssertCurrentSchemaId.model_validate({"current-schema-id": table.schema().schema_id}),),
    )


def _same(one: Schema, other: Schema) -> bool:
    return one.fields == other.fields


def _commit_ts_of(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return None
    text = snapshot.summary.additional_properties.get(COMMIT_TS_KEY)
    return int(text) if text else None


def _registered(entry: TableEntry, table: Table, *, is_new: bool) -> Registered:
    return Registered(entry.database, entry.table, version_of(table), is_new)


def version_of(table: Table) -> int:
    """The number of its newest snapshot; 0 for a table that has none."""
    snapshot = table.current_snapshot()
    return snapshot.snapshot_id if snapshot is not None else 0
