"""A Delta table for each table upstream, moved on batch by batch; knows nothing of Spark.

    root/tables.json            commit_ts, and each table with its directory and version
    root/table-<id>/            a Delta table: the columns upstream, and `_binlogd_key`
    root/_schema/<commit_ts>    the upstream's schema at that moment, for the next batch

A batch is a range of commit_ts. Per table it is at most two commits: one that takes the rows that
are there to the new columns, if a DDL changed them, and one MERGE of what the changed keys hold at
the end of the batch. Both carry the commit_ts as a `txn` action, so a batch that is done again
passes over what is committed. `tables.json` is written last: the versions that it names belong
together, and are one moment of the upstream.

Directories are named by table id, so RENAME moves nothing, and what TRUNCATE or DROP leaves behind
goes when no reader of the last `tables.json` can need it any more: with the batch after the next.
Source: Delta Transaction Log Protocol (txn).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from binlogd.errors import BinlogdError, CorruptRow, UnreadableRow
from binlogd.host.disk import write_whole
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.built_on import Source
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.tables.rewrite import Rewritten, Unconvertible
from binlogd.snapshot.writing.adapt import adapter
from binlogd.snapshot.writing.writer import Rows
from binlogd.tidb.model import Column
from binlogd.tidb.schema import SchemaTracker

TABLES_NAME = "tables.json"
KEY_COLUMN = "_binlogd_key"
COMMIT_TS_KEY = "binlogd.commit_ts"
ROWS_APP, SCHEMA_APP = "binlogd", "binlogd-schema"
_GONE = "_binlogd_gone"
_DIRECTORY = "table-"
_SCHEMAS = "_schema"


class PipelineStopped(BinlogdError):
    """A batch that cannot be applied as it is; everything before it is."""


class LakeTable(msgspec.Struct, frozen=True):
    """One table of the lake at the moment of `tables.json`."""

    table_id: int
    directory: str
    version: int


class LakeTables(msgspec.Struct, frozen=True):
    """Which tables there are, by `database.table`, complete up to `commit_ts`."""

    commit_ts: int
    tables: dict[str, LakeTable]


def read_tables(root: str) -> LakeTables:
    """What stands in a lake; nothing where nothing was written yet."""
    path = Path(root, TABLES_NAME)
    if not path.exists():
        return LakeTables(0, {})
    return msgspec.json.decode(path.read_bytes(), type=LakeTables)


@dataclass(frozen=True, slots=True)
class Batch:
    """A range of commit_ts: all tables before it, those that are wanted after it, and the schema
    that explains its rows."""

    end: int
    before: Mapping[int, TablePlan]
    after: Mapping[int, TablePlan]
    tracker: bytes
    types: TypeOptions


def check(root: str, batch: Batch, *, is_first: bool) -> None:
    """Whether rows from before the batch are in the lake. Raises PipelineStopped."""
    missing = [
        _label(plan)
        for table_id, plan in batch.after.items()
        if table_id in batch.before
        and not DeltaTable.is_deltatable(f"{root}/{_DIRECTORY}{table_id}")
    ]
    if missing:
        where = "where the pipeline begins" if is_first else "before this batch"
        raise PipelineStopped(
            f"{', '.join(missing)}: there already {where}, and its older rows are in no binlog that"
            " is read; begin at the beginning of the log (no --from), or leave it out (--except)"
        )


def prepare(root: str, batch: Batch) -> None:
    """Makes the tables that are new, and takes the others to their new columns.

    Raises PipelineStopped.
    """
    Path(root).mkdir(parents=True, exist_ok=True)
    for table_id, plan in batch.after.items():
        directory = f"{root}/{_DIRECTORY}{table_id}"
        try:
            if not DeltaTable.is_deltatable(directory):
                _create(directory, plan, batch)
            elif table_id in batch.before:
                _evolve(directory, batch.before[table_id], plan, batch)
        except (DeltaError, Unconvertible, CorruptRow, pa.ArrowInvalid) as error:
            raise PipelineStopped(f"{_label(plan)}: {directory}: {error}") from error


def merge(
    root: str, batch: Batch, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[int, int, int]]:
    """Puts the winners of some tables in place; they come sorted by table.

    Yields table id, rows put, rows gone. Raises PipelineStopped, UnreadableRow.
    """
    schemas = SchemaTracker.from_snapshot(batch.tracker)
    for table_id, winners in _by_table(batches):
        plan = batch.after[table_id]
        source = _decoded(plan, schemas, winners, batch.types)
        gone = sum(source[_GONE].to_pylist())
        try:
            _merge(f"{root}/{_DIRECTORY}{table_id}", source, batch.end)
        except DeltaError as error:
            raise PipelineStopped(f"{_label(plan)}: {error}") from error
        yield table_id, source.num_rows - gone, gone


def finish(root: str, batch: Batch) -> LakeTables:
    """Says which versions belong together, and removes what nobody can read any more."""
    last = read_tables(root)
    tables = {}
    for table_id, plan in batch.after.items():
        directory = f"{_DIRECTORY}{table_id}"
        version = DeltaTable(f"{root}/{directory}").version()
        tables[_label(plan)] = LakeTable(table_id, directory, version)
    now = LakeTables(batch.end, tables)
    if last.commit_ts >= batch.end:
        return last
    schemas = Path(root, _SCHEMAS)
    schemas.mkdir(exist_ok=True)
    write_whole(schemas / str(batch.end), batch.tracker)
    write_whole(Path(root, TABLES_NAME), msgspec.json.format(msgspec.json.encode(now), indent=1))
    kept = {each.directory for each in (*last.tables.values(), *tables.values())}
    for path in Path(root).glob(f"{_DIRECTORY}*"):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)
    for path in schemas.iterdir():
        if path.name != str(batch.end):
            path.unlink()
    return now


def schema_at(root: str, commit_ts: int) -> bytes | None:
    """The upstream's schema at the end of the last batch, if that is this moment."""
    path = Path(root, _SCHEMAS, str(commit_ts))
    return path.read_bytes() if path.exists() else None


