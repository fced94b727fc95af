"""How a Drainer stands, for machines: metrics, whose positions are physical milliseconds, and its
part of `/status`.

Source: tidb-binlog drainer/metrics.go and docs of its alert rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from binlogd.drainer.measures import DrainerMeasuresStatistics, FileStatistics
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.statistics import DrainerState, DrainerStatistics
from binlogd.merge.merge import MergeStatistics, SourcePosition
from binlogd.relay.log import RelayStatistics
from binlogd.status import DownstreamStatus, DrainerStatus, FailureStatus, SourceStatus, TrashStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.telemetry.histogram import together
from binlogd.tso import Tso, behind_s, physical_ms


def say_drainer(out: Exposition, now: DrainerStatistics) -> None:
    """Everything about the replicating half."""
    if now.merge is not None:
        out.gauge(
            "binlog_drainer_pump_position",
            "Physical ms of what each source has promised.",
            [({"nodeID": s.name}, physical_ms(s.resolved_ts)) for s in now.merge.sources],
        )
        _say_sources(out, now.merge)
        out.counter(
            "binlogd_drainer_duplicates_dropped",
            "Transactions that arrived twice, since the session began.",
            now.merge.duplicates_dropped,
        )
    out.gauge(
        "binlog_drainer_checkpoint_tso",
        "Physical ms of the saved checkpoint.",
        physical_ms(now.checkpoint.commit_ts),
    )
    out.gauge(
        "binlogd_drainer_checkpoint_failed", "1 while it cannot be saved.", int(bool(now.not_saved))
    )
    out.gauge(
        "binlogd_drainer_applied_ts",
        "Physical ms up to which everything is applied.",
        physical_ms(now.applied_ts),
    )
    out.gauge(
        "binlogd_drainer_lag_seconds",
        "How far the applied lies behind the newest promise of any source; absent while not known.",
        now.lag_s,
    )
    out.gauge(
        "binlogd_drainer_state",
        "1 for the state it is in.",
        [({"state": each.value}, int(each is now.state)) for each in DrainerState],
    )
    out.counter("binlogd_drainer_sessions", "Begun since the start.", now.sessions_begun)
    out.counter(
        "binlogd_drainer_transactions_skipped",
        "For a reason that was logged; not those that filters leave out.",
        now.transactions_skipped,
    )
    ddls = now.sink.ddls_applied if now.sink is not None else 0
    _say_measures(out, now.measures, ddls)
    written = [each for each in (now.measures.relay, now.sink and now.sink.files) if each]
    _say_files(out, written)
    out.counter(
        "binlogd_drainer_values_in_doubt",
        "DDLs and transactions that left rows, or values of columns, in doubt.",
        now.values_in_doubt,
    )
    if now.sink is not None:
        _say_sink(out, now.sink)
    if now.relay is not None:
        _say_relay(out, now.relay)


def _say_measures(out: Exposition, now: DrainerMeasuresStatistics, ddls: int) -> None:
    out.counter(
        "binlog_drainer_event",
        "Rows handed to the sink, DDL replayed and checkpoints saved.",
        [({"type": kind}, count) for kind, count in (*now.events.items(), ("DDL", ddls))],
    )
    out.counter(
        "binlog_drainer_error_count",
        "Sessions that ended because bytes made no sense.",
        [({"type": "unmarshal_binlog"}, now.undecodable)],
    )
    out.histogram(
        "binlog_drainer_checkpoint_delay_seconds",
        "How old a checkpoint is when it is saved.",
        [({}, now.checkpoint_delay_seconds)],
    )
    out.histogram(
        "binlog_drainer_execute_duration_time",
        "Seconds to hand a transaction to the sink.",
        [({}, now.execute_seconds)],
    )
    out.histogram(
        "binlog_drainer_binlog_reach_duration_time",
        "Seconds from commit to the Drainer.",
        [({"nodeID": name}, seconds) for name, seconds in now.reach_seconds.items()],
    )
    out.histogram(
        "binlog_drainer_read_binlog_size",
        "Bytes of each binlog that was pulled.",
        [({"nodeID": name}, sizes) for name, sizes in now.read_sizes.items()],
    )


def _say_files(out: Exposition, now: Sequence[FileStatistics]) -> None:
    """Relay log and file sink together, as the original does."""
    out.histogram(
        "binlog_binlogfile_write_binlog_size",
        "Bytes of each write.",
        [({"label": "local"}, together(each.sizes for each in now))],
    )
    out.histogram(
        "binlog_binlogfile_write_binlog_duration_time",
        "Seconds of each write, its sync included.",
        [({"label": "local"}, together(each.seconds for each in now))],
    )


def _say_sources(out: Exposition, now: MergeStatistics) -> None:
    out.gauge(
        "binlogd_drainer_blocked_seconds",
        "For how long everything has been waiting for this source.",
        [
            ({"nodeID": each.name}, now.blocked_s if each.name == now.blocking else 0)
            for each in now.sources
        ],
    )
    out.gauge(
        "binlogd_drainer_source_silent_seconds",
        "Since a source promised something.",
        [({"nodeID": each.name}, each.silent_s) for each in now.sources],
    )
    out.gauge(
        "binlogd_drainer_source_reached",
        "0 while a source cannot be pulled.",
        [({"nodeID": each.name}, int(not each.trouble)) for each in now.sources],
    )
    out.gauge(
        "binlogd_drainer_source_state",
        "1 for what is known of a source: online, paused, or offline and not yet let go.",
        [({"nodeID": each.name, "state": each.state.value}, 1) for each in now.sources],
    )
    out.gauge(
        "binlogd_drainer_source_waiting_bytes",
        "Pulled of a source, and waiting for the others.",
        [({"nodeID": each.name}, each.bytes_waiting) for each in now.sources],
    )


def _say_sink(out: Exposition, now: SinkStatistics) -> None:
    out.counter(
        "binlog_drainer_ddl_jobs_total", "Statements replayed downstream.", now.ddls_applied
    )
    out.histogram(
        "binlog_drainer_query_duration_time",
        "Seconds that the downstream took to answer a statement.",
        [({"type": kind}, seconds) for kind, seconds in now.query_seconds.items()],
    )
    out.gauge(
        "binlog_drainer_queue_size",
        "Transactions that wait for a lane.",
        [({"name": "syncer_input"}, now.txns_queued)],
    )
    out.gauge("binlogd_drainer_rows_queued", "Rows that wait for a lane.", now.rows_queued)
    out.counter("binlogd_drainer_rows_applied", "Row changes applied.", now.rows_applied)
    out.counter("binlogd_drainer_txns_applied", "Transactions applied.", now.txns_applied)
    out.counter("binlogd_drainer_bytes_written", "Sent downstream.", now.bytes_written)
    out.counter("binlogd_drainer_retries", "Of statements and batches.", now.retries)
    out.counter(
        "binlogd_drainer_rows_not_found",
        "Rows to be changed that the downstream lacked (syncer.row-not-found).",
        now.rows_not_found,
    )
    out.counter(
        "binlogd_drainer_retries_by_kind",
        "Retries by what was in the way.",
        [({"kind": kind}, count) for kind, count in sorted(now.retries_by_kind.items())],
    )
    out.gauge(
        "binlogd_drainer_ddl_running_seconds",
        "How long the present DDL has been at work downstream; 0 for none.",
        now.ddl.elapsed_s if now.ddl else 0,
    )
    if now.trash is not None:
        out.gauge("binlogd_drainer_trash_tables", "Dropped upstream, kept.", now.trash.tables)
        out.gauge(
            "binlogd_drainer_trash_oldest_ts",
            "Physical ms when the oldest was dropped upstream; 0 when there is none.",
            physical_ms(now.trash.oldest_ts),
        )
        out.counter("binlogd_drainer_trash_dropped", "Tables that were too old.", now.trash.dropped)
    out.gauge(
        "binlogd_drainer_lane_ts",
        "Physical ms that each lane has reached.",
        [({"lane": str(lane)}, physical_ms(ts)) for lane, ts in enumerate(now.lane_ts)],
    )


def _say_relay(out: Exposition, now: RelayStatistics) -> None:
    out.gauge("binlogd_relay_files", "In the relay directory.", now.files)
    out.gauge("binlogd_relay_size_bytes", "Of all relay files.", now.size_bytes)
    out.gauge("binlogd_relay_last_ts", "Physical ms of its end.", physical_ms(now.last_ts))
    out.counter("binlogd_relay_bytes_appended", "Since the start.", now.bytes_appended)
    out.counter("binlogd_relay_entries_appended", "Transactions and DDL.", now.entries_appended)


# --- its part of `/status` ---------------------------------------------------------------------


def drainer_status(
    now: DrainerStatistics,
    newest: Tso,
    downstream: DownstreamStatus,
    *,
    node_id: str,
    node_state: str,
) -> DrainerStatus:
    """`newest` is the newest commit_ts that arrived anywhere; `node_state` is what operators have
    made of the Drainer."""
    sink = now.sink or SinkStatistics()
    trash = sink.trash
    failure = now.failure if now.state is not DrainerState.RUNNING else None
    return DrainerStatus(
        state=now.state.value,
        node_id=node_id,
        node_state=node_state,
        error=failure.sentence if failure else "",
        failure=FailureStatus(failure.kind, failure.message, failure.todo, Tso(failure.skip_ts))
        if failure
        else None,
        applied_ts=now.applied_ts,
        resolved_ts=now.resolved_ts,
        blocking=now.blocking,
        blocked_s=round(now.merge.blocked_s, 3) if now.merge else 0.0,
        sources=[_source(each, newest) for each in (now.merge.sources if now.merge else ())],
        sessions=now.sessions_begun,
        failed_in_a_row=now.failed_in_a_row,
        retry_in_s=round(now.retry_in_s, 1),
        skipped=now.transactions_skipped,
        values_in_doubt=now.values_in_doubt,
        expiring=now.expiring,
        transactions=sink.txns_applied,
        rows=sink.rows_applied,
        ddls=sink.ddls_applied,
        retries=sink.retries,
        retries_by_kind=sink.retries_by_kind,
        ddl=replace(sink.ddl, elapsed_s=round(sink.ddl.elapsed_s, 1)) if sink.ddl else None,
        lanes=sink.lane_ts,
        last_ddls=now.measures.ddls,
        busy_tables=now.measures.busy_tables,
        trash=TrashStatus(trash.tables, trash.oldest_ts, trash.dropped, trash.last_error)
        if trash
        else TrashStatus(),
        downstream=downstream,
    )


def _source(now: SourcePosition, newest: Tso) -> SourceStatus:
    return SourceStatus(
        name=now.name,
        state=now.state.value,
        resolved_ts=now.resolved_ts,
        lag_s=behind_s(now.resolved_ts, newest),
        binlogs_waiting=now.binlogs_waiting,
        silent_s=round(now.silent_s, 3),
        trouble=now.trouble,
    )
