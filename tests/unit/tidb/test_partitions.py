"""In which partition a row lies, by TiDB's own rules."""

from __future__ import annotations

import pytest

from binlogd.tidb.kinds import FLAG_UNSIGNED, PartitionKind, Tp
from binlogd.tidb.model import Column, FieldType, Table, table_from_json, table_to_json
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.row import Value

INT, UNSIGNED = FieldType(Tp.LONG), FieldType(Tp.LONGLONG, flag=FLAG_UNSIGNED)
DATE, MOMENT, STAMP = FieldType(Tp.DATE), FieldType(Tp.DATETIME), FieldType(Tp.TIMESTAMP)
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
FOLDED = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_general_ci")
RANGE, LIST, HASH, KEY = (
    PartitionKind.RANGE,
    PartitionKind.LIST,
    PartitionKind.HASH,
    PartitionKind.KEY,
)


def table(
    kind: PartitionKind, by: str | tuple[str, ...], types: list[FieldType], parts: list[Partition]
) -> Table:
    columns = tuple(Column(n, "abc"[n - 1], n - 1, each) for n, each in enumerate(types, 1))
    expr, names = (by, ()) if isinstance(by, str) else ("", by)
    ids = tuple(part.id for part in parts)
    told = Partitioning(kind, expr, names, tuple(parts))
    return Table(1, "t", columns, partition_ids=ids, partitioning=told)


def below(*bounds: str | tuple[str, ...]) -> list[Partition]:
    texts = [(each,) if isinstance(each, str) else each for each in bounds]
    return [Partition(number, text) for number, text in enumerate(texts, 10)]


def holding(*lists: list[tuple[str, ...]]) -> list[Partition]:
    return [Partition(number, (), tuple(values)) for number, values in enumerate(lists, 10)]


@pytest.mark.parametrize(
    ("info", "row", "place"),
    [
        (table(RANGE, "`a`", [INT], below("-5", "100", "MAXVALUE")), [-6], 10),
        (table(RANGE, "`a`", [INT], below("-5", "100", "MAXVALUE")), [-5], 11),
        (table(RANGE, "`a`", [INT], below("-5", "100", "MAXVALUE")), [2**40], 12),
        (table(RANGE, "`a`", [INT], below("-5", "100")), [None], 10),
        (table(RANGE, "YEAR(`a`)", [DATE], below("2020", "2021")), ["2020-12-31"], 11),
        (table(RANGE, "to_days(`a`)", [MOMENT], below("738000")), ["2020-07-27 23:59:59"], 10),
        (
            table(RANGE, "UNIX_TIMESTAMP(`a`)", [STAMP], below("60", "70")),
            ["1970-01-01 00:01:00"],
            11,
        ),
        (table(RANGE, ("a",), [TEXT], below("'b'", "'d'")), [b"b "], 11),
        (
            table(
                RANGE, ("a", "b"), [MOMENT, INT], below(("'2020-01-01'", "10"), ("MAXVALUE",) * 2)
            ),
            ["2020-01-01 00:00:00", 9],
            10,
        ),
        (
            table(
                RANGE, ("a", "b"), [MOMENT, INT], below(("'2020-01-01'", "10"), ("MAXVALUE",) * 2)
            ),
            ["2020-01-01 00:00:00", 10],
            11,
        ),
        (table(LIST, "`a`", [INT], holding([("1",), ("2",)], [("NULL",)])), [None], 11),
        (table(LIST, ("a",), [TEXT], holding([("'it''s'",)], [("DEFAULT",)])), [b"it's"], 10),
        (table(LIST, ("a",), [TEXT], holding([("'it''s'",)], [("DEFAULT",)])), [b"else"], 11),
        (
            table(LIST, ("a", "b"), [INT, TEXT], holding([("1", "'x'")], [("1", "'y'")])),
            [1, b"y"],
            11,
        ),
        (table(HASH, "`a`", [INT], below("", "", "")), [-7], 11),
        (table(HASH, "`a`", [INT], below("", "", "")), [None], 10),
        (table(HASH, "`a`", [UNSIGNED], below("", "", "")), [2**64 - 1], 11),
    ],
)
def test_a_row_lies_where_its_values_say(info: Table, row: list[Value], place: int) -> None:
    told = table_from_json(table_to_json(info))
    assert told.partitioning == info.partitioning
    assert PartitionLookup(told).find(dict(enumerate(row, 1))) == place


@pytest.mark.parametrize(
    "info",
    [
        table(KEY, ("a",), [INT], below("", "")),
        table(RANGE, "`a` + `b`", [INT, INT], below("5")),
        table(RANGE, "YEAR(`a`)", [STAMP], below("2020")),
        table(RANGE, "UNIX_TIMESTAMP(`a`)", [MOMENT], below("2020")),
        table(LIST, ("a",), [FOLDED], holding([("'x'",)])),
        table(LIST, ("a",), [TEXT], holding([(r"'\\'",)])),
        table(RANGE, "`gone`", [INT], below("5")),
        Table(1, "t", ()),
    ],
)
def test_what_is_not_certain_is_refused(info: Table) -> None:
    with pytest.raises(Unplaceable):
        PartitionLookup(info)


def test_a_row_that_no_partition_takes_is_told() -> None:
    places = PartitionLookup(table(RANGE, "`a`", [INT], below("5")))
    with pytest.raises(Unplaceable, match="fits none"):
        places.find({1: 5})