def _label(plan: TablePlan) -> str:
    return f"{plan.database}.{plan.info.name}"


# --- columns -----------------------------------------------------------------------------------


def _columns(plan: TablePlan, types: TypeOptions) -> list[ArrowColumn]:
    return [arrow_column(each, types) for each in plan.columns]


def _schema(columns: Sequence[ArrowColumn]) -> pa.Schema:
    return pa.schema(
        [*((each.column.name, each.type) for each in columns), (KEY_COLUMN, pa.binary())]
    )


def _properties(app: str, end: int) -> CommitProperties:
    return CommitProperties(
        custom_metadata={COMMIT_TS_KEY: str(end)}, app_transactions=[Transaction(app, end)]
    )


def _create(directory: str, plan: TablePlan, batch: Batch) -> None:
    schema = _schema(_columns(plan, batch.types))
    write_deltalake(
        directory,
        schema.empty_table(),
        mode="error",
        name=_label(plan),
        commit_properties=_properties(SCHEMA_APP, batch.end),
    )


def _evolve(directory: str, before: TablePlan, after: TablePlan, batch: Batch) -> None:
    """Rows that are there, with the columns of now: by column id, as the snapshot does it."""
    was, now = _columns(before, batch.types), _columns(after, batch.types)
    if _schema(was) == _schema(now) and [each.column.id for each in was] == [
        each.column.id for each in now
    ]:
        return
    table = DeltaTable(directory)
    if (table.transaction_version(SCHEMA_APP) or 0) >= batch.end:
        return  # done before the batch was begun anew
    adapters = [adapter(column, _source(column.column, before, after.rewritten)) for column in now]
    schema, losses = _schema(now), dict[str, Counter[str]]()
    paths = table.file_uris()  # what reads by delta-rs cannot be read while delta-rs writes

    def adapted() -> Iterator[pa.RecordBatch]:
        for rows in (rows for path in paths for rows in pq.ParquetFile(path).iter_batches()):
            whole = pa.Table.from_batches([rows])
            arrays = [adapt(whole, losses) for adapt in adapters]
            keys = whole[KEY_COLUMN].combine_chunks()
            yield pa.RecordBatch.from_arrays([*arrays, keys], schema=schema)

    write_deltalake(
        directory,
        pa.RecordBatchReader.from_batches(schema, adapted()),
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=_properties(SCHEMA_APP, batch.end),
    )


