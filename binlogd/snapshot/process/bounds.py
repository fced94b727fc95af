"""A moment far outside the log is refused before a JVM starts.

The job itself draws the exact line, out of all heads. What is looked at here is cheap: the clock,
and the first record of each shard's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from binlogd.errors import MalformedBinlog, Refused
from binlogd.log.drive import segment_batches
from binlogd.settings.moment import wall_clock
from binlogd.snapshot.spec import PinnedSegment
from binlogd.tso import MAX_TS, Tso, compose, plus_ms
from binlogd.wire.peek import peek

FAR_MS = 3_600_000
"""An hour: longer than a clock is wrong, and than a transaction is open that began before the first
one of a log."""


def check_moment(
    as_of: Tso, segments: Sequence[PinnedSegment], *, now_ms: int, has_base: bool
) -> None:
    """Raises Refused."""
    if as_of > compose(now_ms + FAR_MS):
        raise Refused(
            f"{as_of} ({wall_clock(as_of)}) lies in the future; name a moment that has passed, or"
            " `latest`"
        )
    begins = Tso(min(_first_ts(segments), default=MAX_TS))
    if not has_base and begins < MAX_TS and as_of < plus_ms(begins, -FAR_MS):
        raise Refused(
            f"{as_of} ({wall_clock(as_of)}) lies before {begins} ({wall_clock(begins)}), where the"
            " log begins: there is nothing to export; name a later moment, or a base"
        )


def _first_ts(segments: Sequence[PinnedSegment]) -> Iterator[Tso]:
    """The start_ts of the first binlog of each shard; what cannot be read is the job's to say."""
    first: dict[int, PinnedSegment] = {}
    for each in segments:
        if each.shard not in first or each.fid < first[each.shard].fid:
            first[each.shard] = each
    for segment in first.values():
        for batch in segment_batches(Path(segment.path), is_last=True):
            try:
                yield Tso(peek(batch[0][1]).start_ts)
            except MalformedBinlog:
                return
            break
