"""Values on their way into Arrow: exact where they fit, counted where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from binlogd.errors import CorruptRow
from binlogd.snapshot.formats.columns import (
    Losses,
    arrow_column,
    mysql_type,
    spark_type,
)
from binlogd.snapshot.spec import TypeOptions
from binlogd.tidb.kinds import FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tidb.row import Value
from binlogd.tidb.times import duration_us

TEXT = {"charset": "utf8mb4"}
BYTES = {"charset": "binary"}


def column(tp: int, **kind: Any) -> Column:
    return Column(1, "c", 0, FieldType(tp, **kind))


def out(column: Column, values: Sequence[Value], losses: Losses | None = None) -> list[Any]:
    way = arrow_column(column, TypeOptions(invalid_text="replace"))
    array = way.build(values, Counter() if losses is None else losses)
    assert array.type == way.type
    held: list[Any] = array.to_pylist()
    return held


@pytest.mark.parametrize(
    ("column", "mysql", "spark", "value", "held"),
    [
        (column(Tp.TINY), "tinyint", "TINYINT", -128, -128),
        (column(Tp.TINY, flag=FLAG_UNSIGNED), "tinyint unsigned", "SMALLINT", 255, 255),
        (column(Tp.SHORT, flag=FLAG_UNSIGNED), "smallint unsigned", "INT", 65535, 65535),
        (column(Tp.LONG, flag=FLAG_UNSIGNED), "int unsigned", "BIGINT", 2**32 - 1, 2**32 - 1),
        (
            column(Tp.LONGLONG, flag=FLAG_UNSIGNED),
            "bigint unsigned",
            "DECIMAL(20,0)",
            2**64 - 1,
            Decimal(2**64 - 1),
        ),
        (column(Tp.YEAR, flag=FLAG_UNSIGNED), "year", "INT", 0, 0),
        (
            column(Tp.NEW_DECIMAL, flen=38, decimal=10),
            "decimal(38,10)",
            "DECIMAL(38,10)",
            "-1234567890123456789012345678.0000000001",
            Decimal("-1234567890123456789012345678.0000000001"),
        ),
        (column(Tp.NEW_DECIMAL, flen=39, decimal=0), "decimal(39,0)", "STRING", "9" * 39, "9" * 39),
        (column(Tp.FLOAT), "float", "FLOAT", 3.140000104904175, 3.140000104904175),
        (column(Tp.BIT, flen=1), "bit(1)", "BOOLEAN", 1, True),
        (column(Tp.BIT, flen=63), "bit(63)", "BIGINT", 2**63 - 1, 2**63 - 1),
        (column(Tp.BIT, flen=64), "bit(64)", "DECIMAL(20,0)", 2**63, Decimal(2**63)),
        (column(Tp.VARCHAR, flen=9, **TEXT), "varchar(9)", "STRING", "日本".encode(), "日本"),
        (column(Tp.VARCHAR, flen=9, **BYTES), "varbinary(9)", "BINARY", b"\xff\0", b"\xff\0"),
        (column(Tp.LONG_BLOB, **TEXT), "longtext", "STRING", b"", ""),
        (column(Tp.ENUM, elems=("a", "it's")), "enum('a','it''s')", "STRING", 2, "it's"),
        (column(Tp.SET, elems=("x", "y", "z")), "set('x','y','z')", "STRING", 5, "x,z"),
        (column(Tp.JSON), "json", "STRING", '{"a": 1}', '{"a": 1}'),
        (column(Tp.DATE), "date", "DATE", "9999-12-31", date(9999, 12, 31)),
        (
            column(Tp.DATETIME, decimal=6),
            "datetime(6)",
            "TIMESTAMP_NTZ",
            "0001-01-01 00:00:00.000001",
            datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - a wall clock has no zone
        ),
        (
            column(Tp.TIMESTAMP, decimal=0),
            "timestamp",
            "TIMESTAMP",
            "1970-01-01 00:00:01",
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        (column(Tp.DURATION, decimal=2), "time(2)", "BIGINT", "-838:59:59.99", -3020399990000),
    ],
)
def test_a_value_of_each_type(
    column: Column, mysql: str, spark: str, value: Value, held: object
) -> None:
    assert mysql_type(column) == mysql
    assert spark_type(arrow_column(column, TypeOptions()).type) == spark
    assert out(column, [value, None]) == [held, None]


@pytest.mark.parametrize(
    ("tp", "impossible"),
    [
        (Tp.DATE, "0000-00-00"),
        (Tp.DATE, "2020-00-10"),
        (Tp.DATE, "2021-02-30"),
        (Tp.DATE, "0000-01-01"),
        (Tp.DATETIME, "0000-00-00 00:00:00"),
        (Tp.TIMESTAMP, "0000-00-00 00:00:00"),
    ],
)
def test_a_date_of_no_calendar_is_null_and_counted(tp: int, impossible: str) -> None:
    losses: Losses = Counter()
    possible = "2020-02-29" + (" 10:00:00" if tp != Tp.DATE else "")
    held = out(column(tp), [impossible, None, possible], losses)
    assert held[:2] == [None, None]
    assert f"{held[2]:%Y-%m-%d}" == "2020-02-29"
    assert losses == {"impossible_date": 1}


def test_text_that_is_no_utf8_is_repaired_or_refused() -> None:
    losses: Losses = Counter()
    text = column(Tp.VARCHAR, **TEXT)
    assert out(text, [b"a\xffb", b"ok", None], losses) == ["a\ufffdb", "ok", None]
    assert losses == {"invalid_text": 1}
    with pytest.raises(CorruptRow, match="invalid-text=replace"):
        arrow_column(text, TypeOptions()).build([b"a\xffb"], losses)


def test_numbers_without_a_label_are_counted() -> None:
    losses: Losses = Counter()
    assert out(column(Tp.ENUM, elems=("a",)), [0, 1, 2, None], losses) == ["", "a", "", None]
    assert out(column(Tp.SET, elems=("a", "b")), [0, 7, None], losses) == ["", "a,b", None]
    assert losses == {"unknown_label": 2}


@pytest.mark.parametrize(
    ("text", "micros"),
    [("00:00:00", 0), ("-00:00:00.5", -500_000), ("01:01:01.000001", 3661000001)],
)
def test_a_time_is_a_number_of_microseconds(text: str, micros: int) -> None:
    assert duration_us(text) == micros
