"""Makes a staged snapshot visible: manifest, then one rename, then the LATEST pointer.

A reader sees a snapshot whole or not at all. Data files are synced by the job that wrote them; here
the manifest and the directories are, in the order in which a crash may come between. Doing it again
after a crash ends in the same.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from binlogd.errors import GaveUp, Refused
from binlogd.host.disk import sync_directory, write_whole
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest
from binlogd.tso import NO_TS, Tso

LATEST = "LATEST"
REMOVED_PREFIX = ".removed-"
_SNAPSHOT = re.compile(r"snapshot-(\d+)(?:-r(\d+))?")


class AlreadyThere(Refused):
    """The moment has its snapshot already; the text is its path."""


def published_name(commit_ts: Tso, from_ts: Tso = NO_TS) -> str:
    """What the snapshot of a moment is called, or what changed behind `from_ts` up to there."""
    return f"changes-{from_ts}-{commit_ts}" if from_ts else f"snapshot-{commit_ts}"


def published_path(out: Path, commit_ts: Tso, from_ts: Tso = NO_TS) -> Path | None:
    """Where it is, if it is there; the last one of several."""
    name = published_name(commit_ts, from_ts)
    there = _again(out, name) - 1
    return out / _numbered(name, there) if there else None


def check_free(out: Path, commit_ts: Tso, from_ts: Tso = NO_TS) -> None:
    """Raises AlreadyThere."""
    path = published_path(out, commit_ts, from_ts)
    if path is not None:
        raise AlreadyThere(str(path))


def _again(out: Path, name: str) -> int:
    """The first number that is free: 1 is the plain name, 2 is `-r2`."""
    number = 1
    while (out / _numbered(name, number)).exists():
        number += 1
    return number


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-r{number}"


def publish(staged: Path, out: Path, manifest: Manifest, *, is_again: bool = False) -> Path:
    """Publishes what is staged in a directory of the same file system.

    `is_again`: one more of a moment that has its snapshot. Raises AlreadyThere.
    """
    from_ts = Tso(manifest.changes.from_ts if manifest.changes else NO_TS)
    name = published_name(Tso(manifest.commit_ts), from_ts)
    number = _again(out, name)
    if number > 1 and not is_again:
        raise AlreadyThere(str(out / _numbered(name, number - 1)))
    target = out / _numbered(name, number)
    write_whole(staged / MANIFEST_NAME, manifest_document(manifest))
    staged.rename(target)
    sync_directory(out)
    point_to_latest(out)
    return target


def manifest_document(manifest: Manifest) -> bytes:
    """The content of its file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def point_to_latest(out: Path) -> None:
    """Lets LATEST name the snapshot of the latest moment, if it does not yet. Raises GaveUp."""
    newest = next(iter(snapshots(out)), None)
    pointer = out / LATEST
    if newest is None or (pointer.is_symlink() and os.readlink(pointer) == newest.name):
        return
    making = out / f".{LATEST}-{os.getpid()}"
    try:
        making.unlink(missing_ok=True)
        making.symlink_to(newest.name)
        making.replace(pointer)
        sync_directory(out)
    except OSError as error:
        with suppress(OSError):
            making.unlink(missing_ok=True)
        why = f"{pointer}: {error.strerror}; {newest.name} is published, and is not LATEST"
        raise GaveUp(why) from error


def snapshots(out: Path) -> Iterator[Path]:
    """The published snapshots of a directory, the latest moment first; changes are none."""
    found = []
    for path in out.glob("snapshot-*"):
        name = _SNAPSHOT.fullmatch(path.name)
        if name is not None and (path / MANIFEST_NAME).exists():
            found.append((int(name[1]), int(name[2] or 1), path))
    for *_, path in sorted(found, reverse=True):
        yield path


def remove_surplus(out: Path, keep: int) -> list[Path]:
    """Removes all snapshots but the `keep` latest. What it removed."""
    for leftover in out.glob(f"{REMOVED_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    removed = list(snapshots(out))[keep:]
    for path in removed:
        going = out / f"{REMOVED_PREFIX}{path.name}"
        with suppress(FileNotFoundError):  # somebody else removed it
            path.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    if removed:
        sync_directory(out)
    return removed


def why_none(place: Path, error: Exception) -> str:
    """Why `read_manifest` found no snapshot, and where one is that may be meant."""
    if not isinstance(error, OSError):
        return f"its {MANIFEST_NAME} does not decode: {error}"
    why = f"it has no readable {MANIFEST_NAME} ({error.strerror})"
    meant = place / LATEST
    return f"{why}; {meant} is the latest of those in it" if meant.is_dir() else why


def read_manifest(snapshot: Path) -> Manifest:
    """The manifest of a published snapshot. Raises OSError, ValueError."""
    return msgspec.json.decode((snapshot / MANIFEST_NAME).read_bytes(), type=Manifest)


def manifest_there(snapshot: Path) -> Manifest:
    """That of the snapshot of a moment which is asked for again. Raises Refused where it is
    damaged."""
    try:
        return read_manifest(snapshot)
    except (OSError, ValueError) as error:
        raise Refused(
            f"{snapshot} is there already, and {why_none(snapshot, error)}; remove it, and export"
            " that moment again"
        ) from error
