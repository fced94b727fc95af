"""A joined binlog, and the schema of its moment, to what a sink is given."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.event_filter import EventFilter, EventRule
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Decoded, Dml, Skip
from binlogd.errors import MissingDdlJob, RowMismatch, UnknownTable, UnsupportedDdl
from binlogd.tidb.model import (
    ActionType,
    Column,
    Database,
    FieldType,
    Job,
    JobState,
    Table,
    Tp,
    job_from_json,
)
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.decoding import decoded

TS = Tso(500)


def job(kind: ActionType, version: int, table_id: int = 0, **facts: object) -> Job:
    given = {
        "id": version,
        "type": kind,
        "schema_id": 2,
        "table_id": table_id,
        "state": JobState.SYNCED,
        "schema_version": version,
        **facts,
    }
    return replace(job_from_json(b"{}"), **given)  # type: ignore[arg-type]  # any of its fields


def translator(
    table_filter: TableFilter | None = None, dialect: Dialect = Dialect.MYSQL
) -> Translator:
    """Knows tables 10 `shop.t` and 11 `shop.u`; 9 was truncated."""
    schema = SchemaTracker()
    schema.apply(job(ActionType.CREATE_SCHEMA, 1, database=Database(2, "shop")), 0)
    schema.apply(job(ActionType.CREATE_TABLE, 2, 9, table=Table(9, "t", ())), 0)
    schema.apply(job(ActionType.TRUNCATE_TABLE, 3, 9, table=Table(10, "t", ())), 0)
    schema.apply(job(ActionType.CREATE_TABLE, 4, 11, table=Table(11, "u", ())), 0)
    return Translator(schema, table_filter or TableFilter(), dialect)


def ignoring(commit_ts: Tso) -> TableFilter:
    return TableFilter(ignored_commit_ts=[commit_ts])


def change(table_id: int, rows: int = 1) -> Mutation:
    return Mutation(table_id, [b"row"] * rows, [], [], bytes(rows))


def dml(*mutations: Mutation) -> CommittedBinlog:
    return dml_of(encode_mutations(4, list(mutations)))


def dml_of(prewrite_value: bytes) -> CommittedBinlog:
    prewrite = prewrite_binlog(Tso(499), prewrite_value=prewrite_value)
    return CommittedBinlog(Tso(499), TS, join(prewrite, commit_binlog(Tso(499), TS)))


def ddl(query: str, job_id: int = 5, state: int = 5) -> CommittedBinlog:
    prewrite = prewrite_binlog(
        Tso(499), ddl_query=query.encode(), ddl_job_id=job_id, ddl_schema_state=state
    )
    return CommittedBinlog(Tso(499), TS, join(prewrite, commit_binlog(Tso(499), TS)))


def test_each_change_stands_beside_its_table() -> None:
    txn = translator().translate(decoded(dml(change(10), change(11, 3))))
    assert isinstance(txn, Dml)
    assert (txn.start_ts, txn.commit_ts, txn.schema_version, txn.row_count) == (499, TS, 4, 4)
    assert [(each.table.database, each.table.info.name) for each in txn.changes] == [
        ("shop", "t"),
        ("shop", "u"),
    ]


def test_what_is_filtered_gone_or_reserved_is_left_out() -> None:
    table_filter = TableFilter(ignored_tables=[TablePattern("shop", "u")])
    txn = translator(table_filter).translate(
        decoded(dml(change(9), change(10), change(11), change((1 << 48) - 3), change(10, 0)))
    )
    assert isinstance(txn, Dml)
    assert [each.table.info.id for each in txn.changes] == [10]


NO_DELETES = TableFilter(
    events=EventFilter([EventRule("shop", "*", ("insert", "drop table", "alter table"))])
)


def test_rows_of_an_ignored_kind_are_left_out() -> None:
    rows = Mutation(10, [b"a", b"b"], [], [b"c"], bytes([0, 4, 0]))
    txn = translator(NO_DELETES).translate(decoded(dml(rows, change(11))))
    assert isinstance(txn, Dml)
    assert [change.mutation for change in txn.changes] == [Mutation(10, [], [], [b"c"], b"\x04")]
    assert translator(NO_DELETES).translate(decoded(dml(change(10, 3)))) == Skip(TS)


def test_a_ddl_of_an_ignored_kind_moves_the_schema_and_is_not_executed() -> None:
    made = job(ActionType.ADD_COLUMN, 5, 10, table=Table(10, "t", ()))
    txn = translator(NO_DELETES).translate(decoded(ddl("ALTER TABLE `t` ADD `x` INT"), {5: made}))
    assert isinstance(txn, Ddl)
    assert (txn.is_skipped, txn.reason, txn.schema_version) == (True, "binlog-filter-rule", 5)


ROWS_ONLY = TableFilter(executes_ddl=False)


def test_where_no_ddl_is_asked_for_the_schema_moves_all_the_same() -> None:
    rows_only = translator(ROWS_ONLY)
    truncated = job(ActionType.TRUNCATE_TABLE, 5, 10, table=Table(12, "t", ()))
    txn = rows_only.translate(decoded(ddl("TRUNCATE TABLE `t`"), {5: truncated}))
    assert isinstance(txn, Ddl)
    assert (txn.is_skipped, txn.reason, txn.statements) == (True, "syncer.sync-ddl = false", ())
    rows = rows_only.translate(decoded(dml_of(encode_mutations(5, [change(10), change(12)]))))
    assert isinstance(rows, Dml)
    assert [each.table.info.id for each in rows.changes] == [12]


def test_rows_that_went_back_without_a_binlog_stop_whoever_asks_for_no_ddl_too() -> None:
    went_back = job(ActionType.FLASHBACK_CLUSTER, 5)
    with pytest.raises(UnsupportedDdl, match=r"no binlog holds the rows.*begin anew from a full"):
        translator(ROWS_ONLY).translate(
            decoded(ddl("FLASHBACK CLUSTER TO TIMESTAMP '...'"), {5: went_back})
        )


@pytest.mark.parametrize(
    "binlog",
    [
        CommittedBinlog(TS, TS, fake(TS)),
        dml(),
        dml_of(b""),
        dml(change(9)),
        dml(change(10, 0)),
    ],
)
def test_where_nothing_is_left_only_progress_is(binlog: CommittedBinlog) -> None:
    assert translator().translate(decoded(binlog)) == Skip(TS)


def test_a_table_that_nobody_made_is_an_error_with_the_way_past() -> None:
    with pytest.raises(UnknownTable, match=r"id: 77 .*commit_ts 500.*add 500 to"):
        translator().translate(decoded(dml(change(10), change(77))))


@pytest.mark.parametrize(
    "binlog",
    [
        CommittedBinlog(Tso(499), TS, b"\x08"),
        dml_of(b"\x12\x05\x08"),
        dml(Mutation(10, [b"a"], [], [], b"\x00\x00")),
    ],
)
def test_bytes_that_do_not_decode_are_an_error_with_the_way_past(binlog: CommittedBinlog) -> None:
    with pytest.raises(RowMismatch, match="add 500 to"):
        translator().translate(Decoded(binlog))
    ignored = translator(ignoring(TS)).translate(Decoded(binlog))
    assert ignored == Skip(TS, "ignore-txn-commit-ts")


def test_a_ddl_is_named_by_what_it_changed() -> None:
    binlog = ddl("ALTER TABLE `T` ADD `x` INT;")
    made = job(ActionType.ADD_COLUMN, 5, 10, table=Table(10, "t", ()))
    txn = translator().translate(decoded(binlog, {5: made}))
    assert isinstance(txn, Ddl)
    assert (txn.database, txn.table, txn.schema_version) == ("shop", "t", 5)
    assert txn.statements == ("ALTER TABLE `t` ADD `x` INT",)
    assert txn.session_database == "shop"


def test_rows_of_one_schema_version_are_read_by_what_the_table_is_at_their_turn() -> None:
    """Some may run ahead of the DDL that makes this version, others come behind it."""
    moving, column = translator(), Column(1, "id", 0, FieldType(Tp.LONG))
    rows = dml_of(encode_mutations(5, [change(10)]))
    added = job(ActionType.ADD_COLUMN, 5, 10, table=Table(10, "t", (column,)))
    found = []
    for binlog in (rows, ddl("ALTER TABLE `t` ADD `id` INT"), rows):
        txn = moving.translate(decoded(binlog, {5: added}))
        if isinstance(txn, Dml):
            found.append(txn.changes[0].table.info.columns)
    assert found == [(), (column,)]


def test_a_ddl_that_is_left_out_still_moves_the_schema_and_says_why() -> None:
    at_work = translator(ignoring(TS))
    made = job(ActionType.CREATE_TABLE, 5, 12, table=Table(12, "v", ()))
    txn = at_work.translate(decoded(ddl("CREATE TABLE `v` (`a` INT)"), {5: made}))
    assert isinstance(txn, Ddl)
    assert (txn.is_skipped, txn.statements, txn.reason) == (True, (), "ignore-txn-commit-ts")
    rows = at_work.translate(decoded(msgspec.structs.replace(dml(change(12)), commit_ts=Tso(501))))
    assert isinstance(rows, Dml)


def test_an_ignored_ddl_passes_where_it_would_stop() -> None:
    made = job(ActionType.RECOVER_TABLE, 5, 9, table=Table(9, "back", ()))
    with pytest.raises(UnsupportedDdl):
        translator().translate(decoded(ddl("RECOVER TABLE `back`"), {5: made}))
    assert isinstance(
        translator(ignoring(TS)).translate(decoded(ddl("RECOVER TABLE `back`"), {5: made})), Ddl
    )


def test_a_drop_column_that_is_only_announced_is_no_barrier() -> None:
    made = job(ActionType.DROP_COLUMN, 5, 10, table=Table(10, "t", ()))
    txn = translator().translate(
        decoded(ddl("ALTER TABLE `t` DROP COLUMN `x`", state=1), {5: made})
    )
    assert isinstance(txn, Skip)


def test_setval_needs_no_job() -> None:
    binlog = ddl("SELECT SETVAL(`shop`.`s`, 1000);")
    assert translator().translate(decoded(binlog)) == Skip(TS, "sequences are not replicated")


def test_a_ddl_without_its_job_is_an_error_unless_ignored() -> None:
    binlog = ddl("CREATE TABLE `v` (`a` INT)")
    with pytest.raises(MissingDdlJob):
        translator().translate(decoded(binlog))
    assert isinstance(translator(ignoring(TS)).translate(decoded(binlog)), Skip)


def test_the_query_of_a_file_is_the_binlogs_own() -> None:
    query = "DROP TABLE IF EXISTS `T`, `u`;"
    made = job(ActionType.DROP_TABLE, 5, 10)
    txn = translator(dialect=Dialect.FILE).translate(decoded(ddl(query, state=0), {5: made}))
    assert isinstance(txn, Ddl)
    assert txn.statement == query


def test_databases_are_not_used_before_they_are_there() -> None:
    made = job(ActionType.CREATE_SCHEMA, 5, schema_id=6, database=Database(6, "new"))
    txn = translator().translate(decoded(ddl("CREATE DATABASE `new`"), {5: made}))
    assert isinstance(txn, Ddl)
    assert (txn.database, txn.session_database) == ("new", "")
