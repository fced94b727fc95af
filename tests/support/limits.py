"""A column of each type that a snapshot can have, with values at the limits of MySQL's types."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from binlogd.snapshot.formats.columns import spark_type
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.spec import ColumnEntry, FileEntry, TableEntry


class Held(NamedTuple):
    """A column and its values."""

    name: str
    mysql: str
    values: pa.Array


def _moments(*values: str, zone: str | None = None) -> pa.Array:
    return pa.array([*values, None]).cast(pa.timestamp("us", zone))


def _plain(type_: pa.DataType, *values: Any) -> pa.Array:
    return pa.array([*values, None], type_)


_WALL = ("0001-01-01 00:00:00.000001", "1500-03-04 01:02:03", "1969-12-31 23:59:59.999999")
_INSTANTS = ("1970-01-01 00:00:01Z", "2038-01-19 03:14:07.999999Z", "1999-12-31 23:59:59.000001Z")
COLUMNS = [
    Held("tiny", "tinyint", _plain(pa.int8(), -128, 127, 0, 1)),
    Held("utiny", "tinyint unsigned", _plain(pa.int16(), 0, 255, 1, 2)),
    Held("medium", "mediumint", _plain(pa.int32(), -(2**23), 2**23 - 1, 0, 1)),
    Held("big", "bigint", _plain(pa.int64(), -(2**63), 2**63 - 1, 0, 2**53 + 1)),
    Held(
        "ubig", "bigint unsigned", _plain(pa.decimal128(20, 0), *map(Decimal, (0, 2**64 - 1, 1, 2)))
    ),
    Held(
        "whole",
        "decimal(38,0)",
        _plain(pa.decimal128(38, 0), *map(Decimal, ("9" * 38, "-" + "9" * 38, "0", "1"))),
    ),
    Held(
        "part",
        "decimal(38,30)",
        _plain(
            pa.decimal128(38, 30),
            *map(Decimal, ("0." + "9" * 30, "-0." + "0" * 29 + "1", "0", "99999999")),
        ),
    ),
    Held(
        "single",
        "float",
        _plain(pa.float32(), 3.4028234663852886e38, -1.1754943508222875e-38, 0.1, 16777216),
    ),
    Held(
        "double",
        "double",
        _plain(pa.float64(), 1.7976931348623157e308, -2.2250738585072014e-308, 0.1, 1e16),
    ),
    Held(
        "text",
        "varchar(99)",
        _plain(pa.string(), "", "\\N", 'a "quoted", \\text\r\nof\ttwo lines\n', "日本 😀"),
    ),
    Held("bytes", "varbinary(9)", _plain(pa.binary(), b"", b"\0\xff", b"\\N", b'",\n')),
    Held("flag", "bit(1)", _plain(pa.bool_(), True, False, True, False)),
    Held("bits", "bit(12)", _plain(pa.int64(), 0, 4095, 49, 92)),
    Held("year", "year", _plain(pa.int32(), 0, 1901, 2155, 2000)),
    Held(
        "day",
        "date",
        pa.array(["0001-01-01", "1582-10-04", "9999-12-31", "1970-01-01", None]).cast(pa.date32()),
    ),
    Held("wall", "datetime(6)", _moments(*_WALL, "9999-12-31 23:59:59.999999")),
    Held("instant", "timestamp(6)", _moments(*_INSTANTS, "2001-02-03 04:05:06Z", zone="UTC")),
    Held(
        "span",
        "time(6)",
        _plain(
            pa.int64(), -(838 * 3600 + 59 * 60 + 59) * 10**6, 838 * 3600 * 10**6 + 999999, 0, -1
        ),
    ),
    Held("doc", "json", _plain(pa.string(), '{"a": [1, null, "x\\"y"]}', "null", "[]", '""')),
    Held("label", "enum('a','')", _plain(pa.string(), "a", "", "a", "it's")),
]


def rows(columns: Sequence[Held]) -> pa.Table:
    """The columns side by side."""
    return pa.table({each.name: each.values for each in columns})


def entry(columns: Sequence[Held], kind: FileKind, file: str = "t") -> TableEntry:
    """How a manifest describes them in a file of this kind."""
    described = []
    for number, each in enumerate(columns, 1):
        kept = kind.kept(each.values.type, each.mysql)
        described.append(
            ColumnEntry(
                number, each.name, each.mysql, str(kept.type), spark_type(kept.type), kept.encoding
            )
        )
    count = len(columns[0].values)
    return TableEntry(
        database="d",
        table="t",
        table_id=1,
        rows=count,
        columns=tuple(described),
        left_out_columns=(),
        losses={},
        files=(FileEntry(file, count, 0, ""),),
    )
