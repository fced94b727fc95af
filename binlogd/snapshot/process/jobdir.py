"""Directories of a running export: owned by a lock, pinned input inside, swept when orphaned.

A job's directory holds `lock`, an flock that dies with its owner. Whoever comes later may remove a
directory whose lock is free, however its owner ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import ConfigError, Refused
from binlogd.log.directory import pump_directory, shard_name, shards_of, value_directory
from binlogd.log.gone import gone_ts
from binlogd.log.pointer import FIRST, FileId
from binlogd.snapshot.spec import PinnedSegment
from binlogd.tso import NO_TS, Tso

STAGING_PREFIX = ".staging-"
PINS_PREFIX = ".export-pins-"
_LINKS_ELSEWHERE = (errno.EXDEV, errno.EPERM, errno.EMLINK)


@contextmanager
def job_directory(
    parent: Path,
    prefix: str,
    *,
    is_wanted: Callable[[Path], bool] = lambda _: False,
    is_kept: Callable[[Path, BaseException], bool] = lambda *_: False,
) -> Iterator[Path]:
    """A directory of this caller alone, removed at the end; leftovers of others are swept first.

    They are swept once more at the end: processes of one that was killed may have written on for a
    moment. A leftover that `is_wanted` is taken over instead of a new one. `is_kept` tells of a
    directory and the error that ends its use whether it stays, for somebody who wants it. Raises
    ConfigError if none can be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path, lock = _taken_over(parent, prefix, is_wanted) or _made(parent, prefix)
        swept = sweep(parent, prefix)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is no directory" if is_file else error.strerror
        raise ConfigError(f"{parent}: no export can be written there: {why}") from error
    stays = False
    try:
        yield path
    except BaseException as error:
        stays = is_kept(path, error)
        raise
    finally:
        if not stays:
            shutil.rmtree(path, ignore_errors=True)
        for each in swept:
            _swept(each)
        os.close(lock)


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    making = Path(tempfile.mkdtemp(prefix=f".new{prefix}", dir=parent))
    path = parent / making.name.removeprefix(".new")
    lock = os.open(making / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    making.rename(path)  # nobody sees it without its lock
    return path, lock


def _taken_over(
    parent: Path, prefix: str, is_wanted: Callable[[Path], bool]
) -> tuple[Path, int] | None:
    """The newest leftover that is wanted, with its lock."""
    for path in sorted(parent.glob(f"{prefix}*"), key=_age):
        lock = _lock(path)
        if lock is None:
            continue
        if is_wanted(path):
            return path, lock
        os.close(lock)
    return None


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:  # its owner has just removed it
        return 0


def sweep(parent: Path, prefix: str) -> list[Path]:
    """Removes job directories whose owner is gone; these."""
    return [path for path in parent.glob(f"{prefix}*") if _swept(path)]


def _swept(path: Path) -> bool:
    lock = _lock(path)
    if lock is None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
    return True


def _lock(path: Path) -> int | None:
    """The lock of a directory whose owner is gone."""
    try:
        lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


# --- the pinned input ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pinned:
    """The input of an export. Transactions with a commit_ts above `gone_ts` are in it whole; GC
    may have removed others. With NO_TS it goes back to the first file."""

    segments: tuple[PinnedSegment, ...]
    gone_ts: Tso


@contextmanager
def pinned(data_dir: Path, staging: Path) -> Iterator[Pinned]:
    """The value logs of a data directory as they are now, whatever GC does meanwhile.

    Hard links beside the staging directory, or beside the log where that is another file system.
    Raises ConfigError where there is no log, Refused where nobody knows how much of it is gone.
    """
    seen = {(shard, fid): path.stat().st_size for shard, fid, path in log_files(data_dir)}
    with ExitStack() as stack:
        try:
            segments = _link(data_dir, staging / "input", seen)
        except OSError as error:
            if error.errno not in _LINKS_ELSEWHERE:
                raise
            pins = stack.enter_context(job_directory(data_dir, PINS_PREFIX))
            segments = _link(data_dir, pins / "input", seen)
        yield segments


def log_files(data_dir: Path) -> list[tuple[int, FileId, Path]]:
    """Shard, file id and path of each value log. Raises ConfigError where there is none."""
    return [
        (shard.number, fid, path)
        for shard in shards_of(data_dir)
        for fid, path in shard.segments().items()
    ]


def _link(data_dir: Path, into: Path, seen: dict[tuple[int, FileId], int]) -> Pinned:
    """Links every file. Sizes are taken again, after all of `seen`, by shard and file id, were."""
    segments = []
    for shard, fid, path in log_files(data_dir):
        link = into / shard_name(shard) / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # GC took it meanwhile, and has said so before
            link.hardlink_to(path)
            segments.append(
                PinnedSegment(shard, fid, str(link), link.stat().st_size, seen.get((shard, fid), 0))
            )
    return Pinned(tuple(segments), _gone_ts(data_dir, segments))


def _gone_ts(data_dir: Path, segments: Sequence[PinnedSegment]) -> Tso:
    """Up to where binlogs may be gone: what GC wrote down before it removed a file."""
    found = NO_TS
    for shard in {each.shard for each in segments}:
        fids = sorted(each.fid for each in segments if each.shard == shard)
        if fids != list(range(fids[0], fids[0] + len(fids))):
            raise Refused(f"the log of shard {shard} has files {fids}: some are missing in between")
        if fids[0] > FIRST.fid:
            value = value_directory(pump_directory(data_dir), shard)
            found = max(found, gone_ts(shard, value, fids[0]))
    return found
