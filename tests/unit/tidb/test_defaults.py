"""Defaults of TiDB's JSON in the form of their column."""

from __future__ import annotations

from typing import Any

import pytest

from binlogd.errors import CorruptRow
from binlogd.tidb.columns import Value
from binlogd.tidb.defaults import in_form_of, missing_value, zero_value
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Scalar


def column(
    tp: Tp,
    flen: int = -1,
    decimal: int = -1,
    *,
    charset: str = "utf8mb4",
    elems: tuple[str, ...] = (),
    **rest: Any,
) -> Column:
    kind = FieldType(tp, rest.pop("flag", 0), flen, decimal, charset, "", elems)
    return Column(1, "c", 0, kind, **rest)


ABC = ("a", "b", "C")


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (column(Tp.LONG), "7", 7),
        (column(Tp.LONG), 7, 7),
        (column(Tp.LONG), "-2.5", -3),
        (column(Tp.TINY), True, 1),
        (column(Tp.LONGLONG, flag=FLAG_UNSIGNED), "18446744073709551615", (1 << 64) - 1),
        (column(Tp.YEAR), "0000", 0),
        (column(Tp.YEAR), "2024", 2024),
        (column(Tp.YEAR), "70", 1970),
        (column(Tp.DOUBLE), "-0.5", -0.5),
        (column(Tp.DOUBLE, 10, 1), "2.25", 2.2),
        (column(Tp.FLOAT), "3.14", 3.140000104904175),
        (column(Tp.NEW_DECIMAL, 8, 2), "2.5", "2.50"),
        (column(Tp.NEW_DECIMAL, 8, 2), "-2.555", "-2.56"),
        (column(Tp.NEW_DECIMAL, 8, 2), "-0.001", "0.00"),
        (column(Tp.NEW_DECIMAL, 8, 0), 3, "3"),
        (column(Tp.NEW_DECIMAL, 8, 3), "1e2", "100.000"),
        (column(Tp.DATE), "2020-01-02", "2020-01-02"),
        (column(Tp.DATE), "2020-01-02 03:04:05", "2020-01-02"),
        (column(Tp.DATETIME, 23, 3), "0000-00-00 00:00:00", "0000-00-00 00:00:00.000"),
        (column(Tp.DATETIME, 22, 2), "2021-06-01 09:00:00.25", "2021-06-01 09:00:00.25"),
        (column(Tp.TIMESTAMP, 19, 0), "2021-06-01 00:00:00", "2021-06-01 00:00:00"),
        (column(Tp.DURATION, 14, 3), "-12:34:56.5", "-12:34:56.500"),
        (column(Tp.DURATION, 10, 0), "00:00:00", "00:00:00"),
        (column(Tp.ENUM, elems=ABC), "b", 2),
        (column(Tp.ENUM, elems=ABC), "c", 3),
        (column(Tp.ENUM, elems=ABC), "3", 3),
        (column(Tp.ENUM, elems=ABC), "", 0),
        (column(Tp.SET, elems=ABC), "a,C", 5),
        (column(Tp.SET, elems=ABC), "", 0),
        (column(Tp.SET, elems=ABC), "3", 3),
        (column(Tp.VARCHAR, 9), "añb ", "añb ".encode()),
        (column(Tp.STRING, 9), "ab ", b"ab"),
        (column(Tp.STRING, 4, charset="binary"), "zz", b"zz\x00\x00"),
        (column(Tp.STRING, 2, charset="binary"), "\x00�", b"\x00\xef"),
        (column(Tp.VARCHAR, 9, charset="binary"), "zz", b"zz"),
        (column(Tp.BIT, 9), "", 0),
        (column(Tp.BIT, 9), "\x01\x01", 257),
        (column(Tp.BIT, 9, origin_default_bit=b"\x01\x02"), "??", 258),
        (column(Tp.JSON), '{"b": 1, "a": 2.0}', '{"a": 2.0, "b": 1}'),
        (column(Tp.JSON), "", "null"),
        (column(Tp.LONG), None, None),
    ],
)
def test_a_default_takes_the_form_of_its_column(
    kind: Column, default: Scalar, value: Value
) -> None:
    assert in_form_of(kind, default) == value


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (column(Tp.LONG), "seven"),
        (column(Tp.LONG), "NaN"),
        (column(Tp.NEW_DECIMAL, 8, 2), "1e999999"),
        (column(Tp.FLOAT), "1e300"),
        (column(Tp.DOUBLE), "inf"),
        (column(Tp.DATE), "yesterday"),
        (column(Tp.DATETIME), "2020-01-01 25:00:00"),
        (column(Tp.DURATION), "late"),
        (column(Tp.ENUM, elems=ABC), "d"),
        (column(Tp.SET, elems=ABC), "a,d"),
        (column(Tp.JSON), "{"),
        (column(Tp.GEOMETRY), "x"),
    ],
)
def test_a_default_that_the_column_cannot_hold_is_corrupt(kind: Column, default: Scalar) -> None:
    with pytest.raises(CorruptRow, match="column c"):
        in_form_of(kind, default)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (column(Tp.LONG), 0),
        (column(Tp.YEAR), 0),
        (column(Tp.BIT, 3), 0),
        (column(Tp.SET, elems=ABC), 0),
        (column(Tp.ENUM, elems=ABC), 1),
        (column(Tp.DOUBLE), 0.0),
        (column(Tp.NEW_DECIMAL, 8, 2), "0.00"),
        (column(Tp.NEW_DECIMAL, 8, 0), "0"),
        (column(Tp.VARCHAR, 8), b""),
        (column(Tp.STRING, 3, charset="binary"), b"\x00\x00\x00"),
        (column(Tp.DATE), "0000-00-00"),
        (column(Tp.TIMESTAMP, 19, 0), "0000-00-00 00:00:00"),
        (column(Tp.DATETIME, 21, 1), "0000-00-00 00:00:00.0"),
        (column(Tp.DURATION, 13, 2), "00:00:00.00"),
        (column(Tp.JSON), "null"),
    ],
)
def test_a_type_has_its_zero(kind: Column, value: Value) -> None:
    assert zero_value(kind) == value


def test_without_a_default_a_nullable_column_is_null_and_another_zero() -> None:
    assert missing_value(column(Tp.LONG)) is None
    assert missing_value(column(Tp.LONG, flag=FLAG_NOT_NULL)) == 0
    assert missing_value(column(Tp.LONG, origin_default="4")) == 4
    assert missing_value(column(Tp.BIT, 8, origin_default_bit=b"\x05")) == 5
