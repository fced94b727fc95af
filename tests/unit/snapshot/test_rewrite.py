"""Values that a MODIFY COLUMN rewrote: as TiDB converted them, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.snapshot.tables.rewrite import Unconvertible, converter
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tidb.row import Value


def column(tp: int, **kind: Any) -> Column:
    return Column(1, "c", 0, FieldType(tp, **{"charset": "utf8mb4", **kind}))


INT = column(Tp.LONG)
TEXT = column(Tp.VARCHAR, flen=20)
CHAR = column(Tp.STRING, flen=5)
MONEY = column(Tp.NEW_DECIMAL, flen=10, decimal=1)
DOUBLE = column(Tp.DOUBLE)
LETTERS = column(Tp.ENUM, elems=("a", "b"))
MORE_LETTERS = column(Tp.ENUM, elems=("z", "B", "a"))
FLAGS = column(Tp.SET, elems=("x", "y"))
MORE_FLAGS = column(Tp.SET, elems=("w", "y", "x"))


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
        (TEXT, column(Tp.JSON)),
        (DOUBLE, TEXT),
    ],
)
def test_what_is_not_certain_is_refused(old: Column, new: Column) -> None:
    with pytest.raises(Unconvertible, match="MODIFY COLUMN"):
        converter(old, new)


def test_a_value_that_does_not_convert_is_refused() -> None:
    with pytest.raises(Unconvertible, match="cannot be converted"):
        converter(TEXT, INT)(b"twelve")
    with pytest.raises(Unconvertible, match="cannot be converted"):
        converter(LETTERS, column(Tp.ENUM, elems=("b",)))(1)
