"""Every shape of statement, with every type in the key, at every server: what it must affect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.named import NamedColumn, NamedRow, NamedTransaction, RowKind
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.rows.parts import Gatherer, Limits, RunKind
from binlogd.drainer.rows.progress import LanePosition
from binlogd.drainer.rows.shape import Mode, Shapes
from binlogd.drainer.rows.target import Reader, Target
from binlogd.drainer.txn import Dml, TableChange
from binlogd.snapshot.formats.columns import mysql_type
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import FieldType, TableAt
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import Mutation
from tests.support.mariadb import MariaDb
from tests.support.replay import server_of
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef, TableDef, build_table, create_table_sql

KINDS: dict[str, tuple[FieldType, Sequence[Value]]] = {
    "bigint": (tidb.integer("BIGINT"), (-(1 << 63), -1, 0, (1 << 63) - 1)),
    "unsigned": (tidb.integer("BIGINT", unsigned=True), (0, 1, 1 << 63, (1 << 64) - 1)),
    "tinyint": (tidb.integer("TINYINT"), (-128, -1, 0, 127)),
    "float": (tidb.real("FLOAT"), (-1.5, 0.0, 0.10000000149011612, 3.4028234663852886e38)),
    "double": (tidb.real("DOUBLE"), (-1.5, 0.0, 0.1, 1.7976931348623157e308)),
    "decimal": (tidb.decimal(20, 5), ("-1.50000", "0.00000", "0.10000", "999999999999999.99999")),
    "bit": (tidb.bits(64), (0, 1, 1 << 63, (1 << 64) - 1)),
    "year": (tidb.year(), (0, 1901, 2000, 2155)),
    "date": (tidb.date(), ("0000-00-00", "2024-02-30", "1000-01-01", "9999-12-31")),
    "datetime": (
        tidb.temporal(Tp.DATETIME, 6),
        (
            *("0000-00-00 00:00:00.000000", "2024-01-02 03:04:05.600000"),
            *("1000-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"),
        ),
    ),
    "timestamp": (
        tidb.temporal(Tp.TIMESTAMP),
        (
            *("0000-00-00 00:00:00", "1970-01-01 00:00:01"),
            *("2024-01-02 03:04:05", "2038-01-19 03:14:07"),
        ),
    ),
    "time": (
        tidb.temporal(Tp.DURATION, 3),
        ("-838:59:59.000", "-00:00:00.500", "00:00:00.000", "838:59:59.000"),
    ),
    "enum": (tidb.enum("x", "y", "1", "2"), (1, 2, 3, 4)),
    "set": (tidb.set_of("x", "y", "2"), (0, 1, 2, 5)),
    "char": (tidb.char(9), (b"", b"a", b"A", "é".encode())),
    "varchar": (tidb.varchar(20), (b"", b"a'\\", b"A", "\N{SNOWMAN}".encode())),
    "latin1": (
        replace(tidb.varchar(20), charset="latin1", collate="latin1_bin"),
        (b"", b"a", "é".encode(), "è".encode()),
    ),
    "gbk": (
        replace(tidb.varchar(20), charset="gbk", collate="gbk_bin"),
        (b"", b"a", "中".encode(), "文".encode()),
    ),
    "any case": (
        replace(tidb.varchar(20), collate="utf8mb4_general_ci"),
        (b"", b"a", b"b", "ß".encode()),
    ),
    "binary": (tidb.binary(2), (b"\0\0", b"a\0", b"\xff\xfe", b"'\\")),
    "varbinary": (tidb.varbinary(9), (b"", b"a", b"a ", b"\xff\0")),
}
KEYS = {"one": ("k",), "two": ("k", "n"), "behind": ("n", "k"), "none": (), "wider": ("k", "n")}
"""Those of "wider" have a column downstream that upstream lacks: their rows are written by upserts,
and one by one."""


def table_of(kind: str, keys: str) -> TableDef:
    columns = (
        ColumnDef("k", KINDS[kind][0], not_null=True),
        ColumnDef("n", tidb.integer("BIGINT"), not_null=True),
        ColumnDef("v", tidb.integer("BIGINT")),
    )
    return TableDef("s", f"{kind} {keys}", columns, KEYS[keys])


class Written:
    """What statements make of a table, and what they must affect."""

    def __init__(self, at: TableAt, target: Target, session: SqlSession) -> None:
        self._at, self._target, self._session = at, target, session
        self._handle = None if at.info.pk_is_handle or at.info.is_common_handle else 1
        self._ts = 10

    async def insert(self, rows: Sequence[Sequence[Value]]) -> None:
        encoded = [
            encode_insert(self._at.info, self._values(row), handle=self._handle) for row in rows
        ]
        await self._check(Mutation(1, encoded, [], [], b"\0" * len(rows)), len(rows))

    async def insert_again(self, rows: Sequence[Sequence[Value]]) -> None:
        """Rows that are there already, in another state; an upsert counts two for each."""
        if self._target.write_tail:
            encoded = [
                encode_insert(self._at.info, self._values((*row[:2], 77)), handle=self._handle)
                for row in rows
            ]
            await self._check(Mutation(1, encoded, [], [], b"\0" * len(rows)), 2 * len(rows))

    async def update(self, rows: Sequence[Sequence[Value]]) -> None:
        """To another `v`."""
        encoded = [
            encode_update(
                self._at.info,
                self._values(row),
                self._values((*row[:2], -1)),
                handle=self._handle,
            )
            for row in rows
        ]
        is_replace = self._target.mode in (Mode.MERGED, Mode.ORDERED)
        must = len(rows) * (2 if is_replace else 1)
        await self._check(Mutation(1, [], encoded, [], b"\1" * len(rows)), must)

    async def delete(self, rows: Sequence[Sequence[Value]]) -> None:
        encoded = [
            encode_delete(self._at.info, self._values((*row[:2], -1)), handle=self._handle)
            for row in rows
        ]
        await self._check(Mutation(1, [], [], encoded, b"\4" * len(rows)), len(rows))

    def _values(self, row: Sequence[Value]) -> dict[int, Value]:
        return dict(enumerate(row, 1))

    async def _check(self, mutation: Mutation, must: int) -> None:
        """Runs it in one part; what its statements affect is what it must."""
        self._ts += 1
        gatherer = Gatherer([LanePosition(NO_TS)], Limits())
        reader = Reader(self._at, self._target)
        dml = Dml(Tso(self._ts - 1), Tso(self._ts), 1, (TableChange(self._at, mutation),))
        for _ in gatherer.add(dml, [reader]):
            pass
        part = gatherer.take(0)
        assert part is not None
        affected = 0
        for statement in part.statements(1 << 20):
            done = await self._session.run(statement.text)
            assert not done.warnings, statement.text
            if statement.kind is RunKind.DELETE:
                assert done.affected == len(statement.items), statement.text
            affected += done.affected
        assert affected == must, [each.text for each in part.statements(1 << 20)]


async def test_a_file_s_rows_are_found_by_every_key(each_server: MariaDb) -> None:
    """Rows of a file in the original's format: each statement must affect all of its rows."""
    each_server.execute("CREATE DATABASE s")
    applier = NamedApplier(server_of(each_server), NamedOptions(is_safe=False), Random(1))
    await applier.open()
    ts, left = 10, []
    try:
        for kind, (column, values) in KINDS.items():
            definition = table_of(kind, "two")
            each_server.execute(create_table_sql(definition))
            label = mysql_type(build_table(definition, 1).columns[0]).split("(")[0]
            if column.tp == Tp.FLOAT:
                continue  # a file has a FLOAT as text, which the original's reader rounds
            rows = [
                (
                    NamedColumn("k", label, value, value),
                    NamedColumn("n", "bigint", n, n),
                    NamedColumn("v", "bigint", n, n),
                )
                for n, value in enumerate(values)
            ]
            for row_kind in (RowKind.INSERT, RowKind.DELETE):
                ts += 1
                named = [NamedRow("s", definition.name, row_kind, row) for row in rows]
                found = NamedTransaction(Tso(ts), None, partial(iter, named))
                await applier.apply(found, 0)
            await applier.flush()
            if each_server.execute(f"SELECT 1 FROM s.`{definition.name}`"):
                left.append(kind)
    finally:
        applier.close()
    assert not left


