"""Generated logs through Spark, held to a fold of the same changes in a dict."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlogd.snapshot import job as job_module
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import TableEntry
from binlogd.snapshot.writing.write import SCHEMA_FILE
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, table_to_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.peek import (
    Mutation,
    commit_binlog,
    encode_mutations,
    prewrite_binlog,
    rollback_binlog,
)
from tests import dumps
from tests.data_directory import collect_garbage, write_log
from tests.partitioned import Partitioned
from tests.spark import WarmSpark


def column(number: int, name: str, tp: int, flag: int = 0, **kind: Any) -> Column:
    return Column(number, name, number - 1, FieldType(tp, flag, charset="utf8mb4", **kind))


KEY = FLAG_PRIMARY_KEY | FLAG_NOT_NULL
PRIMARY = (Index(1, "PRIMARY", (IndexColumn("a", 0),), is_unique=True, is_primary=True),)
NOTE = column(2, "note", Tp.VARCHAR, flen=20)
TABLES = {
    100: Table(100, "numbers", (column(1, "a", Tp.LONGLONG, KEY), NOTE), pk_is_handle=True),
    101: Table(
        101,
        "names",
        (column(1, "a", Tp.VARCHAR, KEY, flen=20, collate="utf8mb4_bin"), NOTE),
        indexes=PRIMARY,
        is_common_handle=True,
    ),
    102: Table(102, "loose", (column(1, "a", Tp.LONGLONG), NOTE)),
}
JOBS: list[dict[str, Any]] = [
    {"id": 1, "type": 1, "schema_id": 2, "binlog": {"SchemaVersion": 1}, "schema_name": "s"},
    *(
        {
            "id": table_id,
            "type": 3,
            "schema_id": 2,
            "table_id": table_id,
            "binlog": {"SchemaVersion": version, "TableInfo": json.loads(table_to_json(table))},
        }
        for version, (table_id, table) in enumerate(TABLES.items(), 2)
    ),
]
HISTORY = json.dumps(
    [{"state": 6, "schema_state": 5, "query": f"job {job['id']}", **job} for job in JOBS]
).encode()


def ddl() -> Iterator[bytes]:
    for ts, job in enumerate(JOBS, 1):
        told = {"ddl_query": b"x", "ddl_job_id": job["id"], "ddl_schema_state": 5}
        yield prewrite_binlog(Tso(ts * 10), **told)
        yield commit_binlog(Tso(ts * 10), Tso(ts * 10 + 5), **told)


@dataclass
class Fold:
    """A log as it is generated, and what tables hold after each transaction."""

    payloads: list[bytes] = field(default_factory=lambda: list(ddl()))
    held: dict[int, dict[int, dict[int, Value]]] = field(
        default_factory=lambda: {table_id: {} for table_id in TABLES}
    )
    states: dict[int, dict[int, dict[int, dict[int, Value]]]] = field(default_factory=dict)
    ts: int = 1000
    late: list[bytes] = field(default_factory=list)

    def transact(self, operations: list[tuple[int, int, int]], *, fate: str) -> None:
        """Operations are a table, a row and what its note says; -1 deletes it."""
        held = {table_id: dict(rows) for table_id, rows in self.held.items()}
        mutations = []
        for table_id, table in TABLES.items():
            rows: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
            order = bytearray()
            for _, key, note in (each for each in operations if each[0] == table_id):
                old = held[table_id].get(key)
                told: Value = b"key %d" % key if table_id == 101 else key
                new: dict[int, Value] = {1: told, 2: None if note == 0 else b"%d" % note}
                if old is None and note >= 0:
                    rows[0].append(encode_insert(table, new, handle=key))
                    order.append(0)
                elif old is not None and note >= 0:
                    rows[1].append(encode_update(table, old, new, handle=key))
                    order.append(1)
                elif old is not None:
                    rows[4].append(encode_delete(table, old, handle=key))
                    order.append(4)
                if note >= 0:
                    held[table_id][key] = new
                else:
                    held[table_id].pop(key, None)
            mutations.append(Mutation(table_id, rows[0], rows[1], rows[4], bytes(order)))
        self.ts += 10
        start, commit = Tso(self.ts), Tso(self.ts + 5)
        value = encode_mutations(4, [each for each in mutations if each.sequence])
        self.payloads.append(prewrite_binlog(start, prewrite_value=value))
        if fate == "rollback":
            self.payloads.append(rollback_binlog(start))
            return
        self.held = held
        self.states[commit] = held
        (self.late if fate == "late" else self.payloads).append(commit_binlog(start, commit))
        if fate != "late":
            self.payloads += self.late
            self.late.clear()

    def rows(self, ts: int, table_id: int) -> Counter[tuple[Any, ...]]:
        return Counter(_shown(row) for row in self.states[ts][table_id].values())


def _shown(row: dict[int, Value]) -> tuple[Any, ...]:
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row.values())


def rows_of(snapshot: Path, table_id: int) -> Counter[tuple[Any, ...]]:
    entry = next(each for each in read_manifest(snapshot).tables if each.table_id == table_id)
    return held_in(snapshot, entry)


def held_in(directory: Path, entry: TableEntry) -> Counter[tuple[Any, ...]]:
    tables = (pq.read_table(directory / file.name) for file in entry.files)
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


operations = st.lists(
    st.tuples(st.sampled_from(sorted(TABLES)), st.integers(-3, 3), st.integers(-1, 3)),
    min_size=1,
    max_size=6,
)
histories = st.lists(
    st.tuples(operations, st.sampled_from(["commit", "commit", "late", "rollback"])),
    min_size=8,
    max_size=25,
)


Transactions = list[tuple[list[tuple[int, int, int]], str]]


def check(history: Transactions, part: float, spark: WarmSpark, data_dir: Path) -> None:
    fold = Fold()
    fold.transact([(table_id, 9, 9) for table_id in TABLES], fate="commit")
    for operations_of, fate in history:
        fold.transact(operations_of, fate=fate)
    fold.transact([(table_id, 8, 8) for table_id in TABLES], fate="commit")
    write_log(data_dir, fold.payloads, segment_bytes=400)
    moments = sorted(fold.states)
    first, last = moments[int(len(moments) * part)], moments[-1]

    base = spark.export(data_dir, HISTORY, Tso(first))
    after = spark.export(data_dir, HISTORY, base=base)
    assert read_manifest(after).commit_ts == last
    changes = spark.changes(data_dir, HISTORY, Tso(first), Tso(last), has_before=True)
    for table_id in TABLES:
        assert rows_of(base, table_id) == fold.rows(first, table_id)
        assert rows_of(after, table_id) == fold.rows(last, table_id)
    _check_net(changes, fold, first, last)


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories, part=st.floats(0.1, 0.9))
def test_snapshots_and_changes_are_what_a_fold_gives(
    history: Transactions,
    part: float,
    spark: WarmSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check(history, part, spark, tmp_path_factory.mktemp("fold"))


@pytest.mark.soak
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories, part=st.floats(0.1, 0.9))
def test_many_snapshots_and_changes_are_what_a_fold_gives(
    history: Transactions,
    part: float,
    spark: WarmSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check(history, part, spark, tmp_path_factory.mktemp("fold"))


def _check_net(directory: Path, fold: Fold, first: int, last: int) -> None:
    for entry in read_manifest(directory).tables:
        old, new = (fold.states[ts][entry.table_id] for ts in (first, last))
        found = [
            row for file in entry.files for row in pq.read_table(directory / file.name).to_pylist()
        ]
        came = Counter(_shown(new[key]) for key in new.keys() - old.keys())
        went = Counter(_shown(old[key]) for key in old.keys() - new.keys())
        assert Counter((row["a"], row["note"]) for row in found if row["_op"] == "I") == came
        assert Counter((row["a"], row["note"]) for row in found if row["_op"] == "D") == went
        stayed = [(old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]]
        updated = Counter(
            (tuple(row["_before"].values()), (row["a"], row["note"]))
            for row in found
            if row["_op"] == "U"
        )
        assert Counter((_shown(a), _shown(b)) for a, b in stayed) - updated == Counter()


def test_an_export_that_died_when_its_rows_were_written_still_knows_which_changed(
    spark: WarmSpark, tmp_path: Path
) -> None:
    """Of files of a base of which no row is left there is no mark: they are gone through again."""
    fold = Fold()
    fold.transact([(table_id, key, 1) for table_id in TABLES for key in range(6)], fate="commit")
    base_ts = max(fold.states)
    fold.transact([(100, key, 2) for key in range(6)], fate="commit")
    fold.transact([(101, key, -1) for key in range(6)], fate="commit")
    fold.transact([(102, key, 3) for key in range(0, 6, 2)], fate="commit")
    write_log(tmp_path / "data", fold.payloads)
    base = spark.export(tmp_path / "data", HISTORY, Tso(base_ts))
    spec = spark.spec(tmp_path / "data", HISTORY, base)
    in_the_way = Path(spec.staging, SCHEMA_FILE)
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        job_module.build(spark.spark, spec, lambda _: None)
    in_the_way.rmdir()
    report = job_module.build(spark.spark, spec, lambda _: None)
    for entry in report.tables:
        rows = fold.rows(max(fold.states), entry.table_id)
        assert held_in(Path(spec.staging), entry) == rows, entry.table


def test_a_dump_that_lacks_a_row_of_a_table_without_key_is_told(
    spark: WarmSpark, tmp_path: Path
) -> None:
    fold, rng = Fold(), random.Random(3)
    fold.transact([(102, key, 1) for key in range(5)] + [(100, 1, 1)], fate="commit")
    dumped_at = max(fold.states)
    dump = tmp_path / "dump"
    dumps.write_metadata(dump, Tso(dumped_at))
    for table_id, table in TABLES.items():
        rows = [list(row.values()) for row in fold.states[dumped_at][table_id].values()]
        rng.shuffle(rows)
        if table_id == 102:
            rows = [row for row in rows if row[0] != 3]
        dumps.write_table(dump, ("s", table.name), table.columns, rows)
    fold.transact([(102, 3, -1), (102, 4, 2), (100, 1, 2)], fate="commit")
    write_log(tmp_path / "data", fold.payloads)
    snapshot = spark.export(tmp_path / "data", HISTORY, base=dump)
    (left_out,) = read_manifest(snapshot).left_out
    assert left_out.table == "loose"
    assert left_out.reason.startswith("the base lacks 1 rows that were changed behind it")
    assert rows_of(snapshot, 100) == fold.rows(max(fold.states), 100)


def of_model(history: Partitioned, as_of: int) -> dict[str, Counter[tuple[Any, ...]]]:
    return {name: Counter(rows.values()) for name, rows in history.states[as_of].items()}


def of_snapshot(snapshot: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    tables = read_manifest(snapshot).tables
    return {each.table: rows_of(snapshot, each.table_id) for each in tables}


def test_partitions_that_went_behind_a_base_take_its_rows_along(
    spark: WarmSpark, tmp_path: Path
) -> None:
    history = Partitioned(random.Random(8), is_list=False)
    for _ in range(20):
        history.transact()
    history.drop()
    history.exchange()
    base_ts = max(history.states)
    begun = len(history.payloads)
    for change in (history.truncate, history.reorganize, history.drop):
        history.transact()
        change()
    for _ in range(5):
        history.transact()
    write_log(tmp_path / "old", history.payloads[:begun], shards=1)
    base = spark.export(tmp_path / "old", history.history)
    assert read_manifest(base).commit_ts == base_ts
    assert of_snapshot(base) == of_model(history, base_ts)
    write_log(tmp_path / "data", history.payloads, shards=1, segment_bytes=2000)
    assert collect_garbage(tmp_path / "data", Tso(base_ts))
    snapshot = spark.export(tmp_path / "data", history.history, base=base)
    assert read_manifest(snapshot).left_out == ()
    assert of_snapshot(snapshot) == of_model(history, max(history.states))
