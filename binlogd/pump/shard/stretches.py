"""Whether a shard's index has every commit that was filed, by the tallies of what was.

A stretch of the log that does not hold what its tally says is read, and its commits are looked for
one by one: see `log/tally.py` for what a database without checksums may lose.
"""

from __future__ import annotations

from contextlib import aclosing

from binlogd.binlog import BinlogType
from binlogd.log import tally
from binlogd.pump.log.segments import Segments
from binlogd.pump.shard.index import SqliteIndex
from binlogd.tso import MAX_TS, Tso
from binlogd.wire import peek


async def check_filed(index: SqliteIndex, segments: Segments, after: Tso) -> None:
    """Raises IndexUnavailable where the index lacks commits behind `after` that were filed;
    CorruptRecord or LogFailed of the log. What was compared once is not compared again."""
    if after >= index.compared_from:
        return
    for row in await index.database.query(tally.UNFIT, (after, MAX_TS)):
        stretch = tally.Tally(*row)
        async with aclosing(segments.scan(stretch.begin)) as batches:
            async for fid, records in batches:
                for offset, payload in records:
                    tp, start_ts, commit_ts, _ = peek.peek(payload)
                    if tp == BinlogType.PREWRITE or not commit_ts or (fid, offset) >= stretch.end:
                        continue
                    if not await index.has_commit(Tso(commit_ts), Tso(start_ts)):
                        raise index.database.found_damage(f"it lacks the commit at {commit_ts}")
                if (fid, records[-1][0]) >= stretch.end:
                    break
    index.compared_from = min(index.compared_from, after)
