"""A SQLite replica beside others: odd names, views, other writers, DDL that is passed over."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.drainer.txn import BY_DECISION, Ddl, Dml, TableChange, Txn
from binlogd.errors import (
    ConfigError,
    DownstreamUnavailable,
    DownstreamWentBack,
    UnsupportedDdl,
    leading_error,
)
from binlogd.host.disk import PosixDisk
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import (
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    ActionType,
    Column,
    FieldType,
    Index,
    IndexColumn,
    Table,
    TableAt,
    Tp,
    job_from_json,
)
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.support.replay import running

FULL = 2
ID = Column(1, "id", 0, FieldType(Tp.LONG, flag=FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
TEXT = FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4")
V = Column(2, "v", 1, TEXT)
W = Column(3, "w", 2, TEXT)


def table(table_id: int, name: str, *columns: Column) -> Table:
    indexes = (Index(1, "i", (IndexColumn("v", 1),)),)
    return Table(table_id, name, columns or (ID, V), pk_is_handle=True, indexes=indexes)


def row(
    commit_ts: int,
    info: Table,
    old: dict[int, Value] | None,
    new: dict[int, Value] | None,
    database: str = "s",
) -> Dml:
    inserted: list[bytes] = []
    updated: list[bytes] = []
    deleted: list[bytes] = []
    kind = 0
    if old is None:
        assert new is not None
        inserted.append(encode_insert(info, new, handle=1))
    elif new is None:
        deleted.append(encode_delete(info, old, handle=1))
        kind = 4
    else:
        updated.append(encode_update(info, old, new, handle=1))
        kind = 1
    mutation = Mutation(info.id, inserted, updated, deleted, bytes([kind]))
    at = TableAt(database, info, commit_ts, None, {}, may_lack_columns=False)
    return Dml(Tso(commit_ts - 1), Tso(commit_ts), commit_ts, (TableChange(at, mutation),))


def ddl(
    commit_ts: int,
    kind: ActionType,
    info: Table | None = None,
    database: str = "s",
    reason: str = "",
    renamed: tuple[tuple[Named, Named], ...] = (),
) -> Ddl:
    job = replace(
        job_from_json(b"{}"), id=commit_ts, type=kind, schema_version=commit_ts, table=info
    )
    name = info.name if info else ""
    is_skipped = bool(reason)
    return Ddl(
        Tso(commit_ts - 1),
        Tso(commit_ts),
        commit_ts,
        job,
        "",
        database,
        name,
        is_skipped,
        reason=reason,
        renamed=renamed,
    )


@asynccontextmanager
async def sink_of(tmp_path: Path, lock_wait_s: float = 10.0) -> AsyncIterator[SqliteSink]:
    disk = PosixDisk(threads=1)
    try:
        yield SqliteSink(tmp_path / "replica.db", disk, lock_wait_s=lock_wait_s)
    finally:
        disk.close()


async def applied(tmp_path: Path, txns: Sequence[Txn]) -> None:
    async with sink_of(tmp_path) as sink, running(sink):
        await sink.submit(txns)
        await sink.flush()


def stored(tmp_path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(tmp_path / "replica.db")) as replica:
        return replica.execute(query).fetchall()


async def test_a_database_that_goes_takes_no_other_with_it(tmp_path: Path) -> None:
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, table(1, "b.c"), "a"),
            ddl(11, ActionType.CREATE_TABLE, table(2, "c"), "a.b"),
            row(12, table(2, "c"), None, {1: 1, 2: b"x"}, "a.b"),
            ddl(13, ActionType.DROP_SCHEMA, database="a"),
        ],
    )
    assert stored(tmp_path, 'SELECT * FROM "a%2Eb.c"') == [(1, "x")]
    assert stored(tmp_path, "SELECT name FROM _binlogd_tables") == [("a%2Eb.c",)]


@pytest.mark.parametrize("reason", ["", BY_DECISION])
async def test_a_table_goes_on_under_the_id_that_another_partitioning_gives_it(
    reason: str, tmp_path: Path
) -> None:
    parts = replace(table(2, "t"), partition_ids=(3, 4))
    whole = table(5, "t")
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, table(1, "t")),
            row(11, table(1, "t"), None, {1: 1, 2: b"x"}),
            ddl(12, ActionType.ALTER_TABLE_PARTITIONING, parts, reason=reason),
            row(13, parts, {1: 1, 2: b"x"}, {1: 1, 2: b"y"}),
            row(14, parts, None, {1: 2, 2: b"z"}),
            ddl(15, ActionType.REMOVE_PARTITIONING, whole, reason=reason),
            row(16, whole, {1: 2, 2: b"z"}, None),
        ],
    )
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == [(1, "y")]
    assert stored(tmp_path, "SELECT id, name FROM _binlogd_tables") == [(5, "s.t")]


async def test_no_name_of_a_table_is_taken_by_what_the_replica_makes(tmp_path: Path) -> None:
    names = ("t", "t#0", "t#1", "t#new", ".t", '"t', "T`2")
    made = [
        ddl(10 + n, ActionType.CREATE_TABLE, table(1 + n, name)) for n, name in enumerate(names)
    ]
    changed = [
        ddl(20 + n, ActionType.ADD_COLUMN, table(1 + n, name, ID, V, W))
        for n, name in enumerate(names)
    ]
    await applied(tmp_path, [*made, row(19, table(1, "t"), None, {1: 1, 2: b"x"}), *changed])
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == [(1, "x", None)]


async def test_views_that_somebody_put_into_the_file_stay_through_ddl(tmp_path: Path) -> None:
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, table(1, "t")),
            row(11, table(1, "t"), None, {1: 1, 2: b"x"}),
        ],
    )
    with closing(sqlite3.connect(tmp_path / "replica.db")) as replica:
        replica.execute('CREATE VIEW report AS SELECT v FROM "s.t"')
    await applied(tmp_path, [ddl(12, ActionType.ADD_COLUMN, table(1, "t", ID, V, W))])
    assert stored(tmp_path, "SELECT * FROM report") == [("x",)]


async def test_who_writes_to_a_file_that_another_has_taken_over_stops(tmp_path: Path) -> None:
    info = table(1, "t")
    async with sink_of(tmp_path) as first:
        await first.open()
        await applied(tmp_path, [ddl(10, ActionType.CREATE_TABLE, info)])
        await first.submit([row(11, info, None, {1: 1, 2: b"x"})])
        with pytest.raises(DownstreamUnavailable, match=r"another process writes to .*replica\.db"):
            await first.run()
        await first.close()
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == []


async def test_a_file_that_is_locked_at_the_start_is_waited_for(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "replica.db")) as replica:
        replica.execute("BEGIN EXCLUSIVE")
        async with sink_of(tmp_path, lock_wait_s=0.0) as sink:
            with pytest.raises(DownstreamUnavailable, match="locked"):
                await sink.open()
            await sink.close()
    await applied(tmp_path, [ddl(10, ActionType.CREATE_TABLE, table(1, "t"))])


async def test_a_file_that_is_gone_is_not_written_to_in_silence(tmp_path: Path) -> None:
    async with sink_of(tmp_path) as sink:
        await sink.open()
        checkpoint = Checkpoint(Tso(0))
        await sink.save(checkpoint)
        (tmp_path / "replica.db").rename(tmp_path / "elsewhere.db")
        with pytest.raises(DownstreamWentBack, match="file was removed or replaced"):
            await sink.save(checkpoint)
        await applied(tmp_path, [ddl(10, ActionType.CREATE_TABLE, table(1, "t"))])
        with pytest.raises(DownstreamWentBack, match="file was removed or replaced"):
            await sink.save(checkpoint)
        await sink.close()


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (Path.mkdir, "unable to open database file"),
        (lambda path: path.write_text("a letter to somebody"), "file is not a database"),
    ],
)
async def test_what_is_no_replica_is_said_with_the_way_past_it(
    put: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    put(tmp_path / "replica.db")
    async with sink_of(tmp_path) as sink:
        with pytest.raises(ConfigError, match=rf"replica\.db: .*: {reason}; move away what is"):
            await sink.open()


@pytest.mark.parametrize(
    ("pragma", "reason"),
    [("query_only = ON", "readonly database"), ("max_page_count = 1", "database or disk is full")],
)
async def test_what_is_wrong_with_the_file_is_said_of_it_and_no_transaction_is_blamed(
    pragma: str, reason: str, tmp_path: Path
) -> None:
    async with sink_of(tmp_path) as sink:
        await sink.open()
        assert sink._connection is not None
        await sink._connection.execute(f"PRAGMA {pragma}")
        await sink.submit([ddl(10, ActionType.CREATE_TABLE, table(1, "t"))])
        with pytest.raises(DownstreamUnavailable) as refused:
            await sink.run()
        assert str(refused.value).startswith(f"{tmp_path}/replica.db: cannot be written now: ")
        assert reason in str(refused.value)
        await sink.close()


async def test_a_row_that_moves_to_another_key_is_there_once(tmp_path: Path) -> None:
    info = table(1, "t")
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, info),
            row(11, info, None, {1: 1, 2: b"x"}),
            row(12, info, {1: 1, 2: b"x"}, {1: 2, 2: b"x"}),
        ],
    )
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == [(2, "x")]


async def test_a_row_is_found_while_a_column_is_on_its_way_out(tmp_path: Path) -> None:
    """From DELETE ONLY on, TiDB's rows lack it; the replica has it until the DDL is over."""
    count = Column(2, "n", 1, FieldType(Tp.LONG, flag=FLAG_NOT_NULL))
    whole = Table(1, "t", (replace(ID, field_type=FieldType(Tp.LONG)), count, W))
    rest = replace(whole, columns=(whole.columns[0], replace(W, offset=1)))
    later = row(13, rest, {1: 1, 3: b"x"}, {1: 1, 3: b"y"})
    (change,) = later.changes
    seen = TableAt("s", whole, 13, None, {}, may_lack_columns=True)
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, whole),
            row(11, whole, None, {1: 1, 2: 7, 3: b"x"}),
            Dml(Tso(12), Tso(13), 13, (TableChange(seen, change.mutation),)),
            ddl(14, ActionType.DROP_COLUMN, rest),
        ],
    )
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == [(1, "y")]


