"""Makes a published snapshot the next version of lakehouse tables, over the same Parquet files.

A snapshot is published first; its manifest stays the only thing that holds for all tables at once.
Then each table gets one commit that replaces all files and carries the commit_ts. Whoever dies in
between does it again: a table that has a commit_ts, or a later one, is left as it is.

The files get a second name (a hard link) below the lake's own directory, so that a snapshot can be
removed while a table's history still needs its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from binlogd.extras import importing
from binlogd.snapshot.publishing.lake.version import Registered
from binlogd.snapshot.spec import Lake, Manifest, TableEntry

Commit = Callable[[TableEntry, list[Path], int], Registered]
"""Makes files the contents of a table as of a commit_ts."""


def register(
    lake: Lake, root: Path, catalog: str | None, snapshot: Path, manifest: Manifest
) -> list[Registered]:
    """Commits every table of a snapshot into a lake with its tables below `root`; `catalog` names
    an Iceberg catalog of the user's own. Raises ConfigError where the library is missing, LakeError
    with the table that cannot be committed."""
    commit = _committer(lake, root, catalog)
    found = []
    for entry in manifest.tables:
        directory = root / snapshot_directory(entry)
        files = [_linked(snapshot / file.name, directory, manifest) for file in entry.files]
        found.append(commit(entry, files, manifest.commit_ts))
    return found


def snapshot_directory(entry: TableEntry) -> str:
    """The directory of a table, the same in a snapshot and in a lake."""
    return entry.files[0].name.partition("/")[0]


def _linked(file: Path, directory: Path, manifest: Manifest) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / f"{manifest.commit_ts}-{file.name}"
    if not link.exists():
        try:
            link.hardlink_to(file)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, link)
    return link


def _committer(lake: Lake, root: Path, catalog: str | None) -> Commit:
    with importing(lake):
        if lake == "delta":
            from binlogd.snapshot.publishing.lake.delta import commit

            return commit
        from binlogd.snapshot.publishing.lake.iceberg import Committer

        return Committer(root, catalog).commit
