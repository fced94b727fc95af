"""Columns of many types with values of each, to be made columns of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tidb.row import Value

UNSIGNED = 32
RNG = Random(11)


@dataclass(frozen=True)
class Kind:
    """A type of MySQL, the column that it makes, and values of it."""

    sql: str
    column: Column
    values: Sequence[Value]


def kind(sql: str, tp: int, values: Sequence[Value], **more: Any) -> Kind:
    return Kind(sql, Column(1, "c", 0, FieldType(tp, **{"charset": "utf8mb4", **more})), values)


def random_decimal() -> str:
    return f"{RNG.randrange(-(10**9), 10**9)}.{RNG.randrange(10**4):04d}".replace("-0.", "0.")


TEXTS = [
    b"",
    b"0",
    b"7",
    b" 12 ",
    b"-3.5",
    b"2.5",
    b"1e2",
    b"1.25e1",
    b"abc",
    b"12abc",
    b"b",
    b"x,y",
]
TEXTS += [b"2020-02-29", b"2021-02-29", b"1999-12-31 23:59:59.987654", b"12:34:56", b"-01:02:03.5"]
TEXTS += [b"2", b"70", b"b", b"0000", b"00", b"1901", b"\xc3\xa4", b"A"]
DAYS = ["1970-01-01", "2000-02-29", "2038-01-19", "9999-12-30", "1901-01-01", "2155-12-31"]
MOMENTS = [f"{day} {clock}" for day in DAYS for clock in ("00:00:00.000", "12:34:56.789")]
MOMENTS += ["2019-12-31 23:59:59.500", "2019-12-31 23:59:59.499"]
CLOCKS = [
    "00:00:00.00",
    "12:34:56.78",
    "-12:34:56.78",
    "838:59:58.99",
    "23:59:59.50",
    "-00:00:01.25",
]
DOUBLES = [0.0, 2.5, 3.5, -2.5, 0.1, 1e15, 123456.789, 1e-5, -0.049, 99.5, 1901.0, 2.675, 1e300]
DECIMALS = [random_decimal() for _ in range(20)]
DOUBLES += [RNG.uniform(-1e6, 1e6) for _ in range(20)]
INTS = [0, 1, 2, 3, 69, 70, 99, 127, 128, 255, 1901, 2155, 20200229, 20211231235959, 123456, -5]
INTS += [RNG.randrange(-(2**40), 2**40) for _ in range(5)]
KINDS = (
    kind("BIGINT", Tp.LONGLONG, INTS, flen=20),
    kind("TINYINT", Tp.TINY, [0, 1, 2, -128, 127], flen=4),
    kind("INT UNSIGNED", Tp.LONG, [0, 1, 3, 2**31, 2**32 - 1, 101112], flen=10, flag=UNSIGNED),
    kind("BIT(12)", Tp.BIT, [0, 1, 2, 69, 2020, 4095], flen=12),
    kind("YEAR", Tp.YEAR, [0, 1901, 1999, 2000, 2155], flen=4),
    kind("DOUBLE", Tp.DOUBLE, DOUBLES, flen=22),
    kind("DOUBLE(9,2)", Tp.DOUBLE, [0.0, 1.25, -7.5, 1999.0, 1234567.89], flen=9, decimal=2),
    kind("FLOAT", Tp.FLOAT, [0.0, 0.5, -2.5, 3.5, 1.25, 70.0, 65536.0], flen=12),
    kind("DECIMAL(14,4)", Tp.NEW_DECIMAL, DECIMALS, flen=14, decimal=4),
    kind("DECIMAL(30,0)", Tp.NEW_DECIMAL, ["0", "5", "-7", "2155", "101010"], flen=30, decimal=0),
    kind("VARCHAR(60)", Tp.VARCHAR, TEXTS, flen=60, collate="utf8mb4_bin"),
    kind("CHAR(40)", Tp.STRING, [each.rstrip() for each in TEXTS], flen=40, collate="utf8mb4_bin"),
    kind("VARBINARY(60)", Tp.VARCHAR, [b"", b"ab\0", b"12"], flen=60, charset="binary"),
    kind(
        "BINARY(50)",
        Tp.STRING,
        [b"".ljust(50, b"\0"), b"ab".ljust(50, b"\0")],
        flen=50,
        charset="binary",
    ),
    kind("ENUM('a','b','7')", Tp.ENUM, [1, 2, 3], elems=("a", "b", "7"), collate="utf8mb4_bin"),
    kind("SET('x','y','b')", Tp.SET, [0, 1, 3, 4, 7], elems=("x", "y", "b"), collate="utf8mb4_bin"),
    kind("DATE", Tp.DATE, DAYS, flen=10),
    kind("DATETIME(3)", Tp.DATETIME, MOMENTS, flen=23, decimal=3),
    kind("DATETIME", Tp.DATETIME, [each[:19] for each in MOMENTS], flen=19, decimal=0),
    kind("TIME(2)", Tp.DURATION, CLOCKS, flen=13, decimal=2),
    kind("TIME", Tp.DURATION, [each.partition(".")[0] for each in CLOCKS], flen=10, decimal=0),
)
