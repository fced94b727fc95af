"""Directories of a running export: owned by a lock, pinned input inside, swept when orphaned.

A job's directory holds `lock`, an flock that dies with its owner. Whoever comes later may remove a
directory whose lock is free, however its owner ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.spec import Segment

STAGING_PREFIX = ".staging-"
PINS_PREFIX = ".export-pins-"
_SHARD = re.compile(r"shard-(\d+)")
_SEGMENT = re.compile(r"(\d{6,})\.vlog")
_LINKS_ELSEWHERE = (errno.EXDEV, errno.EPERM, errno.EMLINK)


@contextmanager
def job_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A directory of this caller alone, removed at the end; leftovers of others are swept first.

    Raises ConfigError if it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent, prefix)
        making = Path(tempfile.mkdtemp(prefix=f".new{prefix}", dir=parent))
        path = parent / making.name.removeprefix(".new")
        lock = os.open(making / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.rename(path)  # nobody sees it without its lock
    except OSError as error:
        raise ConfigError(f"{parent}: no export can be written there: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(parent: Path, prefix: str) -> None:
    """Removes job directories whose owner is gone."""
    for path in parent.glob(f"{prefix}*"):
        if _is_orphan(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: Path) -> bool:
    try:
        lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


# --- the pinned input ------------------------------------------------------------------------


@contextmanager
def pinned(data_dir: Path, staging: Path) -> Iterator[tuple[Segment, ...]]:
    """The value logs of a data directory as they are now, whatever GC does meanwhile.

    Hard links beside the staging directory, or beside the log where that is another file system.
    Raises ConfigError where there is no log, Refused where its beginning is gone.
    """
    seen = _sizes(data_dir)
    with ExitStack() as stack:
        try:
            segments = _link(data_dir, staging / "input", seen)
        except OSError as error:
            if error.errno not in _LINKS_ELSEWHERE:
                raise
            pins = stack.enter_context(job_directory(data_dir, PINS_PREFIX))
            segments = _link(data_dir, pins / "input", seen)
        yield segments


def _sizes(data_dir: Path) -> dict[tuple[int, int], int]:
    """Bytes of each file, by shard and file id."""
    return {(shard, fid): path.stat().st_size for shard, fid, path in _files(data_dir)}


def _files(data_dir: Path) -> list[tuple[int, int, Path]]:
    found = []
    for directory in (data_dir / "pump").glob("shard-*"):
        shard = _SHARD.fullmatch(directory.name)
        for path in (directory / "value").glob("*.vlog"):
            name = _SEGMENT.fullmatch(path.name)
            if shard and name:
                found.append((int(shard[1]), int(name[1]), path))
    if not found:
        raise ConfigError(f"{data_dir} is no data directory: it has no pump/shard-*/value/*.vlog")
    return sorted(found)


def _link(data_dir: Path, into: Path, seen: dict[tuple[int, int], int]) -> tuple[Segment, ...]:
    """Links every file. Sizes are taken again, after all of `seen` had been."""
    segments = []
    for shard, fid, path in _files(data_dir):
        link = into / f"shard-{shard}" / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(path)
        segments.append(
            Segment(shard, fid, str(link), link.stat().st_size, seen.get((shard, fid), 0))
        )
    _refuse_headless(segments)
    return tuple(segments)


def _refuse_headless(segments: Sequence[Segment]) -> None:
    for shard in {each.shard for each in segments}:
        first = min(each.fid for each in segments if each.shard == shard)
        if first > 0:
            raise Refused(
                f"the log of shard {shard} begins with file {first}: GC removed what was before, so"
                " the state of the tables is not in the log any more"
            )
