"""Delta Lake by delta-rs: no JVM, no JAR.

Source: Delta Transaction Log Protocol (add, remove, metaData, txn; the feature timestampNtz).
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from binlogd.snapshot.publishing.lake.version import COMMIT_TS_KEY, LakeError, Registered
from binlogd.snapshot.spec import TableEntry

APP_ID = "binlogd"
"""Of the `txn` action whose version is the commit_ts: what makes a commit idempotent."""


def properties_of(commit_ts: int) -> CommitProperties:
    """What every commit of ours carries: delta-rs refuses one that is not above the last."""
    return CommitProperties(
        custom_metadata={COMMIT_TS_KEY: str(commit_ts)},
        app_transactions=[Transaction(APP_ID, commit_ts)],
    )


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Without what only our own files say of a column."""
    return pa.schema([field.remove_metadata() for field in schema])


def allow_wall_clock(
    table: DeltaTable, schema: pa.Schema, properties: CommitProperties | None = None
) -> None:
    """Makes the table one that may have timestamps without a zone, where these columns have some:
    a version of its own. Raises DeltaError."""
    has_wall_clock = any(field.type == pa.timestamp("us") for field in schema)
    if has_wall_clock and "timestampNtz" not in (table.protocol().reader_features or ()):
        table.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
            commit_properties=properties,
        )


def commit(entry: TableEntry, files: list[Path], commit_ts: int) -> Registered:
    """Replaces the contents of the table in whose directory the files are, made if need be. Raises
    LakeError."""
    try:
        return _commit(files[0].parent, entry, files, commit_ts)
    except DeltaError as error:
        raise LakeError("Delta", f"{entry.database}.{entry.table}", str(error)) from error


def _commit(directory: Path, entry: TableEntry, files: list[Path], commit_ts: int) -> Registered:
    arrow = without_metadata(pq.read_schema(files[0]))
    schema = Schema.from_arrow(arrow)
    rows = {Path(file.name).name: file.rows for file in entry.files}
    adding = [_action(file, rows, commit_ts) for file in files]
    actions: list[AddAction | RemoveAction] = [*adding]
    properties = properties_of(commit_ts)
    if not DeltaTable.is_deltatable(str(directory)):
        create_table_with_add_actions(
            str(directory), schema, adding, partition_by=[], commit_properties=properties
        )
        return _registered(entry, DeltaTable(str(directory)), is_new=True)
    table = DeltaTable(str(directory))
    if (table.transaction_version(APP_ID) or 0) >= commit_ts:
        return _registered(entry, table, is_new=False)
    allow_wall_clock(table, arrow)
    table.create_write_transaction(
        actions, "overwrite", schema, partition_by=[], commit_properties=properties
    )
    return _registered(entry, DeltaTable(str(directory)), is_new=True)


def _action(file: Path, rows: dict[str, int], commit_ts: int) -> AddAction:
    status = file.stat()
    stats = json.dumps({"numRecords": rows[file.name.removeprefix(f"{commit_ts}-")]})
    return AddAction(file.name, status.st_size, {}, status.st_mtime_ns // 1_000_000, True, stats)


def _registered(entry: TableEntry, table: DeltaTable, *, is_new: bool) -> Registered:
    return Registered(entry.database, entry.table, table.version(), is_new)
