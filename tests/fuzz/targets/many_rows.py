"""Rows read by columns are what they are one by one, or refused as they are."""

from __future__ import annotations

from collections.abc import Iterator

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.datums import RowSpans, columns
from binlogd.snapshot.log.events import Run
from binlogd.snapshot.log.rowkey import pairs
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.wire.mutation import Mutation
from tests.unit.snapshot.test_many_rows import TABLES, one_by_one, together

_NAMES = sorted(TABLES)
_ROW: dict[int, Value] = {1: b"text", 2: 77, 3: "12.0012", 70: 1.5, 71: '{"a": [1, "b"]}'}


def seeds() -> Iterator[bytes]:
    """A row of each kind of each table."""
    for number, name in enumerate(_NAMES):
        table, _ = TABLES[name]
        for kind, row in enumerate(
            (
                encode_insert(table, _ROW, handle=77),
                encode_update(table, _ROW, {**_ROW, 2: 78}, handle=77),
                encode_delete(table, _ROW, handle=77),
            )
        ):
            yield bytes([number * 3 + kind]) + row


def run(data: bytes) -> None:
    """The first byte says which table, and what happened to the row."""
    if not data:
        return
    number, place = divmod(data[0] % (3 * len(_NAMES)), 3)
    kind, row = (0, 1, 4)[place], data[1:]
    table, handle = TABLES[_NAMES[number]]
    rows: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
    rows[kind] = [row, row]
    runs = [Run(Mutation(table.id, rows[0], rows[1], rows[4], bytes([kind] * 2)), 5, 1)]
    ways = []
    for way in (together, one_by_one):
        try:
            ways.append(way(handle, runs, keeps_gone=bool(data[0] % 2)))
        except CorruptRow:
            ways.append([])
    assert ways[0] == ways[1]
    many = RowSpans.joined([row])
    found = columns(many, many.begins)
    if not found.is_slow[0]:
        assert int(found.count[0]) == len(pairs(row, 0))