@pytest.mark.parametrize("is_original", [False, True], ids=["ours", "original"])
async def test_a_statement_affects_what_it_must(each_server: MariaDb, *, is_original: bool) -> None:
    each_server.execute("CREATE DATABASE s")
    session = await SqlSession.connect(server_of(each_server), for_rows=True)
    shapes = Shapes(TableFilter(ignored_databases=())) if is_original else Shapes()
    wrong = []
    try:
        for kind, (_, values) in KINDS.items():
            for keys in KEYS:
                definition = table_of(kind, keys)
                await session.run(create_table_sql(definition).encode())
                if keys == "wider":
                    await session.run(b"ALTER TABLE s.`%b wider` ADD x INT" % kind.encode())
                info = build_table(definition, 1)
                there = await catalog.table_of(session, "s", info.name)
                assert there is not None
                target = Target("s", info, shapes.of("s", info, there))
                at = TableAt("s", info, 1, None, {}, may_lack_columns=False)
                written = Written(at, target, session)
                rows = [(value, n, n) for n, value in enumerate(values)]
                try:
                    await written.insert(rows)
                    await written.insert_again(rows)
                    await written.update(rows)
                    await written.delete(rows[:3])
                    await written.delete(rows[3:])
                except AssertionError as error:
                    wrong.append((kind, keys, str(error)[:240]))
    finally:
        session.close()
    assert not wrong, "\n".join(map(str, wrong))
