"""Rows that are found again by all that they hold: tables without a key, of every type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from binlogd.drainer.txn import Dml, TableChange
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.support.mariadb import MariaDb
from tests.support.replay import running, sink_for
from tests.workload import schema as tidb


def text(kind: FieldType, charset: str, collate: str) -> FieldType:
    return replace(kind, charset=charset, collate=collate)


LATIN = text(tidb.varchar(40), "latin1", "latin1_swedish_ci")
GBK = text(tidb.varchar(40), "gbk", "gbk_chinese_ci")
CI = text(tidb.varchar(40), "utf8mb4", "utf8mb4_general_ci")
KINDS: dict[str, tuple[FieldType, str, Sequence[Value]]] = {
    "bigint": (tidb.integer("BIGINT"), "BIGINT", [-(1 << 63), (1 << 63) - 1, 0]),
    "ubigint": (tidb.integer("BIGINT", unsigned=True), "BIGINT UNSIGNED", [(1 << 64) - 1, 0]),
    "float": (tidb.real("FLOAT"), "FLOAT", [0.10000000149011612, 3.4028234663852886e38, -1.5, 0.0]),
    "float2": (
        replace(tidb.real("FLOAT"), flen=10, decimal=2),
        "FLOAT(10,2)",
        [1.2300000190734863, 99999.9921875, -0.009999999776482582],
    ),
    "double": (
        tidb.real("DOUBLE"),
        "DOUBLE",
        [0.1, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, -1e16, 123456789012345680.0],
    ),
    "decimal": (
        tidb.decimal(65, 30),
        "DECIMAL(65,30)",
        ["9" * 35 + "." + "9" * 30, "-0." + "0" * 29 + "1", "0." + "0" * 30],
    ),
    "date": (tidb.date(), "DATE", ["0000-00-00", "2020-02-31", "9999-12-31", "2020-00-00"]),
    "datetime": (
        tidb.temporal(Tp.DATETIME, 6),
        "DATETIME(6)",
        ["0000-00-00 00:00:00.000000", "2021-02-30 01:02:03.000001", "9999-12-31 23:59:59.999999"],
    ),
    "timestamp": (
        tidb.temporal(Tp.TIMESTAMP, 3),
        "TIMESTAMP(3) NULL",
        ["0000-00-00 00:00:00.000", "1970-01-01 00:00:01.000", "2038-01-19 03:14:07.999"],
    ),
    "time": (
        tidb.temporal(Tp.DURATION, 2),
        "TIME(2)",
        ["-838:59:59.00", "838:59:59.00", "00:00:00.00", "-00:00:00.01"],
    ),
    "year": (tidb.year(), "YEAR", [0, 1901, 2155, 2000]),
    "char": (tidb.char(20), "CHAR(20) COLLATE utf8mb4_bin", [b"a", b"", b"A", "😀".encode()]),
    "varchar": (
        tidb.varchar(20),
        "VARCHAR(20) COLLATE utf8mb4_bin",
        [b"a", b"a ", b"\\'\0\"", b""],
    ),
    "ci": (CI, "VARCHAR(40) COLLATE utf8mb4_general_ci", [b"a", b"A", b"a ", "ä".encode(), b""]),
    "latin": (LATIN, "VARCHAR(40) CHARACTER SET latin1", ["é".encode(), b"e", b"E", "€".encode()]),
    "gbk": (GBK, "VARCHAR(40) CHARACTER SET gbk", ["一".encode(), b"a", b"A", b"\\"]),
    "tinytext": (tidb.text("TINY"), "TINYTEXT COLLATE utf8mb4_bin", [b"x", b"x ", b""]),
    "binary": (tidb.binary(4), "BINARY(4)", [b"a\0\0\0", b"\0\0\0\0", b"\xff\xfe ~"]),
    "varbinary": (tidb.varbinary(9), "VARBINARY(9)", [b"", b"\0", b"a", b"a ", b"\xff\\'"]),
    "blob": (tidb.blob(), "BLOB", [b"", b"\0" * 9, bytes(range(256))]),
    "enum": (tidb.enum("a", "b"), "ENUM('a','b')", [0, 1, 2]),
    "set": (tidb.set_of("a", "b", "c"), "SET('a','b','c')", [0, 1, 5, 7]),
    "bit": (tidb.bits(64), "BIT(64)", [0, 1, (1 << 64) - 1, 1 << 63]),
    "bit1": (tidb.bits(1), "BIT(1)", [0, 1]),
    "json": (
        tidb.json(),
        "JSON",
        ['{"a": [1, 2.5, null, true, "x\\\\"], "ä": {}}', "null", "[]", '"a\'b"', "1e16", "{}"],
    ),
}


def made(kinds: Sequence[str]) -> TableAt:
    columns = tuple(Column(n, f"c{n}", n - 1, KINDS[each][0]) for n, each in enumerate(kinds, 1))
    return TableAt("s", Table(1, "t", columns), 1, None, {}, may_lack_columns=False)


def change(at: TableAt, kind: int, old: Sequence[Value], new: Sequence[Value] = ()) -> TableChange:
    values = dict(enumerate(old, 1))
    if kind == 0:
        row = encode_insert(at.info, values, handle=1)
        return TableChange(at, Mutation(1, [row], [], [], b"\0"))
    if kind == 1:
        row = encode_update(at.info, values, dict(enumerate(new, 1)), handle=1)
        return TableChange(at, Mutation(1, [], [row], [], b"\1"))
    return TableChange(at, Mutation(1, [], [], [encode_delete(at.info, values, handle=1)], b"\4"))


@pytest.mark.parametrize("kind", KINDS)
async def test_every_value_is_found_again_in_a_table_without_a_key(
    kind: str, mariadb: MariaDb
) -> None:
    """Two equal rows of each value: one is changed to the next value and deleted, one stays."""
    mariadb.execute("CREATE DATABASE s", f"CREATE TABLE s.t (c1 {KINDS[kind][1]})")
    at, sink = made([kind]), sink_for(mariadb)
    values: list[Value] = [*KINDS[kind][2], None]
    changes = [change(at, 0, [each]) for each in values for _ in range(2)]
    async with running(sink):
        ts = 10
        for each in changes:
            await sink.submit([Dml(Tso(ts), Tso(ts + 1), 1, (each,))])
            ts += 10
        await sink.flush()
        before = sorted(
            mariadb.execute(
                "SELECT COALESCE(HEX(c1), ''), COUNT(*) FROM s.t GROUP BY c1 IS NULL, BINARY c1"
            )
        )
        for old, new in zip(values, values[1:] + values[:1], strict=True):
            for each in (change(at, 1, [old], [new]), change(at, 4, [new])):
                await sink.submit([Dml(Tso(ts), Tso(ts + 1), 1, (each,))])
                ts += 10
        await sink.flush()
    after = sorted(
        mariadb.execute(
            "SELECT COALESCE(HEX(c1), ''), COUNT(*) FROM s.t GROUP BY c1 IS NULL, BINARY c1"
        )
    )
    assert [n for _, n in before] == [b"2"] * len(values)
    assert after == [(each, b"1") for each, _ in before]


NO_KEYS = {"json", "blob", "tinytext"}


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in NO_KEYS])
async def test_every_value_is_found_again_by_a_key(kind: str, mariadb: MariaDb) -> None:
    """Of the key values all are written, every other deleted, the rest changed and moved."""
    sql_type = KINDS[kind][1].removesuffix(" NULL")
    mariadb.execute(
        "CREATE DATABASE s",
        f"CREATE TABLE s.t (c1 {sql_type} NOT NULL, c2 INT NOT NULL, c3 INT, PRIMARY KEY (c1, c2))",
    )
    columns = tuple(
        replace(each, field_type=replace(each.field_type, flag=each.field_type.flag | flag))
        for each, flag in zip(made([kind, "bigint", "bigint"]).info.columns, (3, 3, 0), strict=True)
    )
    key = Index(1, "PRIMARY", (IndexColumn("c1", 0), IndexColumn("c2", 1)), is_unique=True)
    info = Table(1, "t", columns, indexes=(replace(key, is_primary=True),))
    at = TableAt("s", info, 1, None, {}, may_lack_columns=False)
    rows = [
        (value, 10 * place, place % 4)
        for place, value in enumerate(each for each in KINDS[kind][2] for _ in range(4))
    ]
    changes = [change(at, 0, row) for row in rows]
    changes += [change(at, 4, row) for row in rows if row[2] == 0]
    changes += [change(at, 1, row, (*row[:2], 77)) for row in rows if row[2] == 1]
    changes += [change(at, 1, row, (row[0], row[1] + 5, 88)) for row in rows if row[2] == 2]
    sink = sink_for(mariadb)
    async with running(sink):
        for number, each in enumerate(changes):
            await sink.submit([Dml(Tso(10 * number + 10), Tso(10 * number + 11), 1, (each,))])
            if number % 5 == 4:
                await sink.flush()
        await sink.flush()
    count = len(KINDS[kind][2])
    assert mariadb.execute("SELECT c3, COUNT(*) FROM s.t GROUP BY c3 ORDER BY c3") == [
        (value, b"%d" % count) for value in (b"3", b"77", b"88")
    ]
