"""Whether a published snapshot is what its manifest says: files, sizes, hashes, rows, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from binlogd.errors import BinlogdError, ConfigError, Unfit
from binlogd.snapshot.formats import read_files
from binlogd.snapshot.formats.texts import checksum_text
from binlogd.snapshot.publishing.publish import read_manifest, why_none
from binlogd.snapshot.spec import MANIFEST_NAME, FileEntry, KeysEntry, Manifest, TableEntry


@dataclass(frozen=True, slots=True)
class TableCheck:
    """A table of a snapshot; `reason` is "" when it is what the manifest says. `is_read` is False
    where its rows were not read back, as only MySQL and TiDB read that format."""

    database: str
    table: str
    rows: int
    reason: str = ""
    is_read: bool = True


def opened(snapshot: Path) -> Manifest:
    """The manifest. Raises ConfigError where there is no snapshot."""
    try:
        return read_manifest(snapshot)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{snapshot} is no snapshot: {why_none(snapshot, error)}") from error


def check(
    snapshot: Path, manifest: Manifest, progress: Callable[[str, int, int], None] = lambda *_: None
) -> Iterator[TableCheck]:
    """Every table, and at the end whatever lies there that no table has. `progress` is told which
    table is read, how many bytes were, and how many there are."""
    total = sum(file.size_bytes for table in manifest.tables for file in table.files)
    done = 0
    for table in manifest.tables:
        progress(f"{table.database}.{table.table}", done, total)
        yield _table(snapshot, manifest, table)
        done += sum(file.size_bytes for file in table.files)
    progress("", total, total)
    there = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}
    unlisted = sorted(there - listed(manifest))
    if unlisted:
        yield TableCheck("", "", 0, f"files that the manifest does not name: {', '.join(unlisted)}")


def _table(snapshot: Path, manifest: Manifest, table: TableEntry) -> TableCheck:
    verdict = TableCheck(
        table.database, table.table, table.rows, is_read=read_files.can_be_read(manifest)
    )
    try:
        total = sum(_file(snapshot, manifest, table, file) for file in table.files)
    except (OSError, pa.ArrowException, BinlogdError) as error:
        return replace(verdict, reason=str(error))
    if sum(file.rows for file in table.files) != table.rows:
        return replace(verdict, reason="its files have another number of rows in the manifest")
    if verdict.is_read and checksum_text(total) != table.checksum:
        return replace(verdict, reason="its rows sum up to another checksum")
    return verdict


def _file(snapshot: Path, manifest: Manifest, table: TableEntry, file: FileEntry) -> int:
    _hashed(snapshot, file)
    if file.keys is not None:
        _hashed(snapshot, file.keys)
    if not read_files.can_be_read(manifest):
        return 0
    found = read_files.file_rows(snapshot, file, manifest, table)
    if found.rows != file.rows:
        raise Unfit(f"{file.name} has {found.rows} rows, the manifest says {file.rows}")
    if checksum_text(found.total) != file.checksum:
        raise Unfit(f"{file.name}: its rows sum up to another checksum")
    return found.total


def _hashed(snapshot: Path, entry: FileEntry | KeysEntry) -> None:
    path = snapshot / entry.name
    if not path.exists():
        raise Unfit(f"{entry.name} is missing")
    size = path.stat().st_size
    if size != entry.size_bytes:
        raise Unfit(f"{entry.name} has {size} bytes, the manifest says {entry.size_bytes}")
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != entry.sha256:
        raise Unfit(f"{entry.name} has changed: its SHA-256 is {digest}")


def listed(manifest: Manifest) -> set[str]:
    """The files of a snapshot, relative to it."""
    return {MANIFEST_NAME, *manifest.extra_files, *manifest.names()}
