"""A Dumpling dump as a base: which files it has, of which moment, and the rows in them.

A dump is a directory of `metadata` (whose `Pos` is the commit_ts that it was taken at) and
`DATABASE.TABLE[.NUMBER].sql` or `.csv`, also compressed; `dump_rows` reads those.
Source: pingcap/tidb dumpling/export (metadata.go, writer.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from binlogd.errors import ConfigError
from binlogd.snapshot.spec import MANIFEST_NAME
from binlogd.tso import Tso

METADATA = "metadata"
_POSITION = re.compile(r"^\s*Pos:\s*(\d+)\s*$", re.MULTILINE)
_LOG = re.compile(r"^\s*Log:\s*tidb-binlog\s*$", re.MULTILINE)
_DATA = re.compile(r"([^.]+)\.([^.]+)(?:\.\d+)?\.(sql|csv)(?:\.(?:gz|zst|gzip))?")
_NOT_ROWS = re.compile(r"-schema(?:-\w+)?\.sql")


class DumpFile(NamedTuple):
    """A data file; `name` is relative to the dump."""

    name: str
    is_csv: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """What a directory of Dumpling holds: data files by database and table, in lower case.

    Tables without rows may have no file.
    """

    directory: str
    commit_ts: Tso
    files: Mapping[tuple[str, str], tuple[DumpFile, ...]]
    tables: frozenset[tuple[str, str]]


def is_dump(directory: Path) -> bool:
    """Whether Dumpling finished a dump there, which is no snapshot."""
    return (directory / METADATA).is_file() and not (directory / MANIFEST_NAME).exists()


def read_dump(directory: Path) -> Dump:
    """What is in a dump. Raises ConfigError for one that no commit_ts is known of."""
    try:
        metadata = (directory / METADATA).read_text()
        names = sorted(path.name for path in directory.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{directory}: the dump cannot be read: {error}") from error
    position = _POSITION.search(metadata)
    if position is None or _LOG.search(metadata) is None:
        raise ConfigError(
            f"{directory / METADATA} has no `Log: tidb-binlog` with a `Pos`: only a dump of TiDB"
            " at one moment (--consistency snapshot, its default) can be built on"
        )
    files: dict[tuple[str, str], list[DumpFile]] = {}
    for name in names:
        found = _DATA.fullmatch(name)
        if found is not None and not _NOT_ROWS.search(name):
            files.setdefault(_key(found[1], found[2]), []).append(DumpFile(name, found[3] == "csv"))
    tables = {
        _key(*name.removesuffix("-schema.sql").split(".", 1))
        for name in names
        if name.endswith("-schema.sql") and "." in name.removesuffix("-schema.sql")
    }
    if not files and not tables:
        raise ConfigError(f"{directory}: the dump has no tables")
    return Dump(
        str(directory.absolute()),
        Tso(int(position[1])),
        {key: tuple(each) for key, each in files.items()},
        frozenset(tables | files.keys()),
    )


def _key(database: str, table: str) -> tuple[str, str]:
    return unquote(database).lower(), unquote(table).lower()
