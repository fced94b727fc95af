"""Which segments may go, and who needs those that may not.

A segment may go when it is sealed, wholly behind the point a restart scans from, and when neither
its own binlogs nor the commits of its prewrites are needed: all are at or below the age limit, the
watermark and every hold. Segments go oldest first, without gaps. There is no ten-minute rule for
long transactions as in the original: each segment knows the last commit of its prewrites.

Source: tidb-binlog pump/storage/storage.go, GC.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from binlogd.log.index_file import Segment
from binlogd.log.pointer import FileId
from binlogd.tso import Tso


class Hold(msgspec.Struct, frozen=True):
    """Somebody who still needs every binlog with commit_ts > ts."""

    name: str
    ts: Tso


class GcPlan(msgspec.Struct, frozen=True):
    """What may go now. `gc_ts` is at least the last one; `held_by` names who kept the next segment
    although its age would let it go, "" when nobody did."""

    fids: tuple[FileId, ...]
    gc_ts: Tso
    held_by: str


class Resume(msgspec.Struct, frozen=True):
    """The segment that a restart begins to scan in, and why: it stays, with all behind it."""

    fid: FileId
    reason: str


def plan(
    segments: Sequence[Segment], *, age_ts: Tso, holds: Sequence[Hold], resume: Resume, gc_ts: Tso
) -> GcPlan:
    """What may go of one shard's segments, given in order.

    `age_ts` is the age limit; `holds` has the watermark among them.
    """
    lowest = min(holds, key=lambda hold: hold.ts)
    limit = min(age_ts, lowest.ts)
    fids: list[FileId] = []
    for segment in segments:
        is_unknown = segment.is_sealed and segment.checksum is None
        is_scanned = segment.fid >= resume.fid
        if not segment.is_sealed or segment.gone_ts > limit or is_unknown or is_scanned:
            if not segment.is_sealed or segment.gone_ts > age_ts:
                return GcPlan(tuple(fids), gc_ts, "")
            reason = resume.reason if is_scanned else "its checksum, which is still to be taken"
            return GcPlan(tuple(fids), gc_ts, lowest.name if segment.gone_ts > limit else reason)
        fids.append(segment.fid)
        gc_ts = max(gc_ts, segment.gone_ts)
    return GcPlan(tuple(fids), gc_ts, "")
