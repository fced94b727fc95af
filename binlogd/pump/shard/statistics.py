"""How one shard stands, for who looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from binlogd.pump.log.measures import MeasuresStatistics
from binlogd.pump.shard.chaser import ChaserStatistics
from binlogd.pump.shard.index import LateRow
from binlogd.pump.shard.shard import Shard
from binlogd.tso import Tso

_LATE_SHOWN_MAX = 10


class ShardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Ages and `since` values are in seconds of the event loop's clock.

    `late_commits` came below the watermark since the start; of those of all lives `late_open` are
    not dealt with, and `first_late` are some of them.
    `index_damage` says what is wrong with the index while it is made again, "" if nothing is.
    """

    name: str
    max_commit_ts: Tso
    filed_ts: Tso
    gc_ts: Tso
    written_records: int
    written_bytes: int
    failed_records: int
    groups: int
    write_queue_records: int
    index_queue_records: int
    open_prewrites: int
    oldest_open_start_ts: Tso | None
    oldest_open_age_s: float | None
    late_commits: int
    late_open: int
    first_late: Sequence[LateRow]
    index_rebuilds: int
    index_damage: str
    segments: int
    log_bytes: int
    chaser: ChaserStatistics
    measures: MeasuresStatistics


def statistics_of(shard: Shard) -> ShardStatistics:
    """How it stands now; cheap."""
    now_s = asyncio.get_running_loop().time()
    oldest, filer, measures = shard.sorter.oldest, shard.filer, shard.log.measures
    return ShardStatistics(
        name=shard.name,
        max_commit_ts=shard.watermark,
        filed_ts=filer.filed_ts,
        gc_ts=filer.marks.gc_ts,
        written_records=measures.written_records,
        written_bytes=measures.written_bytes,
        failed_records=measures.failed_records,
        groups=measures.groups,
        write_queue_records=shard.queued_records,
        index_queue_records=filer.waiting,
        open_prewrites=shard.sorter.open_count,
        oldest_open_start_ts=None if oldest is None else oldest.start_ts,
        oldest_open_age_s=None if oldest is None else now_s - oldest.since_s,
        late_commits=filer.late_commits,
        late_open=filer.late_open,
        first_late=filer.late[:_LATE_SHOWN_MAX],
        index_rebuilds=filer.remade_count,
        index_damage=shard.index.database.damage or "",
        segments=len(shard.log.segments),
        log_bytes=sum(segment.size_bytes for segment in shard.log.segments),
        chaser=filer.statistics(now_s),
        measures=measures.statistics(),
    )
