"""The Drainer's part of `/status`."""

from __future__ import annotations

from msgspec.structs import replace

from binlogd.drainer.ddl.trash_names import TrashStatistics
from binlogd.drainer.drainer import DrainerState, DrainerStatistics
from binlogd.drainer.sink import SinkStatistics
from binlogd.errors import Failure
from binlogd.merge.merge import SourcePosition
from binlogd.status import DownstreamStatus, DrainerStatus, FailureStatus, SourceStatus, TrashStatus
from binlogd.tso import Tso, behind_s


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
    failed, sink = now.state is not DrainerState.RUNNING, now.sink or SinkStatistics()
    return DrainerStatus(
        state=now.state.value,
        node_id=node_id,
        node_state=node_state,
        error=now.last_error if failed else "",
        failure=_failure(now.failure) if failed and now.failure is not None else None,
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
        trash=_trash(sink.trash) if sink.trash is not None else TrashStatus(),
        downstream=downstream,
    )


def _failure(now: Failure) -> FailureStatus:
    return FailureStatus(now.kind, now.told, now.todo, Tso(now.skip_ts))


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


def _trash(now: TrashStatistics) -> TrashStatus:
    return TrashStatus(now.tables, now.oldest_ts, now.dropped, now.last_error)
