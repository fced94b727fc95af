"""What a table of a lake holds after a snapshot was registered, or why it could not be."""

from __future__ import annotations

from dataclasses import dataclass

from binlogd.errors import GaveUp

COMMIT_TS_KEY = "binlogd.commit_ts"
"""The property of a table's commit that tells which moment it holds."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A table of the lake. `version` is Delta's version or Iceberg's snapshot id; `is_new` is
    False where it held this commit_ts, or a later one, already."""

    database: str
    table: str
    version: int
    is_new: bool


class LakeError(GaveUp):
    """A table of a lake that could not be committed; the snapshot itself is published."""

    def __init__(self, lake: str, table: str, reason: str) -> None:
        super().__init__(
            f"{lake} table {table}: {reason}",
            todo="the snapshot is published, and the same export again goes on with its tables",
        )
