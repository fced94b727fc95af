"""Types at their limits, as pyarrow and Spark read them back from the files."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from binlogd.errors import ConfigError, CorruptRow
from binlogd.snapshot.formats.columns import Losses, arrow_column, spark_type
from binlogd.snapshot.spec import TypeOptions, type_options
from binlogd.snapshot.writing.files import FileTarget, TableFiles
from binlogd.tidb.kinds import FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tidb.row import Value
from tests.support.spark import WarmSpark

Case = tuple[str, FieldType, TypeOptions, list[tuple[Value, Any]]]


def of(tp: int, flag: int = 0, charset: str = "utf8mb4", **kind: Any) -> FieldType:
    return FieldType(tp, flag, charset=charset, **kind)


DEFAULT = TypeOptions()
UTC_FIRST = datetime(1, 1, 1, tzinfo=UTC)
WALL_FIRST = datetime(1, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
WALL_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - as above
CASES: list[Case] = [
    ("tiny", of(Tp.TINY), DEFAULT, [(-128, -128), (127, 127)]),
    ("tiny_u", of(Tp.TINY, FLAG_UNSIGNED), DEFAULT, [(0, 0), (255, 255)]),
    ("small_u", of(Tp.SHORT, FLAG_UNSIGNED), DEFAULT, [(0, 0), (65_535, 65_535)]),
    ("medium_u", of(Tp.INT24, FLAG_UNSIGNED), DEFAULT, [(0, 0), (2**24 - 1, 2**24 - 1)]),
    ("int_u", of(Tp.LONG, FLAG_UNSIGNED), DEFAULT, [(0, 0), (2**32 - 1, 2**32 - 1)]),
    ("big", of(Tp.LONGLONG), DEFAULT, [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)]),
    (
        "big_u",
        of(Tp.LONGLONG, FLAG_UNSIGNED),
        DEFAULT,
        [(0, Decimal(0)), (2**64 - 1, Decimal(2**64 - 1))],
    ),
    (
        "big_u_as_bigint",
        of(Tp.LONGLONG, FLAG_UNSIGNED),
        TypeOptions(bigint_unsigned="bigint"),
        [(0, 0), (2**63 - 1, 2**63 - 1)],
    ),
    ("truth", of(Tp.TINY, flen=1), TypeOptions(tinyint1="boolean"), [(0, False), (-3, True)]),
    (
        "decimal",
        of(Tp.NEW_DECIMAL, flen=38, decimal=30),
        DEFAULT,
        [
            ("-" + "9" * 8 + "." + "9" * 30, Decimal("-" + "9" * 8 + "." + "9" * 30)),
            ("0." + "0" * 29 + "1", Decimal("0." + "0" * 29 + "1")),
        ],
    ),
    (
        "decimal_65",
        of(Tp.NEW_DECIMAL, flen=65, decimal=0),
        DEFAULT,
        [("9" * 65, "9" * 65), ("-" + "9" * 65, "-" + "9" * 65)],
    ),
    (
        "decimal_65_cast",
        of(Tp.NEW_DECIMAL, flen=65, decimal=2),
        TypeOptions(decimal38="cast"),
        [("9" * 36 + ".99", Decimal("9" * 36 + ".99")), ("-0.01", Decimal("-0.01"))],
    ),
    ("double", of(Tp.DOUBLE), DEFAULT, [(1.7976931348623157e308,) * 2, (5e-324,) * 2]),
    ("year", of(Tp.YEAR), DEFAULT, [(0, 0), (2155, 2155)]),
    ("bit_1", of(Tp.BIT, flen=1), DEFAULT, [(0, False), (1, True)]),
    ("bit_64", of(Tp.BIT, flen=64), DEFAULT, [(0, Decimal(0)), (2**64 - 1, Decimal(2**64 - 1))]),
    ("text", of(Tp.VARCHAR), DEFAULT, [(b"", ""), ("\0\n'\"\\,𝄞".encode(), "\0\n'\"\\,𝄞")]),
    (
        "text_as_binary",
        of(Tp.VARCHAR),
        TypeOptions(invalid_text="binary"),
        [(b"\xff", b"\xff"), (b"", b"")],
    ),
    ("blob", of(Tp.BLOB, charset="binary"), DEFAULT, [(b"", b""), (b"\0\xff", b"\0\xff")]),
    ("set", of(Tp.SET, elems=("a", "b")), DEFAULT, [(0, ""), (3, "a,b")]),
    ("set_array", of(Tp.SET, elems=("a", "b")), TypeOptions(set="array"), [(0, []), (2, ["b"])]),
    ("date", of(Tp.DATE), DEFAULT, [("0001-01-01", date.min), ("9999-12-31", date.max)]),
    (
        "datetime",
        of(Tp.DATETIME, decimal=6),
        DEFAULT,
        [("0001-01-01 00:00:00.000000", WALL_FIRST), ("9999-12-31 23:59:59.999999", WALL_LAST)],
    ),
    (
        "date_as_text",
        of(Tp.DATETIME),
        TypeOptions(zero_dates="string"),
        [("0000-00-00 00:00:00",) * 2, ("2020-02-30 00:00:00",) * 2],
    ),
    (
        "stamp",
        of(Tp.TIMESTAMP, decimal=6),
        DEFAULT,
        [
            ("1970-01-01 00:00:01.000000", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
            (
                "2038-01-19 03:14:07.999999",
                datetime(2038, 1, 19, 3, 14, 7, 999_999, tzinfo=UTC),
            ),
        ],
    ),
    (
        "time",
        of(Tp.DURATION, decimal=6),
        DEFAULT,
        [("-838:59:59.000000", -3_020_399_000_000), ("838:59:59.000000", 3_020_399_000_000)],
    ),
    (
        "time_text",
        of(Tp.DURATION),
        TypeOptions(time="string"),
        [("-838:59:59",) * 2, ("00:00:00",) * 2],
    ),
    (
        "time_interval",
        of(Tp.DURATION, decimal=6),
        TypeOptions(time="interval"),
        [
            ("-838:59:59.000000", timedelta(seconds=-3_020_399)),
            ("00:00:00.000001", timedelta(microseconds=1)),
        ],
    ),
    (
        "time_of_day",
        of(Tp.DURATION, decimal=6),
        TypeOptions(time="time"),
        [("00:00:00.000000", time.min), ("23:59:59.999999", time.max)],
    ),
    ("json", of(Tp.JSON), DEFAULT, [("null", "null"), ('{"a": [1, "é"]}',) * 2]),
]


def test_limits_come_back_from_pyarrow_and_from_spark(spark: WarmSpark, tmp_path: Path) -> None:
    ways = [
        arrow_column(Column(number, name, number - 1, kind), options)
        for number, (name, kind, options, _) in enumerate(CASES, 1)
    ]
    schema = pa.schema([(way.column.name, way.type) for way in ways])
    files = TableFiles(1, "a.limits", schema, FileTarget(str(tmp_path), DEFAULT, 1000), "0")
    losses: dict[str, Losses] = {way.column.name: Counter() for way in ways}
    arrays = [
        way.build([*(value for value, _ in case[3]), None], losses[way.column.name])
        for way, case in zip(ways, CASES, strict=True)
    ]
    files.add(pa.RecordBatch.from_arrays(arrays, schema=schema), None, 1)
    (written,) = files.close()
    wanted = {name: [*(held for _, held in values), None] for name, _, _, values in CASES}
    path = tmp_path / written.file.name

    assert pq.read_table(path).to_pydict() == wanted
    spark.spark.conf.set("spark.sql.timeType.enabled", "true")
    read = spark.spark.read.parquet(str(path))
    assert {field.name: field.dataType.simpleString() for field in read.schema} == {
        way.column.name: spark_type(way.type).lower().replace("tinyint", "tinyint") for way in ways
    }
    assert read.toArrow().to_pydict() == wanted
    assert {name: lost for name, each in losses.items() if (lost := dict(+each))} == {
        "truth": {"not_boolean": 1}
    }


@pytest.mark.parametrize(
    ("kind", "options", "value"),
    [
        (of(Tp.LONGLONG, FLAG_UNSIGNED), TypeOptions(bigint_unsigned="bigint"), 2**63),
        (of(Tp.NEW_DECIMAL, flen=65, decimal=2), TypeOptions(decimal38="cast"), "9" * 37 + ".00"),
        (of(Tp.DATETIME), TypeOptions(zero_dates="error"), "0000-00-00 00:00:00"),
        (of(Tp.VARCHAR), DEFAULT, b"\xff"),
        (of(Tp.DURATION), TypeOptions(time="time"), "24:00:00"),
        (of(Tp.DURATION), TypeOptions(time="time"), "-00:00:01"),
    ],
)
def test_what_does_not_fit_ends_the_export(
    kind: FieldType, options: TypeOptions, value: Value
) -> None:
    with pytest.raises(CorruptRow, match="column c "):
        arrow_column(Column(1, "c", 0, kind), options).build([value], Counter())


def test_json_is_a_variant_that_spark_takes_apart(spark: WarmSpark, tmp_path: Path) -> None:
    documents = ['{"a": [1, 2.5, "é"], "b": null}', "null", "18446744073709551615", "[]", None]
    way = arrow_column(Column(1, "doc", 0, of(Tp.JSON)), TypeOptions(json="variant"))
    schema = pa.schema([("doc", way.type)])
    files = TableFiles(1, "a.docs", schema, FileTarget(str(tmp_path), DEFAULT, 1000), "0")
    array = way.build(documents, Counter())
    files.add(pa.RecordBatch.from_arrays([array], schema=schema), None, 1)
    (written,) = files.close()
    read = spark.spark.read.parquet(str(tmp_path / written.file.name))
    assert [field.dataType.simpleString() for field in read.schema] == ["variant"]
    found = read.selectExpr("to_json(doc)", "variant_get(doc, '$.a[1]', 'double')").collect()
    assert [row[0] for row in found] == [
        '{"a":[1,2.5,"é"],"b":null}',
        "null",
        "18446744073709551615",
        "[]",
        None,
    ]
    assert found[0][1] == 2.5
    assert way.entry().spark_type == "VARIANT"


def test_options_are_words() -> None:
    assert type_options([]) == DEFAULT
    assert type_options(["time=string", "tinyint1=boolean"]) == TypeOptions(
        time="string", tinyint1="boolean"
    )
    with pytest.raises(ConfigError, match="there is invalid-text, tinyint1"):
        type_options(["tiny=boolean"])
    with pytest.raises(ConfigError, match=r"time=micros\|string\|interval"):
        type_options(["time=minutes"])
