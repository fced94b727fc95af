"""Versions of Delta tables, by delta-rs.

A table whose last version is not the one it should begin with (a batch was killed) is restored
first; readers of `tables.json` see nothing of either.

Invariant. The version that a method returns holds what that call made, whatever another attempt of
the same task does meanwhile. Why it holds: a call goes on with the state of its own last commit and
never looks for the newest one, and each commit, a restore too, carries the end of its batch as a
`txn` action: delta-rs refuses one that another attempt's came before.
Source: Delta Transaction Log Protocol (txn); deltalake.DeltaTable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import SubTreeFileSystem

from binlogd.snapshot.publishing.lake.delta import properties_of, without_metadata
from binlogd.spark.lake.kinds import LakeFailed
from binlogd.spark.lake.manifest import LakeTable, LakeTables
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import KEY_COLUMN, KeyChanges

TIDY_EVERY = 100
"""Versions after which small files are put together, and what nobody reads any more is removed."""
READ_ROWS = 32_768
_GONE = "_binlogd_gone"
_FAILS = (DeltaError, OSError)
_COLOURS = re.compile(r"\x1b\[\d*m")


class Delta:
    """See Kind."""

    def __init__(self, place: LakeLocation) -> None:
        self._place, self._options = place, place.delta_options()

    def create(
        self, table_id: int, directory: str, schema: pa.Schema, name: str, end: int
    ) -> LakeTable:
        """See Kind."""
        where, made = (
            self._place.table(directory),
            LakeTable(table_id, directory, 0, rows=0, files=0),
        )
        with self._telling(made):
            if not DeltaTable.is_deltatable(where, self._options):
                DeltaTable.create(
                    where,
                    without_metadata(schema),
                    name=name,
                    storage_options=self._options,
                    commit_properties=properties_of(end),
                )
                return made
        return self.rewrite(_head(made, self._open(made)), schema, [], end)

    def append(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """See Kind."""
        return self._written(head, schema, rows, end, mode="append")

    def read(self, head: LakeTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See Kind."""
        # not by delta-rs, but for the log, now: what reads by it cannot be read while it writes
        system, path = self._place.filesystem(head.directory)
        files, plain = SubTreeFileSystem(path, system), without_metadata(schema)
        table = self._open(head, head.version)
        with self._telling(head):
            found = table.to_pyarrow_dataset(filesystem=files, schema=plain)
            rows = found.to_batches(batch_size=READ_ROWS)
        return (each for each in rows if each.num_rows)

    def evolve(
        self, head: LakeTable, before: pa.Schema, schema: pa.Schema, end: int
    ) -> LakeTable | None:
        """See Kind. Files tell columns by name: new ones can be added, behind the others."""
        now = {each.name: each for each in schema}
        held = [(each, now.pop(each.name, None)) for each in before]
        if any(new is None or not old.equals(new, check_metadata=True) for old, new in held):
            return None
        if not now:
            return head
        table, added = self._at(head, end), without_metadata(pa.schema(now.values()))
        with self._telling(head):
            fields = Schema.from_arrow(added).fields
            table.alter.add_columns(fields, commit_properties=properties_of(end))
        return _head(head, table)

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """See Kind."""
        return self._written(head, schema, rows, end, mode="overwrite")

    def merge(
        self, head: LakeTable, schema: pa.Schema, changes: Iterable[KeyChanges], end: int
    ) -> LakeTable:
        """See Kind. A MERGE for each of `changes`; done again they come to the same."""
        table = self._at(head, end)
        with self._telling(head):
            for each in changes:
                done = _merge(table, _source(without_metadata(schema), each), end)
                put = done["num_target_rows_inserted"] + done["num_target_rows_updated"]
                if put != each.puts.num_rows:
                    raise OSError(f"a MERGE of {each.puts.num_rows} rows put {put}")
            if table.version() // TIDY_EVERY > head.version // TIDY_EVERY:
                table.optimize.compact(commit_properties=properties_of(end))
                table.vacuum(dry_run=False, full=True)
        return _head(head, table)

    def append_files(
        self,
        head: LakeTable,
        before: pa.Schema,
        schema: pa.Schema,
        names: Sequence[str],
        end: int,
    ) -> LakeTable:
        """See Kind. Columns are a commit of their own."""
        evolved = self.evolve(head, before, schema, end)
        assert evolved is not None, "columns only come"
        table, fields = self._at(evolved, end), Schema.from_arrow(without_metadata(schema))
        with self._telling(head):
            if (table.version() + 1) // TIDY_EVERY > head.version // TIDY_EVERY:
                table.vacuum(dry_run=False, full=True)
            properties = properties_of(end)
            properties.max_commit_retries = 0  # so that what is made is the very next version
            actions: list[AddAction | RemoveAction] = [self._adding(head, each) for each in names]
            table.create_write_transaction(actions, "append", fields, commit_properties=properties)
        return LakeTable(head.table_id, head.directory, table.version() + 1)

    def _adding(self, head: LakeTable, name: str) -> AddAction:
        """A file with what readers pass it over by: from when to when its changes are."""
        system, path = self._place.filesystem(head.directory)
        info = system.get_file_info(f"{path}/{name}")
        held = pq.read_metadata(info.path, filesystem=system)
        first = [held.row_group(each).column(0).statistics for each in range(held.num_row_groups)]
        column = held.schema.column(0).name
        stats = {
            "numRecords": held.num_rows,
            "minValues": {column: min(each.min for each in first)},
            "maxValues": {column: max(each.max for each in first)},
        }
        changed_ms = (info.mtime_ns or 0) // 1_000_000
        return AddAction(name, info.size, {}, changed_ms, True, json.dumps(stats))

    def show(self, now: LakeTables) -> None:
        """See Kind. Readers find a table by its directory."""

    def close(self) -> None:
        """See Kind. Nothing is open."""

    # --- the table -----------------------------------------------------------------------------

    def _at(self, head: LakeTable, end: int) -> DeltaTable:
        """The table with the rows and columns of this version."""
        table = self._open(head)
        if table.version() != head.version:
            with self._telling(head):
                table.restore(head.version, commit_properties=properties_of(end))
        return table

    def _open(self, head: LakeTable, version: int | None = None) -> DeltaTable:
        where = self._place.table(head.directory)
        with self._telling(head):
            return DeltaTable(where, version, storage_options=self._options)

    def _written(
        self,
        head: LakeTable,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch],
        end: int,
        mode: Literal["append", "overwrite"],
    ) -> LakeTable:
        table, plain = self._at(head, end), without_metadata(schema)
        bare = (pa.RecordBatch.from_arrays(each.columns, schema=plain) for each in rows)
        with self._telling(head):
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(plain, bare),
                mode=mode,
                schema_mode="overwrite" if mode == "overwrite" else None,
                commit_properties=properties_of(end),
            )
        return _head(head, table)

    @contextmanager
    def _telling(self, head: LakeTable) -> Iterator[None]:
        """What delta-rs says, with the place."""
        try:
            yield
        except _FAILS as error:
            where = f"{self._place.shown}/{head.directory}"
            raise LakeFailed(f"{where}: {_first_lines(error)}") from error


