"""Snapshots by a real Spark session, held to what a real TiDB recorded and to two models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest

from binlogd.errors import Corrupt, Refused
from binlogd.settings.quantities import first_ts
from binlogd.snapshot.export import ExportOptions, export
from binlogd.snapshot.log.packets import Spread
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.tidb.datum import read_datum
from binlogd.tidb.known_tables import is_reserved
from binlogd.tidb.model import Table, TableAt, jobs_from_json
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import encode_mutations, mutations
from binlogd.wire.peek import body
from tests.support import recordings_reader, snapshot_reader
from tests.support.data_directory import write_log
from tests.support.model_check import check_against_model
from tests.support.plain_export import PlainExport
from tests.support.recordings_reader import IN_DOUBT, Row
from tests.support.spark import WarmSpark
from tests.workload.generator import Options, Workload

RECORDINGS = Path(__file__).parents[2] / "recordings"

KNOWN_TO_DIFFER = {"keys": ("keys_wrong.",)}
"""TiDB itself writes a DeleteRow for rows that UPDATE IGNORE leaves."""

LEFT_OUT = {
    "ddl": {
        ("ddl_a", "conv"),  # DATE to TIMESTAMP: the session's time zone counted
    }
}


REWRITTEN = {"ddl_a.t", "ddl_a.st1", "shop.orders"}
"""MODIFY COLUMN rewrote it; a fold of the row changes cannot know the new values."""


def data_directory(tmp_path: Path, name: str) -> Path:
    data_dir = tmp_path / "data"
    write_log(data_dir, (record.payload for record in recordings_reader.records(RECORDINGS / name)))
    return data_dir


@pytest.mark.parametrize(
    "name",
    [
        "types",
        "windows",
        pytest.param("mixed", marks=pytest.mark.soak),  # in short: of a workload, below
        pytest.param("race", marks=pytest.mark.soak),  # in short: windows has rows in doubt, too
        pytest.param("ddl", marks=pytest.mark.soak),  # in short: built on its own past
        pytest.param("keys", marks=pytest.mark.soak),  # in short: test_export_command
    ],
)
def test_the_latest_snapshot_holds_what_the_cluster_held(
    name: str, spark: WarmSpark, tmp_path: Path
) -> None:
    history = recordings_reader.history(RECORDINGS / name)
    snapshot = spark.export(data_directory(tmp_path, name), history)
    check_expected(name, snapshot)
    doubts: Counter[str] = Counter()
    for each in read_manifest(snapshot).in_doubt:
        doubts[f"{each.database}.{each.table}"] += each.rows
    assert doubts == IN_DOUBT.get(name, {})


def test_a_snapshot_of_random_columns_holds_what_the_cluster_held(tmp_path: Path) -> None:
    """Without a Spark, which has no part in what columns hold."""
    history = recordings_reader.history(RECORDINGS / "fuzz")
    data_dir, work = data_directory(tmp_path, "fuzz"), tmp_path / "work"
    work.mkdir()
    export = PlainExport(work, data_dir, history, Spread(3, 1), 1 << 20)
    check_expected("fuzz", export.snapshot())


def check_expected(name: str, snapshot: Path) -> None:
    found = snapshot_reader.tables(snapshot)
    left_out = {(each.database, each.table) for each in read_manifest(snapshot).left_out}
    assert left_out == LEFT_OUT.get(name, set())
    differs = KNOWN_TO_DIFFER.get(name, ())
    wrong = []
    for table in recordings_reader.expected(RECORDINGS / name):
        if table.kind != "table" or (table.db, table.name) in left_out:
            continue
        entry = found.pop(table.label)
        assert entry.rows == table.count or table.label.startswith(differs)
        if table.rows is not None:
            expected = snapshot_reader.expected_rows(table, entry)
            if expected != snapshot_reader.rows(snapshot, entry):
                wrong.append(table.label)
    assert found == {}
    assert [label for label in wrong if not label.startswith(differs)] == []


def test_a_recording_built_on_its_own_past_holds_what_the_cluster_held(
    spark: WarmSpark, tmp_path: Path
) -> None:
    history = recordings_reader.history(RECORDINGS / "ddl")
    committed = list(recordings_reader.committed(RECORDINGS / "ddl"))
    data_dir = data_directory(tmp_path, "ddl")
    base = spark.export(data_dir, history, committed[len(committed) // 2].commit_ts)
    snapshot = spark.export(data_dir, history, base=base)
    manifest = read_manifest(snapshot)
    assert {(each.database, each.table) for each in manifest.left_out} == LEFT_OUT["ddl"]
    found = snapshot_reader.tables(snapshot)
    for table in recordings_reader.expected(RECORDINGS / "ddl"):
        if table.kind == "table" and table.rows is not None and table.label in found:
            entry = found[table.label]
            expected = snapshot_reader.expected_rows(table, entry)
            assert expected == snapshot_reader.rows(snapshot, entry), table.label


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ddl", 0.5),
        pytest.param("mixed", 0.55, marks=pytest.mark.soak),
        pytest.param("keys", 0.6, marks=pytest.mark.soak),
    ],
)
def test_a_snapshot_of_the_middle_holds_what_a_plain_fold_gives(
    name: str, part: float, spark: WarmSpark, tmp_path: Path
) -> None:
    history = recordings_reader.history(RECORDINGS / name)
    committed = list(recordings_reader.committed(RECORDINGS / name))
    as_of = committed[int(len(committed) * part)].commit_ts
    snapshot = spark.export(data_directory(tmp_path, name), history, as_of)
    oracle = Oracle(history)
    for binlog in committed:
        if binlog.commit_ts <= as_of:
            oracle.take(bytes(binlog.payload), binlog.commit_ts)
    left_out = {f"{each.database}.{each.table}" for each in read_manifest(snapshot).left_out}
    found = snapshot_reader.tables(snapshot)
    assert found.keys() == oracle.tables().keys() - left_out
    for label, entry in found.items():
        if label in REWRITTEN:
            continue
        table_id = oracle.tables()[label]
        names = [column.name for column in entry.columns]
        assert snapshot_reader.rows(snapshot, entry) == oracle.rows(table_id, names), label


@pytest.mark.parametrize("seed", [20])
def test_snapshots_of_a_workload_hold_what_its_model_says(
    seed: int, spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=seed, transactions=500, ddl_every=14))
    write_log(tmp_path / "data", [record.payload for record in workload.records()])
    last = workload.model.last_commit_ts
    moments = workload.model.moments()
    for as_of in (moments[len(moments) // 2], NO_TS):
        snapshot = spark.export(tmp_path / "data", workload.history(), as_of)
        check_against_model(snapshot, workload, as_of or last)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_snapshots_of_many_moments_hold_what_the_model_says_from_the_log_and_from_a_base(
    seed: int, spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=seed, transactions=1500, ddl_every=15))
    write_log(tmp_path / "data", [record.payload for record in workload.records()])
    moments, last = workload.model.moments(), workload.model.last_commit_ts
    between = [Tso(moments[0] + (last - moments[0]) * part // 6) for part in range(1, 6)]
    chosen = sorted({*between, *moments[2 :: max(1, len(moments) // 5)], last})
    base: Path | None = None
    for number, as_of in enumerate(chosen):
        whole = spark.export(tmp_path / "data", workload.history(), as_of)
        check_against_model(whole, workload, as_of)
        if base is not None:
            built = spark.export(tmp_path / "data", workload.history(), as_of, base=base)
            check_against_model(built, workload, as_of)
            base = built
        if number % 3 == 0:
            base = whole


def transaction(start_ts: int, commit_ts: int) -> tuple[bytes, bytes]:
    prewrite = prewrite_binlog(Tso(start_ts), prewrite_value=encode_mutations(1, []))
    return prewrite, commit_binlog(Tso(start_ts), Tso(commit_ts))


def test_the_latest_moment_lies_before_an_open_transaction(tmp_path: Path) -> None:
    """Without a Spark, which has no part in it."""

    def newest(name: str) -> int:
        work = tmp_path / f"{name}-work"
        work.mkdir()
        export = PlainExport(work, tmp_path / name, b"[]", Spread(2, 1), 1 << 20)
        return read_manifest(export.snapshot()).commit_ts

    early, decided, opened, late = (
        transaction(10, 20),
        transaction(30, 50),
        transaction(40, 1000),
        transaction(60, 70),
    )
    payloads = [*early, opened[0], *decided, *late]
    write_log(tmp_path / "one", payloads, shards=1)
    assert newest("one") == 40
    write_log(tmp_path / "later", [*early, *decided, opened[0], *late], shards=1)
    assert newest("later") == 50
    write_log(tmp_path / "closed", [*payloads, rollback_binlog(Tso(40))], shards=2)
    assert newest("closed") == 70


def test_a_moment_that_is_not_decided_is_refused(spark: WarmSpark, tmp_path: Path) -> None:
    write_log(tmp_path / "data", transaction(10, 20))
    with pytest.raises(Refused, match="every transaction of the log is decided"):
        spark.export(tmp_path / "data", b"[]", Tso(21))


def test_a_moment_before_the_log_is_refused(spark: WarmSpark, tmp_path: Path) -> None:
    write_log(tmp_path / "data", transaction(10, 20))
    with pytest.raises(Refused, match=r"9 \(.*\) lies before 10 \(.*\), where the log begins"):
        spark.export(tmp_path / "data", b"[]", Tso(9))


@pytest.mark.parametrize(
    ("wall", "said"),
    [("2999-01-01", "lies in the future"), ("2001-01-01", "where the log begins")],
)
async def test_a_moment_far_outside_the_log_is_refused_before_spark_starts(
    wall: str, said: str, tmp_path: Path
) -> None:
    begins = first_ts("2020-01-01T00:00:00Z", "x")
    write_log(tmp_path / "data", transaction(begins, Tso(begins + 10)))
    options = ExportOptions(
        data_dir=tmp_path / "data", out=tmp_path / "out", as_of=wall, schema_history=b"[]"
    )

    def no_spark(*_: object) -> NoReturn:
        pytest.fail("a process was started")

    with pytest.raises(Refused, match=said):
        await export(options, borrow=no_spark)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_commit_without_its_prewrite_ends_the_export(spark: WarmSpark, tmp_path: Path) -> None:
    write_log(tmp_path / "data", [*transaction(10, 20), transaction(30, 40)[1]])
    with pytest.raises(Corrupt, match="transaction 30 committed at 40: the log does not hold"):
        spark.export(tmp_path / "data", b"[]")


class Oracle:
    """Every table by applying one row change after another; rows of a table by their handle."""

    def __init__(self, history: bytes) -> None:
        self._jobs = {job.id: job for job in jobs_from_json(history)}
        self._tracker = SchemaTracker()
        self._tracker.load(self._jobs.values())
        self._held: dict[int, dict[Any, tuple[int, bool, bytes]]] = {}

    def take(self, payload: bytes, commit_ts: Tso) -> None:
        found = body(payload)
        if found.ddl_job_id:
            job = self._jobs.get(found.ddl_job_id)
            if job is not None:
                self._tracker.apply(job, found.ddl_schema_state)
            return
        version, changes = mutations(found.prewrite_value)
        for change in changes:
            table = self._tracker.table_at(change.table_id, version)
            if table is None or is_reserved(change.table_id):
                continue
            rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
            held = self._held.setdefault(change.table_id, {})
            for kind in change.sequence:
                self._change(held, table, kind, next(rows[kind]), version)

    def _change(
        self,
        held: dict[Any, tuple[int, bool, bytes]],
        table: TableAt,
        kind: int,
        row: bytes,
        at: int,
    ) -> None:
        decoder = RowDecoder(table)
        if kind == 0:
            held[self._key(table.info, decoder.insert(row), row, is_insert=True)] = at, True, row
        elif kind == 1:
            old, new = decoder.update(row)
            del held[self._key(table.info, old, row)]
            held[self._key(table.info, new, row)] = at, False, row
        else:
            del held[self._key(table.info, decoder.delete(row), row)]

    @staticmethod
    def _key(info: Table, values: dict[int, Value], row: bytes, *, is_insert: bool = False) -> Any:
        handle = info.handle_column()
        primary = info.primary_index()
        if handle is not None:
            return values[handle.id]
        if info.is_common_handle and primary is not None:
            return tuple(values[info.columns[each.offset].id] for each in primary.columns)
        if is_insert:
            return read_datum(row, 0)[1]
        at, column_id = 0, 0
        while at < len(row):  # the last pair is the hidden row id
            _, found, at = read_datum(row, at)
            _, value, at = read_datum(row, at)
            column_id = found if isinstance(found, int) else 0
        assert column_id == -1
        return value

    def tables(self) -> dict[str, int]:
        return {
            f"{named.database}.{named.table}": info.id
            for named, info in self._tracker.tables()
            if named.database != "mysql" and not info.is_view and not info.is_sequence
        }

    def rows(self, table_id: int, names: list[str]) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for version, is_insert, row in self._held.get(table_id, {}).values():
            table = self._tracker.table_at(table_id, version)
            assert table is not None
            decoder = RowDecoder(table)
            values = decoder.insert(row) if is_insert else decoder.update(row)[1]
            by_name = {column.name: column for column in table.info.columns if column.is_public}
            found[
                tuple(
                    snapshot_reader.as_held(by_name[name], values[by_name[name].id])
                    for name in names
                )
            ] += 1
        return found
