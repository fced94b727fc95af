"""The Pump's numbers under their names; `*_ts` values are physical milliseconds.

Source: tidb-binlog pump/metrics.go, pump/storage/metrics.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

from binlogd.pump.pump import PumpStatistics
from binlogd.pump.rpc.service import ServiceStatistics
from binlogd.pump.shard.statistics import ShardStatistics
from binlogd.pump.state import NodeState
from binlogd.telemetry.exposition import Exposition
from binlogd.telemetry.histogram import together
from binlogd.tso import behind_s, physical_ms


def say_service(out: Exposition, now: ServiceStatistics) -> None:
    """What clients asked and how long it took."""
    out.histogram(
        "binlog_pump_rpc_duration_seconds",
        "Of each call; of PullBinlogs when it ends.",
        [
            ({"method": method, "label": label}, numbers)
            for method, by_label in (
                ("WriteBinlog", now.write_seconds),
                ("PullBinlogs", now.pull_seconds),
            )
            for label, numbers in by_label.items()
        ],
    )
    out.counter("binlog_pump_loss_binlog_count", "Writes refused or failed.", now.writes_lost)
    out.counter("binlogd_pump_writes", "WriteBinlog calls, probes included.", now.writes)
    out.gauge("binlogd_pump_writes_in_flight", "Not answered yet.", now.writes_in_flight)
    out.gauge("binlogd_pump_bytes_in_flight", "Held for those.", now.bytes_in_flight)
    out.gauge("binlogd_pump_writes_held_back", "Wait for memory.", now.writes_held_back)
    out.counter("binlogd_pump_bytes_received", "In WriteBinlog messages.", now.bytes_received)
    out.gauge("binlogd_pump_pullers", "PullBinlogs streams now.", now.pullers)
    out.counter("binlogd_pump_binlogs_sent", "To all pullers.", now.binlogs_sent)
    out.counter("binlogd_pump_bytes_sent", "To all pullers.", now.bytes_sent)


def say_pump(out: Exposition, now: PumpStatistics) -> None:
    """The log, its watermark and what holds it."""
    shards = now.shards
    ahead, what = now.from_the_future, "Binlogs whose timestamp lay far above every clock."
    out.counter("binlogd_pump_refused_from_the_future", what, ahead)
    out.gauge(
        "binlog_pump_storage_max_commit_ts",
        "Physical ms up to which everything can be pulled.",
        physical_ms(now.max_commit_ts),
    )
    gone = [physical_ms(shard.gc_ts) for shard in shards]
    out.gauge("binlog_pump_storage_gc_ts", "Physical ms; what is older may be gone.", max(gone))
    out.gauge("binlog_pump_storage_done_gc_ts", "Physical ms; what is older is gone.", min(gone))
    out.gauge(
        "binlog_pump_storage_storage_size_bytes",
        "Of the file system of the data directory.",
        [({"type": "capacity"}, now.gc.capacity_bytes), ({"type": "available"}, now.free_bytes)],
    )
    _say_storage(out, shards)
    out.counter(
        "binlog_pump_storage_query_tikv_count",
        "Questions about the fate of a transaction.",
        sum(resolver.asked for resolver in now.resolvers),
    )
    _say_chaser(out, shards)
    out.counter("binlogd_pump_fake_binlogs", "Written by this Pump.", now.fakes)
    out.gauge("binlogd_pump_write_queue_bytes", "Taken, not durable yet.", now.write_queue_bytes)
    coming, what = now.spooled_bytes_coming, "Of large binlogs that go to files of their own."
    out.gauge("binlogd_pump_spooled_bytes_coming", what, coming)
    out.gauge("binlogd_pump_free_bytes_min", "Writes stop below.", now.free_bytes_min)
    out.gauge(
        "binlogd_pump_gc_hold_ts",
        "Physical ms; who still needs what is newer.",
        [({"holder": hold.name}, physical_ms(hold.ts)) for hold in now.gc.holds],
    )
    out.gauge(
        "binlogd_pump_gc_held",
        "Shards with segments that are old enough to go, by who keeps them.",
        [
            ({"holder": holder}, count)
            for holder, count in Counter(now.gc.held_by).items()
            if holder
        ],
    )
    out.counter("binlogd_pump_gc_runs", "Rounds of garbage collection.", now.gc.runs)
    out.counter("binlogd_pump_gc_segments_deleted", "Since the start.", now.gc.segments_deleted)
    out.gauge(
        "binlogd_pump_gc_failed", "1 after a round that did nothing.", int(bool(now.gc.failed))
    )
    out.gauge("binlogd_pump_reserve_bytes", "To give up on a full disk.", now.gc.reserve_bytes)
    out.gauge(
        "binlogd_pump_writes_refused_now",
        "1 while no prewrite is taken, for want of space or by the state.",
        int(bool(now.refuses_because)),
    )
    out.counter(
        "binlogd_pump_rollbacks_contradicted",
        "Rollbacks of transactions that the store knew to be committed.",
        sum(resolver.contradicted for resolver in now.resolvers),
    )
    out.gauge(
        "binlogd_pump_state",
        "1 for the state it is in.",
        [({"state": each.value}, int(each is now.state)) for each in NodeState],
    )
    _say_shards(out, now)


def _say_chaser(out: Exposition, shards: Sequence[ShardStatistics]) -> None:
    out.counter(
        "binlog_pump_storage_slow_chaser_count",
        "By what it did.",
        [
            ({"type": "turned_on"}, sum(s.chaser.turned_on for s in shards)),
            ({"type": "turned_off"}, sum(s.chaser.recoveries for s in shards)),
            ({"type": "catch_up"}, sum(s.chaser.catch_ups for s in shards)),
            ({"type": "recovery"}, sum(s.chaser.recoveries for s in shards)),
        ],
    )


def _say_storage(out: Exposition, shards: Sequence[ShardStatistics]) -> None:
    """What the original's storage counts, over all shards."""
    measures = [shard.measures for shard in shards]
    errors = Counter(write_binlog=sum(shard.failed_records for shard in shards))
    for each in measures:
        errors.update(each.errors)
    out.counter(
        "binlog_pump_storage_error_count",
        "By what failed.",
        [({"type": kind}, count) for kind, count in sorted(errors.items())],
    )
    out.counter(
        "binlog_pump_storage_deleted_kv_total",
        "Rows of the index that garbage collection has deleted.",
        sum(each.deleted_rows for each in measures),
    )
    out.histogram(
        "binlog_pump_storage_write_binlog_size",
        "Bytes of each binlog, and of each group that one sync made durable.",
        [
            ({"type": kind}, together(each.sizes[kind] for each in measures))
            for kind in measures[0].sizes
        ],
    )
    out.histogram(
        "binlog_pump_storage_write_binlog_duration_time",
        "Seconds: a binlog from taken to durable, a group, its write, its sync, a new segment.",
        [
            ({"type": kind}, together(each.seconds[kind] for each in measures))
            for kind in measures[0].seconds
        ],
    )
    out.histogram(
        "binlog_drainer_slow_chaser_catchup_time_seconds",
        "Of each read of the log for the index; a Pump's number, whatever its name says.",
        [({}, together(each.chase_seconds for each in measures))],
    )


