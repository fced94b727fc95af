"""What a table of a lake holds after a snapshot was registered, or why it could not be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import ConfigError, GaveUp
from binlogd.snapshot.spec import Lake

COMMIT_TS_KEY = "binlogd.commit_ts"
"""The property of a table's commit that tells which moment it holds."""
_ELSEWHERE: dict[Lake, str] = {"delta": "%[0-9A-Fa-f]{2}", "iceberg": r"[?#\t\r\n]"}
"""What the libraries do not take as it is in a path: delta-rs decodes it, pyiceberg ends there."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A table of the lake. `version` is Delta's version or Iceberg's snapshot id; `is_new` is
    False where it held this commit_ts, or a later one, already."""

    database: str
    table: str
    version: int
    is_new: bool


def url_of(lake: Lake, path: Path) -> str:
    """Of a path of this machine, in which nothing is quoted. Raises ConfigError where the lake's
    library would look elsewhere."""
    if odd := re.search(_ELSEWHERE[lake], str(path)):
        raise ConfigError(f"{path}: no lake of {lake} can lie there: {odd[0]!r} is in its name")
    return f"file://{path}"


class LakeError(GaveUp):
    """A table of a lake that could not be committed; the snapshot itself is published."""

    def __init__(self, lake: str, table: str, reason: str) -> None:
        super().__init__(
            f"{lake} table {table}: {reason}",
            todo="the snapshot is published, and the same export again goes on with its tables",
        )
