"""A value log that is open for appending, and records into it, with where each of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from binlogd.log import record
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FIRST, ValuePointer
from binlogd.ports import Disk
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.tail import Acknowledged
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.tso import NO_TS, Tso

NOTHING_KNOWN = Acknowledged(upto=FIRST, same_boot=True)


async def recovered_log(
    directory: Path,
    disk: Disk,
    limits: LogLimits | None = None,
    acknowledged: Acknowledged = NOTHING_KNOWN,
    known: Sequence[Segment] = (),
) -> tuple[ValueLog, list[tuple[ValuePointer, bytes]]]:
    """An open log, and what its recovery found. Raises as that does."""
    limits = limits or LogLimits()
    segments = await Segments.open(directory, disk=disk, known=known)
    found = [
        (ValuePointer(fid, offset), payload)
        async for fid, batch in segments.recover(FIRST, acknowledged, limits.flush_bytes_max)
        for offset, payload in batch
    ]
    return await ValueLog.begin(segments, limits), found


async def appended(
    log: ValueLog, payloads: Sequence[bytes], index_ts: Sequence[Tso]
) -> list[ValuePointer]:
    """Appends them as one group. Raises as `ValueLog.append`."""
    at = await log.append(payloads, max(index_ts, default=NO_TS))
    pointers = []
    for payload in payloads:
        pointers.append(at)
        at = ValuePointer(at.fid, at.offset + record.HEADER_BYTES + len(payload))
    return pointers
