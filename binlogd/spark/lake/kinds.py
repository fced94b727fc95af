"""What each kind of lake does to one table: a version in, the next version out.

Every method begins with the version that it is given, whatever came of the table behind that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from binlogd.errors import GaveUp
from binlogd.spark.lake.manifest import LakeTable, LakeTables
from binlogd.spark.lake.rows import KeyChanges

COMMIT_TS_KEY = "binlogd.commit_ts"
"""The property of a commit that tells the end of its batch."""


class LakeFailed(GaveUp):
    """A library of a lake cannot do what it is asked; in its words, with the place."""


class LakeKind(Protocol):
    """Delta or Iceberg; to be closed. All methods raise LakeFailed."""

    def create(
        self, table_id: int, directory: str, schema: pa.Schema, name: str, end: int
    ) -> LakeTable:
        """An empty table, in the place of what may be left there by a batch that was killed."""
        ...

    def append(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """More rows, whose keys are new."""
        ...

    def read(self, head: LakeTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Its rows with these columns of it."""
        ...

    def evolve(
        self, head: LakeTable, before: pa.Schema, schema: pa.Schema, end: int
    ) -> LakeTable | None:
        """The same files under other columns, of which new ones are NULL in them; None where the
        kind cannot say that without other files."""
        ...

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """These rows in the place of all others, with these columns."""
        ...

    def merge(
        self, head: LakeTable, schema: pa.Schema, changes: Iterable[KeyChanges], end: int
    ) -> LakeTable:
        """Rows put and rows gone, by key."""
        ...

    def append_files(
        self,
        head: LakeTable,
        before: pa.Schema,
        schema: pa.Schema,
        names: Sequence[str],
        end: int,
    ) -> LakeTable:
        """More rows, in files that are in its directory; no other file is read. With columns that
        come behind those before, or get wider where that is readable."""
        ...

    def show(self, now: LakeTables) -> None:
        """Lets readers find the tables by name, where the kind has such a thing."""
        ...

    def close(self) -> None:
        """Nothing is asked of it any more."""
        ...