def _source(column: Column, before: TablePlan, rewritten: Sequence[Rewritten]) -> Source | None:
    """The column that it was, and what MODIFY COLUMN did to its values; None for a new one."""
    held = {each.id: each for each in before.columns}
    replaced = {each.new.id: each for each in rewritten}
    steps: list[Rewritten] = []
    column_id = column.id
    while column_id not in held and column_id in replaced:  # ids only grow, so the chain ends
        steps.insert(0, replaced[column_id])
        column_id = replaced[column_id].old.id
    was = held.get(column_id)
    return Source(was.name, tuple(steps)) if was is not None else None


# --- rows --------------------------------------------------------------------------------------

_Winner = tuple[int, int, bytes, bytes, int]
"""op, schema_version, key, row, commit_ts."""


def _by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, list[_Winner]]]:
    current, winners = -1, list[_Winner]()
    for batch in batches:
        names = ("table_id", "op", "schema_version", "key", "row", "commit_ts")
        columns = (batch.column(name).to_pylist() for name in names)
        for table_id, *winner in zip(*columns, strict=True):
            if table_id != current:
                if winners:
                    yield current, winners
                current, winners = table_id, []
            winners.append((winner[0], winner[1], winner[2], winner[3], winner[4]))
    if winners:
        yield current, winners


def _decoded(
    plan: TablePlan, schemas: SchemaTracker, winners: Sequence[_Winner], types: TypeOptions
) -> pa.Table:
    rows, columns = Rows(plan, schemas), _columns(plan, types)
    values: list[list[Any]] = [[] for _ in columns]
    for op, version, _, row, commit_ts in winners:
        try:
            found = rows.decode(version, row) if op == Op.PUT else {}
        except CorruptRow as error:
            raise UnreadableRow(_label(plan), commit_ts, str(error)) from error
        except Unconvertible as error:
            raise PipelineStopped(f"{_label(plan)}: {error}") from error
        for column, into in zip(columns, values, strict=True):
            into.append(found.get(column.column.id))
    losses: Counter[str] = Counter()
    arrays = [column.build(of, losses) for column, of in zip(columns, values, strict=True)]
    keys = pa.array([key for _, _, key, _, _ in winners], pa.binary())
    gone = pa.array([op != Op.PUT for op, *_ in winners], pa.bool_())
    schema = _schema(columns).append(pa.field(_GONE, pa.bool_()))
    return pa.Table.from_arrays([*arrays, keys, gone], schema=schema)


def _merge(directory: str, source: pa.Table, end: int) -> None:
    table = DeltaTable(directory)
    if (table.transaction_version(ROWS_APP) or 0) >= end:
        return  # committed before the batch was begun anew
    (
        table.merge(
            source,
            predicate=f"target.{KEY_COLUMN} = source.{KEY_COLUMN}",
            source_alias="source",
            target_alias="target",
            commit_properties=_properties(ROWS_APP, end),
        )
        .when_matched_delete(predicate=f"source.{_GONE}")
        .when_matched_update_all(except_cols=[_GONE])
        .when_not_matched_insert_all(predicate=f"NOT source.{_GONE}", except_cols=[_GONE])
        .execute()
    )
