"""Mends what `check.py` found: makes an index again, and writes a damaged segment without its
damage once a copy of it is safe.

The log is the truth, so an index costs nothing but time. What is unreadable in the log is lost, and
no repair brings it back: it takes the whole records into a new file, so that the rest can be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from binlogd.errors import ConfigError, CorruptRecord
from binlogd.host.disk import PosixDisk, disk_errors
from binlogd.log import record
from binlogd.log.directory import LOCK_FILE, VALUE, pump_directory
from binlogd.log.drive import DiskReading
from binlogd.log.index_file import FILES
from binlogd.log.pointer import MISSING, FileId, segment_fid
from binlogd.log.scan import survey
from binlogd.pump.checking.check import CheckReport, OnProgress, ShardReport, check
from binlogd.pump.kept_routing import kept_routing
from binlogd.pump.log.kind import entry_of
from binlogd.pump.shard.options import ShardOptions
from binlogd.pump.shard.shard import Shard
from binlogd.tso import NO_TS

log = structlog.get_logger(__name__)

_LOG_KINDS = ("record", "footer", "segment")


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done. `copies` are the segments as they were, `emptied` those that were missing and
    are there now, with nothing in them. `refused` are the shards that were left alone because their
    log is damaged and nobody said where to copy it; `in_the_way` are files for which another was
    left alone, because nobody but an operator knows whose they are."""

    indexes: tuple[str, ...]
    copies: tuple[str, ...]
    emptied: tuple[str, ...]
    refused: tuple[str, ...]
    in_the_way: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found, and after a repair what was done and what is found now."""

    report: CheckReport
    repaired: Repaired | None = None
    before: CheckReport | None = None


async def check_and_repair(
    directory: Path,
    disk: PosixDisk,
    on_progress: OnProgress,
    *,
    repairs: bool,
    copy_to: Path | None,
    options: ShardOptions,
) -> Checked:
    """Checks a data directory that no process uses, and with `repairs` mends it and checks again.

    Raises ConfigError when a process has it or there is nothing to check, LogFailed, DiskFull.
    """
    # before a lock file is left in a wrong place
    await kept_routing(pump_directory(directory), disk)
    with disk_errors(directory):
        lock = await disk.lock(directory / LOCK_FILE)
    try:
        report = await check(directory, disk, on_progress)
        if report.is_clean or not repairs:
            return Checked(report)
        done = await repair(directory, disk, report, options=options, copy_to=copy_to)
        return Checked(await check(directory, disk, on_progress), done, report)
    finally:
        await lock.release()


async def repair(
    directory: Path,
    disk: PosixDisk,
    report: CheckReport,
    *,
    options: ShardOptions,
    copy_to: Path | None,
) -> Repaired:
    """Repairs a data directory whose lock the caller holds.

    Raises ConfigError when `copy_to` holds copies already, LogFailed, DiskFull, CorruptRecord.
    """
    indexes, copies, emptied, refused, in_the_way = [], [], [], [], []
    for shard in report.shards:
        if not shard.findings:
            continue
        foreign = [finding.path for finding in shard.findings if finding.kind == "layout"]
        if foreign:
            in_the_way += foreign
            continue
        home = pump_directory(directory) / shard.name
        damaged = any(finding.kind in _LOG_KINDS for finding in shard.findings)
        if damaged and copy_to is None:
            refused.append(shard.name)
            continue
        with disk_errors(home):
            if damaged and copy_to is not None:
                copies += await _rewrite(home, shard, disk, copy_to / shard.name)
                emptied += await _put_empty(shard, disk)
            await disk.remove([home / name for name in FILES])
        opened = await Shard.open(home, name=shard.name, disk=disk, options=options, now_s=0.0)
        await opened.close()
        indexes.append(str(home / FILES[0]))
    return Repaired(*map(tuple, (indexes, copies, emptied, refused, in_the_way)))


async def _put_empty(shard: ShardReport, disk: PosixDisk) -> list[str]:
    """Where segments are missing, sealed ones with nothing in them: a log has no gaps."""
    missing = [finding.path for finding in shard.findings if finding.what == MISSING]
    for path in missing:
        await disk.write_whole(Path(path), record.footer(NO_TS))
        log.warning("segment_put_empty", path=path)
    return missing


async def _rewrite(home: Path, shard: ShardReport, disk: PosixDisk, copy_to: Path) -> list[str]:
    value = home / VALUE
    sizes = await disk.sizes(value)
    fids = {name: segment_fid(name) for name in sizes if name.endswith(".vlog")}
    newest = max(filter(None, fids.values()), default=FileId(0))
    damaged = {Path(each.path).name for each in shard.findings if each.kind in _LOG_KINDS}
    copies = []
    await disk.make_directory(copy_to)
    for name in sorted(damaged & sizes.keys()):
        fid = fids[name]
        if fid is None:
            continue
        copy = copy_to / name
        try:
            await disk.copy(value / name, copy)
        except FileExistsError as error:
            raise ConfigError(f"{copy} exists: name a directory without copies") from error
        size = sizes[name]
        if await disk.checksum(copy, size) != await disk.checksum(value / name, size):
            raise CorruptRecord(copy, 0, "the copy differs from the segment, which is left alone")
        await _write_readable(value / name, fid, size, disk, is_sealed=fid != newest)
        copies.append(str(copy))
        log.warning("segment_rewritten", path=str(value / name), copy=str(copy))
    return copies


async def _write_readable(
    path: Path, fid: FileId, size: int, disk: PosixDisk, *, is_sealed: bool
) -> None:
    """Puts a segment in place that has the whole records of this one and nothing else."""
    fresh = path.with_name(path.name + ".new")
    await disk.remove([fresh])
    reading, max_ts = DiskReading(disk, path, survey(record.FRAMING, size=size)), NO_TS
    file = await disk.open_append(fresh, create=True)
    try:
        async for batch in reading.batches():
            parts: list[bytes] = []
            for offset, payload in batch:
                try:
                    entry = entry_of(fid, offset, payload, lambda _: path)
                except CorruptRecord as error:
                    log.warning("record_left_out", path=str(path), offset=offset, cause=str(error))
                    continue
                max_ts = max(max_ts, entry.index_ts)
                parts += (record.header(payload), payload)
            await file.append(parts, sync=True)
        if is_sealed:
            await file.append([record.footer(max_ts)], sync=True)
    finally:
        await file.close()
    await disk.rename(fresh, path)