def _say_shards(out: Exposition, now: PumpStatistics) -> None:
    shards = now.shards
    out.gauge(
        "binlogd_shard_watermark_lag_seconds",
        "Upstream time between the newest commit that arrived and what can be pulled.",
        [
            ({"shard": each.name}, lag_s)
            for each in shards
            if (lag_s := behind_s(each.max_commit_ts, now.newest_commit_ts)) is not None
        ],
    )
    for say, family in ((out.gauge, _SHARD_GAUGES), (out.counter, _SHARD_COUNTERS)):
        for name, meaning in family.items():
            value = _MADE.get(name) or attrgetter(name)
            samples = [({"shard": shard.name}, value(shard)) for shard in shards]
            say(f"binlogd_shard_{name}", meaning, samples)


_SHARD_GAUGES = {
    "max_commit_ts": "Physical ms up to which everything can be pulled.",
    "open_prewrites": "Transactions without an outcome.",
    "oldest_open_age_seconds": "Of the transaction that holds the watermark.",
    "write_queue_records": "Taken, not durable yet.",
    "index_queue_records": "Durable, not filed yet.",
    "segments": "Files of the value log.",
    "log_bytes": "Of the value log.",
    "chaser_on": "1 while the index is fed from the log.",
}
_SHARD_COUNTERS = {
    "written_records": "Since the start.",
    "chaser_records_read": "Fed to the index from the log.",
    "written_bytes": "Since the start, payloads only.",
    "groups": "Writes of the value log, each with one fdatasync.",
    "late_commits": "Below the watermark when they came.",
    "index_rebuilds": "Indexes that were damaged in use and made again from the log.",
}
_MADE: dict[str, Callable[[ShardStatistics], float]] = {
    "max_commit_ts": lambda shard: physical_ms(shard.max_commit_ts),
    "oldest_open_age_seconds": lambda shard: shard.oldest_open_age_s or 0.0,
    "chaser_on": lambda shard: int(shard.chaser.is_on),
    "chaser_records_read": lambda shard: shard.chaser.records_read,
}
"""What is no field of the statistics by its name."""
