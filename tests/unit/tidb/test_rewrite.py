"""Values that a MODIFY COLUMN rewrote: as TiDB converted them, or not at all."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tidb.rewrite import Unconvertible, converter
from binlogd.tidb.row import Value


def column(tp: int, **kind: Any) -> Column:
    return Column(1, "c", 0, FieldType(tp, **{"charset": "utf8mb4", **kind}))


INT = column(Tp.LONG)
TEXT = column(Tp.VARCHAR, flen=20)
CHAR = column(Tp.STRING, flen=5)
MONEY = column(Tp.NEW_DECIMAL, flen=10, decimal=1)
DOUBLE = column(Tp.DOUBLE)
LETTERS = column(Tp.ENUM, elems=("a", "b"))
MORE_LETTERS = column(Tp.ENUM, elems=("z", "B", "a"), collate="utf8mb4_general_ci")
BINARY_LETTERS = column(Tp.ENUM, elems=("B", "b"), collate="utf8mb4_bin")
FLAGS = column(Tp.SET, elems=("x", "y"))
FLAGS_OF_LETTERS = column(Tp.SET, elems=("b", "c"))
INT64 = column(Tp.LONGLONG)
MORE_FLAGS = column(Tp.SET, elems=("w", "y", "x"))

SOME_OF_ALL = [
    *(INT, TEXT, CHAR, MONEY, DOUBLE, LETTERS, FLAGS, column(Tp.BLOB, charset="binary")),
    *map(
        column,
        (Tp.FLOAT, Tp.BIT, Tp.YEAR, Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION, Tp.JSON),
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "value", "converted"),
    [
        (INT, TEXT, -7, b"-7"),
        (TEXT, INT, b" 12 ", 12),
        (MONEY, INT, "2.5", 3),
        (MONEY, INT, "-2.5", -3),
        (DOUBLE, INT, 2.5, 2),
        (INT, MONEY, 3, "3.0"),
        (column(Tp.NEW_DECIMAL, flen=10, decimal=3), MONEY, "-0.049", "0.0"),
        (TEXT, DOUBLE, b"1e3", 1000.0),
        (TEXT, CHAR, b"ab  ", b"ab"),
        (TEXT, column(Tp.STRING, flen=4, charset="binary"), b"ab", b"ab\0\0"),
        (LETTERS, TEXT, 2, b"b"),
        (LETTERS, MORE_LETTERS, 2, 2),
        (LETTERS, MORE_LETTERS, 1, 3),
        (LETTERS, BINARY_LETTERS, 2, 2),
        (LETTERS, FLAGS_OF_LETTERS, 2, 1),
        (TEXT, LETTERS, b"2", 2),
        (DOUBLE, column(Tp.NEW_DECIMAL, flen=30, decimal=5), 0.1, "0.10000"),
        (
            DOUBLE,
            column(Tp.NEW_DECIMAL, flen=65, decimal=30),
            1e30,
            "1" + "0" * 30 + "." + "0" * 30,
        ),
        (column(Tp.FLOAT), MONEY, 0.15000000596046448, "0.2"),
        (DOUBLE, TEXT, 0.1, b"0.1"),
        (TEXT, column(Tp.JSON), b'{"b": 1, "a": [1.0]}', '{"a": [1.0], "b": 1}'),
        (MONEY, column(Tp.JSON), "2.0", "2.0"),
        (LETTERS, column(Tp.JSON), 1, '"a"'),
        (column(Tp.JSON), DOUBLE, "2", 2.0),
        (INT, column(Tp.YEAR), 69, 2069),
        (TEXT, column(Tp.YEAR), b"00", 2000),
        (INT, column(Tp.DATE), 20200229, "2020-02-29"),
        (TEXT, column(Tp.DATETIME, decimal=0), b"2020-12-31 23:59:59.5", "2021-01-01 00:00:00"),
        (column(Tp.DATETIME, decimal=1), INT64, "2020-12-31 23:59:59.5", 20210101000000),
        (column(Tp.DURATION, decimal=1), INT, "11:59:59.9", 120000),
        (INT, column(Tp.DURATION), -112233, "-11:22:33"),
        (LETTERS, INT, 2, 2),
        (FLAGS, MORE_FLAGS, 3, 6),
        (column(Tp.YEAR), TEXT, 0, b"0000"),
        (column(Tp.JSON), TEXT, '{"a": 1}', b'{"a": 1}'),
        (column(Tp.DATETIME), column(Tp.DATE), "2020-01-02 03:04:05", "2020-01-02"),
        (column(Tp.DATE), column(Tp.DATETIME, decimal=2), "2020-01-02", "2020-01-02 00:00:00.00"),
        (
            column(Tp.DATETIME, decimal=6),
            column(Tp.DATETIME, decimal=0),
            "2020-12-31 23:59:59.500000",
            "2021-01-01 00:00:00",
        ),
        (column(Tp.DURATION), column(Tp.DURATION, decimal=3), "-01:00:00", "-01:00:00.000"),
    ],
)
def test_a_known_conversion(old: Column, new: Column, value: Value, converted: Value) -> None:
    convert = converter(old, new)
    assert convert(value) == converted
    assert convert(None) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (column(Tp.TIMESTAMP), column(Tp.DATETIME)),
        (column(Tp.DATE), column(Tp.TIMESTAMP)),
        (TEXT, column(Tp.TIMESTAMP)),
        (column(Tp.TIMESTAMP), INT64),
        (column(Tp.DURATION), column(Tp.DATETIME)),
        (column(Tp.YEAR), column(Tp.DATE)),
        (column(Tp.BIT, flen=8), TEXT),
        (DOUBLE, column(Tp.DATE)),
        (column(Tp.DATE), column(Tp.JSON)),
    ],
)
def test_what_is_not_certain_is_refused(old: Column, new: Column) -> None:
    with pytest.raises(Unconvertible, match="MODIFY COLUMN"):
        converter(old, new)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (TEXT, INT, b"twelve"),
        (TEXT, INT, b"1_000"),
        (TEXT, INT, "１２".encode()),
        (TEXT, INT, b"1e999999999"),
        (TEXT, DOUBLE, b"inf"),
        (LETTERS, column(Tp.ENUM, elems=("b",)), 1),
        (LETTERS, column(Tp.ENUM, elems=("A", "b"), collate="utf8mb4_bin"), 1),
        (INT, column(Tp.TINY), 300),
        (INT, column(Tp.LONG, flag=32), -1),
        (MONEY, column(Tp.NEW_DECIMAL, flen=3, decimal=1), "123.0"),
        (TEXT, column(Tp.VARCHAR, flen=2), b"abc"),
        (TEXT, column(Tp.VARCHAR, flen=20, charset="gbk"), "ä".encode()),
        (TEXT, column(Tp.DATE), b"2021-02-29"),
        (TEXT, column(Tp.DATE), b"21.2.3"),
        (DOUBLE, TEXT, 1e20),
        (column(Tp.DURATION, decimal=1), column(Tp.DURATION), "-00:00:00.5"),
        (column(Tp.JSON), INT, '"7"'),
    ],
)
def test_a_value_that_may_have_been_cut_is_refused(old: Column, new: Column, value: Value) -> None:
    with pytest.raises(Unconvertible, match="cannot be converted for certain"):
        converter(old, new)(value)


def there_and_back(old: Column, between: Column, value: Value) -> Value:
    return converter(between, old)(converter(old, between)(value))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_integer_comes_back_from_text_and_decimal(value: int) -> None:
    wide = column(Tp.NEW_DECIMAL, flen=20, decimal=0)
    assert there_and_back(INT64, TEXT, value) == value
    assert there_and_back(INT64, wide, value) == value
    if abs(value) <= 1 << 53:  # versions of TiDB differ for others
        assert there_and_back(INT64, column(Tp.JSON), value) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
def test_a_decimal_is_rounded_as_on_paper(value: Decimal) -> None:
    exact = column(Tp.NEW_DECIMAL, flen=65, decimal=30)
    with localcontext(prec=100):
        text = f"{value.quantize(Decimal(1).scaleb(-30)):f}"
        rounded = Decimal(text).quantize(Decimal("0.1"), ROUND_HALF_UP)
    found = converter(exact, column(Tp.NEW_DECIMAL, flen=40, decimal=1))(text)
    assert Decimal(str(found)) == rounded
    assert not str(found).startswith("-0.0")
    long = column(Tp.VARCHAR, flen=80)
    assert Decimal(str(there_and_back(exact, long, text))) == Decimal(text)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e20, max_value=1e20))
def test_a_double_becomes_the_decimal_that_it_is_printed_as(value: float) -> None:
    found = converter(DOUBLE, column(Tp.NEW_DECIMAL, flen=30, decimal=5))(value)
    with localcontext(prec=100):
        assert Decimal(str(found)) == Decimal(repr(value)).quantize(
            Decimal("0.00001"), ROUND_HALF_UP
        )
    if value == 0 or 1e-4 <= abs(value) < 1e15:
        assert there_and_back(DOUBLE, column(Tp.VARCHAR, flen=40), value) == value


@given(st.datetimes(), st.integers(0, 6))
def test_a_moment_comes_back_from_text_whatever_its_fraction(moment: datetime, fsp: int) -> None:
    value = moment.isoformat(" ", "microseconds")[: 19 + (fsp + 1 if fsp else 0)]
    kind, long = column(Tp.DATETIME, decimal=fsp), column(Tp.VARCHAR, flen=40)
    assert there_and_back(kind, long, value) == value
    assert there_and_back(kind, column(Tp.DATETIME, decimal=6), value) == value
    clock = f"-1{value[11:]}"  # there is no -00:00:00
    assert there_and_back(column(Tp.DURATION, decimal=fsp), long, clock) == clock


@pytest.mark.parametrize(("old", "new"), list(product(SOME_OF_ALL, SOME_OF_ALL)))
def test_every_pair_of_types_is_told_or_refused_with_a_reason(old: Column, new: Column) -> None:
    assert re.fullmatch("|.*(time zone|the day|no certain rule).*", refusal(old, new))


def refusal(old: Column, new: Column) -> str:
    try:
        converter(old, new)
    except Unconvertible as error:
        return str(error)
    return ""
