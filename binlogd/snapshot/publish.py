"""Makes a staged snapshot visible: manifest, then one rename, then the LATEST pointer.

A reader sees a snapshot whole or not at all. Data files are synced by the job that wrote them; here
the manifest and the directories are, in the order in which a crash may come between.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from binlogd.errors import Refused
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest
from binlogd.tso import NO_TS, Tso

LATEST = "LATEST"


def published_path(out: Path, commit_ts: Tso, from_ts: Tso = NO_TS) -> Path:
    """Where the snapshot of a moment is, or what changed behind `from_ts` up to there. Raises
    Refused if that is there already."""
    name = f"changes-{from_ts}-{commit_ts}" if from_ts else f"snapshot-{commit_ts}"
    path = out / name
    if path.exists():
        raise Refused(f"{path} is there already; remove it or choose another --out or --as-of")
    return path


def publish(staged: Path, out: Path, manifest: Manifest) -> Path:
    """Publishes what is staged in a directory of the same file system. Raises Refused."""
    from_ts = Tso(manifest.changes.from_ts if manifest.changes else NO_TS)
    target = published_path(out, Tso(manifest.commit_ts), from_ts)
    document = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with (staged / MANIFEST_NAME).open("wb") as file:
        file.write(document + b"\n")
        file.flush()
        os.fsync(file.fileno())
    _sync(staged)
    staged.rename(target)
    _sync(out)
    if manifest.changes is not None:
        return target
    pointer = out / f".{LATEST}-{os.getpid()}"
    pointer.unlink(missing_ok=True)
    pointer.symlink_to(target.name)
    pointer.replace(out / LATEST)
    _sync(out)
    return target


def read_manifest(snapshot: Path) -> Manifest:
    """The manifest of a published snapshot. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode((snapshot / MANIFEST_NAME).read_bytes(), type=Manifest)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
