"""Deletes the segments of a shard that nobody needs, and what its index has of them.

Invariant. Whenever the power goes, the next start finds no segment missing: it is kept beside the
log how far that is gone, the index forgets the segments, and then only their files are removed.

Source: tidb-binlog pump/storage/storage.go, GC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from binlogd.errors import CorruptRecord
from binlogd.host.disk import disk_errors
from binlogd.log import gone, record
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FileId
from binlogd.pump.log.gc import GcPlan, Hold, Resume, plan
from binlogd.pump.log.segments import Segments
from binlogd.pump.shard.index_database import IndexDatabase, Statement
from binlogd.pump.shard.shard import Shard
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

_PIECE = 2_000  # rows deleted in one transaction: filing waits for no more than that
_KEYS = {"prewrites": "start_ts", "commits": "commit_ts, start_ts", "rollbacks": "start_ts"}


async def collect(shard: Shard, age_ts: Tso, holds: Sequence[Hold]) -> GcPlan:
    """Deletes what may go. Raises CorruptRecord, LogFailed, IndexUnavailable."""
    filer, segments = shard.filer, shard.log.segments
    await filer.know_needs()
    marks, oldest = filer.marks, shard.sorter.oldest
    who = None if oldest is None else f"the open prewrite of start_ts {oldest.start_ts}"
    planned = plan(
        list(segments),
        age_ts=age_ts,
        holds=(*holds, Hold(who or "the watermark", marks.max_commit_ts)),
        resume=Resume(filer.resume.fid, who or "the index, which is behind"),
        gc_ts=marks.gc_ts,
    )
    if planned.fids:
        first_fid = FileId(max(planned.fids) + 1)
        await confirm(segments, [each for each in segments if each.fid < first_fid])
        with disk_errors(segments.directory):
            await gone.note(segments.directory, segments.disk, planned.gc_ts, first_fid)
        await filer.forget(planned.fids, planned.gc_ts)
        await segments.delete(planned.fids)
        log.info("segments_deleted", shard=shard.name, fids=planned.fids, gc_ts=planned.gc_ts)
    marks, deleted = filer.marks, 1
    while deleted and not shard.is_closing:  # ends when no row of a deleted segment is left
        database = shard.index.database
        deleted = await forget_rows(database, first_fid=marks.first_fid, upto=marks.gc_ts)
        shard.log.measures.deleted_rows += deleted
    return planned


async def confirm(segments: Segments, going: Iterable[Segment]) -> None:
    """Compares sealed segments on disk with what is remembered of them, before they go.

    Raises LogFailed, or CorruptRecord when size, footer or (where there is none) checksum differ.
    """
    for segment in going:
        path = segments.path(segment.fid)
        at = max(0, segment.size_bytes - record.FOOTER_BYTES)
        with disk_errors(path):
            (tail,) = await segments.disk.read(path, [(at, record.FOOTER_BYTES + 1)])
            footer_ts = record.footer_ts(tail)
            if footer_ts is not None and footer_ts == segment.max_ts:
                continue
            if footer_ts is None and at + len(tail) == segment.size_bytes:
                found = await segments.disk.checksum(path, segment.size_bytes)
                if found == segment.checksum:
                    continue
        raise CorruptRecord(path, at, f"size or footer is not as remembered: {segment}")


async def forget_rows(database: IndexDatabase, *, first_fid: FileId, upto: Tso) -> int:
    """Deletes some rows, with timestamps <= upto, of segments before `first_fid`.

    Returns how many; call again until it is 0. Raises IndexUnavailable.
    """
    statements: list[Statement] = []
    for table, key in _KEYS.items():
        first = key.partition(",")[0]
        statement = (
            f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table}"
            f" WHERE {first} <= ? AND fid < ? LIMIT {_PIECE})"
        )
        statements.append((statement, [(upto, first_fid)]))
    return await database.transact(statements)
