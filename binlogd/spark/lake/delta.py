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

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from binlogd.host.clock import WallClock
from binlogd.snapshot.publishing.lake.delta import allow_wall_clock, properties_of, without_metadata
from binlogd.spark.lake.files import DataFile, LakeFiles
from binlogd.spark.lake.kinds import LakeFailed
from binlogd.spark.lake.manifest import LakeTable, LakeTables
from binlogd.spark.lake.place import LakeLocation

TIDY_EVERY = 100
"""Versions after which what nobody reads any more is removed."""
BOUND_CHARS_MAX = 64
_STATS = msgspec.json.Encoder(decimal_format="number")
_FAILS = (DeltaError, OSError, ValueError)
_COLOURS = re.compile(r"\x1b\[\d*m")


class Delta:
    """See Kind."""

    def __init__(self, place: LakeLocation) -> None:
        self._place, self._options = place, place.delta_options()

    def create(self, table: LakeTable, schema: pa.Schema, name: str, end: int) -> LakeTable:
        """See Kind."""
        where = self._place.table(table.directory)
        made = msgspec.structs.replace(table, rows=0, files=0)
        with self._telling(made):
            found = self._open(made) if DeltaTable.is_deltatable(where, self._options) else None
            is_made = found is None or found.metadata().partition_columns != _parts_of(table)
            if found is None or is_made:
                found = DeltaTable.create(
                    where,
                    without_metadata(schema),
                    "error" if found is None else "overwrite",
                    partition_by=_parts_of(table),
                    name=name,
                    storage_options=self._options,
                    commit_properties=properties_of(end),
                )
            head = self._head(found, made)
        # delta-rs opens anew what it has made: another attempt may have gone on with it by then
        return head if is_made and not head.rows else self.rewrite(head, schema, [], end)

    def files(self, head: LakeTable) -> list[DataFile]:
        """See Kind. A Delta log tells no bounds of bytes."""
        table = self._open(head, head.version)
        with self._telling(head):
            found = pa.table(table.get_add_actions())
        sizes = found["size_bytes"].to_pylist()
        names = map(unquote, found["path"].to_pylist())
        return [DataFile(name, size, None, None) for name, size in zip(names, sizes, strict=True)]

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
        return self._head(table, head)

    def replace(
        self, head: LakeTable, schema: pa.Schema, gone: Sequence[str], come: Sequence[str], end: int
    ) -> LakeTable:
        """See Kind."""
        return self._committed(head, self._at(head, end), schema, gone, come, end)

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, come: Sequence[str], end: int
    ) -> LakeTable:
        """See Kind."""
        table = self._at(head, end)
        with self._telling(head):
            allow_wall_clock(table, schema, properties_of(end))
        return self._committed(head, table, schema, None, come, end)

    def show(self, now: LakeTables) -> None:
        """See Kind. Readers find a table by its directory."""

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

    def _committed(
        self,
        head: LakeTable,
        table: DeltaTable,
        schema: pa.Schema,
        gone: Sequence[str] | None,
        come: Sequence[str],
        end: int,
    ) -> LakeTable:
        """`gone` None is all of them, and other columns perhaps."""
        fields, now_ms = Schema.from_arrow(without_metadata(schema)), WallClock().wall_ms()
        files, properties = LakeFiles(self._place, head), properties_of(end)
        mode = "overwrite" if gone is None else "append"
        properties.max_commit_retries = 0  # so that what is made is the very next version
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(each, data_change=True, deletion_timestamp=now_ms) for each in gone or ()
        ]
        with self._telling(head):
            if table.metadata().partition_columns != _parts_of(head):
                raise ValueError("is not laid out as tables.json says: somebody altered it")
            if (table.version() + 1) // TIDY_EVERY > head.version // TIDY_EVERY:
                table.vacuum(dry_run=False, full=True)
            actions += (_adding(files, each) for each in come)
            table.create_write_transaction(
                actions, mode, fields, _parts_of(head), commit_properties=properties
            )
        return self._head(self._open(head, table.version() + 1), head)

    def _head(self, table: DeltaTable, head: LakeTable) -> LakeTable:
        with self._telling(head):
            rows, files = table.count(), len(table.file_uris())
        version = table.version()
        return msgspec.structs.replace(head, version=version, rows=rows, files=files)

    @contextmanager
    def _telling(self, head: LakeTable) -> Iterator[None]:
        """What delta-rs says, with the place."""
        try:
            yield
        except _FAILS as error:
            where = f"{self._place.shown}/{head.directory}"
            raise LakeFailed(f"{where}: {_first_lines(error)}") from error


def _adding(files: LakeFiles, name: str) -> AddAction:
    """A file, with what readers pass it over by. Source: Delta Transaction Log Protocol, Per-file
    Statistics."""
    size, changed_ms = files.size(name)
    with files.opened(name) as opened:
        held = opened.metadata
        parts = _partition(files, opened)
    columns = [
        [held.row_group(part).column(at).statistics for part in range(held.num_row_groups)]
        for at in range(held.num_columns)
    ]
    found = {
        name: (min(each.min for each in of), max(each.max for each in of))
        for name, of in zip(held.schema.names, columns, strict=True)
        if name not in parts and all(each is not None and each.has_min_max for each in of)
    }
    bounds = {name: ends for name, ends in found.items() if all(map(_is_bound, ends))}
    stats = {
        "numRecords": held.num_rows,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": {
            name: sum(each.null_count for each in of)
            for name, of in zip(held.schema.names, columns, strict=True)
            if name not in parts and all(each is not None and each.has_null_count for each in of)
        },
    }
    return AddAction(name, size, parts, changed_ms, True, _STATS.encode(stats).decode())


def _parts_of(table: LakeTable) -> list[str]:
    return [each.column for each in table.layout.partition_by]


def _partition(files: LakeFiles, opened: pq.ParquetFile) -> dict[str, str | None]:
    """By column the value that all rows of a file have. Source: Delta Transaction Log Protocol,
    Partition Value Serialization. Raises ValueError for a text that it has no words for."""
    names = [each.column for each in files.layout.partition_by]
    if not names:
        return {}
    row = next(opened.iter_batches(1, columns=names)).to_pylist()[0]
    for name in (name for name in names if row[name] == ""):
        raise ValueError(
            f"a row has '' in {name}, which Delta reads as NULL where rows lie apart by it: leave"
            " the table out (--except), or take --cluster-by for it"
        )
    return {name: None if row[name] is None else str(row[name]) for name in names}


def _is_bound(bound: object) -> bool:
    """A bound that a log can tell, and is no text of the length of a row."""
    if isinstance(bound, str):
        return len(bound) <= BOUND_CHARS_MAX
    return isinstance(bound, bool | int | float | Decimal | date)


def _first_lines(error: Exception) -> str:
    """delta-rs draws a tree; what matters stands on its lines."""
    lines = [_COLOURS.sub("", line).strip(" \u21b3") for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line)
