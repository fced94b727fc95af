"""Records into a value log, each with a timestamp, and where each of them stands."""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.log import record
from binlogd.log.pointer import ValuePointer
from binlogd.pump.log.valuelog import ValueLog
from binlogd.tso import NO_TS, Tso


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