def _head(head: LakeTable, table: DeltaTable) -> LakeTable:
    rows, files = table.count(), len(table.file_uris())
    return LakeTable(head.table_id, head.directory, table.version(), rows=rows, files=files)


def _source(schema: pa.Schema, changes: KeyChanges) -> pa.Table:
    """Rows put, and behind them the keys of rows gone."""
    count = len(changes.gone)
    nothing = [pa.nulls(count, field.type) for field in schema if field.name != KEY_COLUMN]
    gone = pa.Table.from_arrays([*nothing, changes.gone], schema=schema)
    puts = pa.Table.from_arrays(changes.puts.columns, schema=schema)
    flags = np.repeat([False, True], [puts.num_rows, count])
    return pa.concat_tables([puts, gone]).append_column(_GONE, pa.array(flags))


def _merge(table: DeltaTable, source: pa.Table, end: int) -> dict[str, int]:
    """What delta-rs counted."""
    return (
        table.merge(
            source,
            predicate=f"target.{KEY_COLUMN} = source.{KEY_COLUMN}",
            source_alias="source",
            target_alias="target",
            commit_properties=properties_of(end),
        )
        .when_matched_delete(predicate=f"source.{_GONE}")
        .when_matched_update_all(except_cols=[_GONE])
        .when_not_matched_insert_all(predicate=f"NOT source.{_GONE}", except_cols=[_GONE])
        .execute()
    )


def _first_lines(error: Exception) -> str:
    """delta-rs draws a tree; what matters stands on its lines."""
    lines = [_COLOURS.sub("", line).strip(" \u21b3") for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line)
