"""Iceberg by pyiceberg, in a SQLite catalog beside the tables, or in one that the user has.

TiDB's column ids are the field ids, in the files as in the tables: a renamed column stays what it
was, one that is dropped and made again is another. Each version has its own schema, so that going
back in time finds the columns of then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
)

from binlogd.snapshot.publishing.lake.catalogs import NamedCatalog
from binlogd.snapshot.publishing.lake.version import COMMIT_TS_KEY, LakeError, Registered
from binlogd.snapshot.spec import TableEntry

CATALOG_FILE = "catalog.db"


@contextmanager
def committing(
    root: Path, name: str | None
) -> Iterator[Callable[[TableEntry, list[Path], int], Registered]]:
    """Into one catalog, the user's of this name or our own: replaces the contents of a table, made
    if need be. That raises LakeError, CatalogFailed, and ConfigError where the user's own catalog
    cannot be had."""
    properties = {}
    if name is None:
        root.mkdir(parents=True, exist_ok=True)
        properties = {"type": "sql", "uri": catalog_uri(root), "warehouse": f"file://{root}"}
    with closing(NamedCatalog(name or "binlogd", properties)) as catalog:

        def commit(entry: TableEntry, files: list[Path], commit_ts: int) -> Registered:
            place = f"file://{files[0].parent}" if name is None else None
            act = partial(_commit, entry, files, commit_ts, place)
            return catalog.ask(f"{entry.database}.{entry.table}", act)

        yield commit


def catalog_uri(root: Path) -> str:
    """Of the catalog beside the tables, as SQLAlchemy takes any path."""
    from sqlalchemy import URL  # comes with pyiceberg's catalog, a second of CPU

    return str(URL.create("sqlite", database=str(root / CATALOG_FILE)))


def _commit(
    entry: TableEntry, files: list[Path], commit_ts: int, place: str | None, catalog: Catalog
) -> Registered:
    """A table that is new is made in its `place`; None is where the catalog has its tables."""
    try:
        schema = pyarrow_to_schema(pq.read_schema(files[0]))
        table = _table(entry, schema, place, catalog)
        known = _commit_ts_of(table)
        if known is not None and known >= commit_ts:
            return _registered(entry, table, is_new=False)
        properties = {COMMIT_TS_KEY: str(commit_ts)}
        with table.transaction() as changes:
            set_schema(changes, table, schema)
            if known is not None:
                changes.delete(AlwaysTrue(), snapshot_properties=properties)
            changes.add_files([f"file://{file}" for file in files], properties)
        return _registered(entry, table.refresh(), is_new=True)
    except (CommitFailedException, ValidationError, ValueError, NotImplementedError) as error:
        raise LakeError("Iceberg", f"{entry.database}.{entry.table}", str(error)) from error


def _table(entry: TableEntry, schema: Schema, place: str | None, catalog: Catalog) -> Table:
    name = (entry.database, entry.table)
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace((entry.database,))
        return catalog.create_table(name, schema, place)


def set_schema(changes: Transaction, table: Table, schema: Schema) -> None:
    """Makes this the schema of a table; the ids are TiDB's, not those that a catalog gives out."""
    _, updates = schema_updates(table.metadata, schema)
    if not updates:
        return
    changes._apply(  # noqa: SLF001 - what update_schema() itself ends in; it gives out new ids
        updates,
        (AssertCurrentSchemaId.model_validate({"current-schema-id": table.schema().schema_id}),),
    )


def set_spec(changes: Transaction, spec: PartitionSpec) -> None:
    """Makes a table without one partitioned; the ids are those of `set_schema`."""
    updates = AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate()
    changes._apply(updates)  # noqa: SLF001 - what update_spec() itself ends in; by names of columns


def schema_updates(held: TableMetadata, schema: Schema) -> tuple[int, tuple[TableUpdate, ...]]:
    """The number that a schema has in a table, and what makes it the current one."""
    same = next((each.schema_id for each in held.schemas if each.fields == schema.fields), None)
    if same == held.current_schema_id:
        return same, ()
    number = max(each.schema_id for each in held.schemas) + 1 if same is None else same
    current = SetCurrentSchemaUpdate.model_validate({"schema-id": number})
    if same is not None:
        return number, (current,)
    return number, (AddSchemaUpdate(schema=Schema(*schema.fields, schema_id=number)), current)


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
