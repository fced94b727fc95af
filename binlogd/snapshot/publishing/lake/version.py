"""What a table of a lake holds after a snapshot was registered."""

from __future__ import annotations

from dataclasses import dataclass

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