@pytest.mark.parametrize("reason", [BY_DECISION, "binlog-filter-rule"])
async def test_a_truncate_that_is_left_out_leaves_a_table_that_goes_on(
    tmp_path: Path, reason: str
) -> None:
    before, after = table(1, "t"), table(2, "t")
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, before),
            row(11, before, None, {1: 1, 2: b"x"}),
            ddl(12, ActionType.TRUNCATE_TABLE, after, reason=reason),
            row(13, after, None, {1: 2, 2: b"y"}),
        ],
    )
    await applied(tmp_path, [row(14, after, {1: 2, 2: b"y"}, {1: 2, 2: b"z"})])
    assert stored(tmp_path, 'SELECT * FROM "s.t" ORDER BY id') == [(1, "x"), (2, "z")]


async def test_a_ddl_that_an_operator_passes_over_is_done_by_hand(tmp_path: Path) -> None:
    before, after = table(1, "t"), table(1, "t2", ID, V, W)
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, before),
            row(11, before, None, {1: 1, 2: b"x"}),
            ddl(12, ActionType.ADD_COLUMN, table(1, "t", ID, V, W), reason=BY_DECISION),
            ddl(
                13,
                ActionType.RENAME_TABLE,
                after,
                reason=BY_DECISION,
                renamed=((Named("s", "t"), Named("s", "t2")),),
            ),
        ],
    )
    with closing(sqlite3.connect(tmp_path / "replica.db")) as replica:
        replica.execute('ALTER TABLE "s.t" ADD COLUMN w TEXT')
        replica.execute('ALTER TABLE "s.t" RENAME TO "s.t2"')
    await applied(tmp_path, [row(14, after, None, {1: 2, 2: b"y", 3: b"z"})])
    assert stored(tmp_path, 'SELECT * FROM "s.t2"') == [(1, "x", None), (2, "y", "z")]


