"""The Drainer's numbers under the names that alerts rely on."""

from __future__ import annotations

from dataclasses import replace

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.measures import TABLES_COUNTED_MAX, TABLES_SHOWN, DrainerMeasures
from binlogd.drainer.metrics import say_drainer
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.statistics import DrainerState, DrainerStatistics
from binlogd.drainer.txn import Dml, TableChange
from binlogd.merge.merge import MergeStatistics, SourcePosition
from binlogd.relay.log import RelayStatistics
from binlogd.status import BusyTable
from binlogd.telemetry.exposition import Exposition
from binlogd.tidb.model import Table, TableAt
from binlogd.tso import Tso, compose
from binlogd.wire.mutation import Mutation
from tests.support.deployment import expressions, selectors


def _said(now: DrainerStatistics) -> dict[str, str]:
    out = Exposition()
    say_drainer(out, now)
    lines = out.text().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def _statistics(
    merge: MergeStatistics | None, sink: SinkStatistics | None, relay: RelayStatistics | None
) -> DrainerStatistics:
    return DrainerStatistics(
        state=DrainerState.RUNNING,
        failure=None,
        checkpoint=Checkpoint(compose(5_000)),
        not_saved="",
        applied_ts=compose(6_000),
        sessions_begun=1,
        transactions_skipped=0,
        values_in_doubt=0,
        unforeseen_errors=0,
        expiring=(),
        failed_in_a_row=0,
        retry_in_s=0.0,
        merge=merge,
        sink=sink,
        relay=relay,
        measures=DrainerMeasures().statistics(),
    )


def test_positions_are_physical_milliseconds() -> None:
    said = _said(
        _statistics(
            MergeStatistics(
                resolved_ts=compose(7_000),
                duplicates_dropped=2,
                blocking="",
                sources=(SourcePosition("shard-0", compose(7_000), 0, 0),),
            ),
            SinkStatistics(
                applied_ts=compose(6_000),
                txns_applied=4,
                rows_applied=40,
                ddls_applied=3,
                lane_ts=(compose(6_000), compose(6_500)),
                txns_queued=1,
                rows_queued=10,
                bytes_written=99,
                retries=0,
            ),
            RelayStatistics(
                files=2,
                size_bytes=77,
                last_ts=compose(7_000),
                entries_appended=5,
                bytes_appended=70,
            ),
        )
    )
    assert said["binlog_drainer_checkpoint_tso"] == "5000"
    assert said['binlog_drainer_pump_position{nodeID="shard-0"}'] == "7000"
    assert said["binlog_drainer_ddl_jobs_total"] == "3"
    assert said['binlog_drainer_event{type="DDL"}'] == "3"
    assert said['binlog_drainer_queue_size{name="syncer_input"}'] == "1"
    assert said["binlogd_drainer_lag_seconds"] == "1.0"
    assert said['binlogd_drainer_lane_ts{lane="1"}'] == "6500"
    assert said["binlogd_relay_files"] == "2"


def test_a_checkpoint_that_cannot_be_saved_alerts_whatever_the_lag_is() -> None:
    (rule,) = [rule for where, rule in expressions() if where == "alert BinlogdCheckpointStands"]
    (wanted,) = selectors(rule)
    saved = _statistics(None, None, None)
    assert _said(saved)[wanted.metric] == "0"
    assert _said(replace(saved, not_saved="the disk is full"))[wanted.metric] == "1"


def test_between_sessions_only_what_lasts_is_said() -> None:
    said = _said(_statistics(None, None, None))
    assert said['binlogd_drainer_state{state="running"}'] == "1"
    assert said['binlogd_drainer_state{state="stuck"}'] == "0"
    assert not any(name.startswith(("binlogd_relay", "binlog_drainer_pump")) for name in said)


def _changes(rows_by_table: dict[str, int]) -> Dml:
    changes = tuple(
        TableChange(
            TableAt("shop", Table(1, name, ()), 1, None, {}, may_lack_columns=False),
            Mutation(1, [b""] * rows, [], [], bytes(rows)),
        )
        for name, rows in rows_by_table.items()
    )
    return Dml(Tso(1), Tso(2), 1, changes)


def test_the_busiest_tables_are_told_first() -> None:
    measures = DrainerMeasures()
    measures.submitted([_changes({"orders": 2, "items": 5}), _changes({"orders": 4})], 0.1)
    assert measures.statistics().busy_tables == (
        BusyTable("shop.orders", 6),
        BusyTable("shop.items", 5),
    )


def test_of_ever_so_many_tables_the_busy_ones_are_still_counted() -> None:
    measures = DrainerMeasures()
    busy = {f"busy{number}": 3 for number in range(TABLES_SHOWN)}
    for number in range(3 * TABLES_COUNTED_MAX):
        measures.submitted([_changes({f"once{number}": 1})], 0.1)
        if number % 100 == 0:
            measures.submitted([_changes(busy)], 0.1)
    told = measures.statistics().busy_tables
    rounds = -(-3 * TABLES_COUNTED_MAX // 100)
    assert told == tuple(BusyTable(f"shop.{name}", 3 * rounds) for name in busy)
