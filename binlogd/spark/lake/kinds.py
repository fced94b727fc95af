"""What each kind of lake knows of one table: a version in, the next version out.

Files with rows are the same in all of them (`files`); their names are in the directory of the
table. Every method begins with the version that it is given, whatever came of the table since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from binlogd.errors import GaveUp
from binlogd.spark.lake.files import DataFile
from binlogd.spark.lake.manifest import LakeTable, LakeTables


class LakeFailed(GaveUp):
    """A library of a lake cannot do what it is asked; in its words, with the place."""


class LakeKind(Protocol):
    """Delta or Iceberg. All methods raise LakeFailed."""

    def create(self, table: LakeTable, schema: pa.Schema, name: str, end: int) -> LakeTable:
        """An empty table in its directory, with its layout, in the place of what may be left there
        by a batch that was killed."""

    def files(self, head: LakeTable) -> list[DataFile]:
        """Those of the version."""

    def evolve(
        self, head: LakeTable, before: pa.Schema, schema: pa.Schema, end: int
    ) -> LakeTable | None:
        """The same files under other columns, of which new ones are NULL in them; the version
        itself where no column differs. None where the kind cannot say it without other files."""

    def replace(
        self, head: LakeTable, schema: pa.Schema, gone: Sequence[str], come: Sequence[str], end: int
    ) -> LakeTable:
        """Files that go and files that come, in one commit; the columns stay."""

    def rewrite(
        self, head: LakeTable, schema: pa.Schema, come: Sequence[str], end: int
    ) -> LakeTable:
        """These files in the place of all others, with these columns."""

    def show(self, now: LakeTables) -> None:
        """Lets readers find the tables by name, where the kind has such a thing."""