async def test_tables_that_exchange_their_names_keep_their_rows(tmp_path: Path) -> None:
    one, two = table(1, "one"), table(2, "two")
    names = [Named("s", each) for each in ("one", "between", "two")]
    await applied(
        tmp_path,
        [
            ddl(10, ActionType.CREATE_TABLE, one),
            ddl(11, ActionType.CREATE_TABLE, two),
            row(12, one, None, {1: 1, 2: b"one"}),
            row(13, two, None, {1: 2, 2: b"two"}),
            ddl(
                14,
                ActionType.RENAME_TABLES,
                renamed=((names[0], names[1]), (names[2], names[0]), (names[1], names[2])),
            ),
            row(15, replace(one, name="two"), None, {1: 3, 2: b"one"}),
        ],
    )
    assert stored(tmp_path, 'SELECT * FROM "s.two"') == [(1, "one"), (3, "one")]
    assert stored(tmp_path, 'SELECT * FROM "s.one"') == [(2, "two")]


async def test_a_value_that_no_rule_converts_stops_the_ddl_and_leaves_the_table(
    tmp_path: Path,
) -> None:
    number = table(1, "t", ID, Column(3, "v", 1, FieldType(Tp.LONG)))
    held: list[Txn] = [
        ddl(10, ActionType.CREATE_TABLE, table(1, "t")),
        row(11, table(1, "t"), None, {1: 1, 2: b"twelve"}),
    ]
    modified = ddl(12, ActionType.MODIFY_COLUMN, number)
    with pytest.raises(ExceptionGroup) as stopped:
        await applied(tmp_path, [*held, modified])
    stuck = leading_error(stopped.value)
    assert isinstance(stuck, UnsupportedDdl)
    assert (stuck.commit_ts, "column v from before its MODIFY" in stuck.reason) == (12, True)
    assert stored(tmp_path, "SELECT commit_ts FROM _binlogd_progress") == [(0,)], "all or nothing"
    await applied(tmp_path, held)
    assert stored(tmp_path, 'SELECT * FROM "s.t"') == [(1, "twelve")]


async def test_what_a_replica_says_is_applied_outlives_the_power(tmp_path: Path) -> None:
    """SQLite syncs each transaction in this mode, and not in others with a log beside the file."""
    async with sink_of(tmp_path) as sink:
        await sink.open()
        assert sink._connection is not None
        ((mode,),) = await sink._connection.execute_fetchall("PRAGMA synchronous")
        await sink.close()
    assert mode == FULL
