"""What was exported into a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from binlogd.snapshot.process.jobdir import STAGING_PREFIX
from binlogd.snapshot.publishing.publish import LATEST, read_manifest
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot, or the changes of a while. It was made of a log of `log_bytes`, in `seconds`.
    `problem` says why its manifest cannot be read."""

    name: str
    commit_ts: int = 0
    time: str = ""
    from_ts: int = 0
    data_format: str = ""
    layout: str = ""
    tables: int = 0
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    left_out: int = 0
    base_ts: int = 0
    log_bytes: int = 0
    is_latest: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The exports of a directory, the latest moment first; `unfinished` are begun or were killed,
    and none of it is visible."""

    exports: tuple[Exported, ...]
    unfinished: int


def listing(out: Path) -> Listing:
    """Everything that was exported into a directory; [] where there is none."""
    latest = (out / LATEST).resolve().name
    found = [
        exported(path, is_latest=path.name == latest)
        for pattern in ("snapshot-*", "changes-*")
        for path in out.glob(pattern)
        if path.is_dir()
    ]
    found.sort(key=lambda each: (each.commit_ts, each.name), reverse=True)
    return Listing(tuple(found), sum(1 for _ in out.glob(f"{STAGING_PREFIX}*")))


def exported(path: Path, *, is_latest: bool) -> Exported:
    """One export."""
    try:
        return described(path.name, read_manifest(path), is_latest=is_latest)
    except (OSError, msgspec.DecodeError) as error:
        return Exported(path.name, problem=f"{MANIFEST_NAME}: {error}")


def described(name: str, manifest: Manifest, *, is_latest: bool) -> Exported:
    """What its manifest says of an export."""
    files = [file for table in manifest.tables for file in table.files]
    return Exported(
        name=name,
        commit_ts=manifest.commit_ts,
        time=manifest.time,
        from_ts=manifest.changes.from_ts if manifest.changes else 0,
        data_format=manifest.data_format,
        layout=manifest.layout,
        tables=len(manifest.tables),
        rows=sum(table.rows for table in manifest.tables),
        size_bytes=sum(file.size_bytes for file in files),
        seconds=manifest.seconds,
        left_out=len(manifest.left_out),
        base_ts=manifest.base.commit_ts if manifest.base else 0,
        log_bytes=sum(each.size_bytes for each in manifest.log),
        is_latest=is_latest,
    )
