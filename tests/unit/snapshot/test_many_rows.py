"""Rows read many at a time are what they are one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.datums import Rows, columns
from binlogd.snapshot.log.row_changes import Run, changed
from binlogd.snapshot.log.rowkey import (
    ROWID,
    Handle,
    HandleKind,
    deleted,
    inserted,
    pairs,
    updated,
)
from binlogd.snapshot.log.vectors import padded, signed, uvarints
from binlogd.tidb.datum import read_uvarint, uvarint, varint
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.wire.mutation import Mutation

KEY = FLAG_PRIMARY_KEY | FLAG_NOT_NULL


def column(id_: int, tp: int, flag: int = 0, flen: int = 40, decimal: int = 0) -> Column:
    return Column(id_, f"c{id_}", id_ - 1, FieldType(tp, flag, flen, decimal, "utf8mb4"))


def table(*, key_flags: int, pk_is_handle: bool) -> Table:
    columns_of = (
        column(1, Tp.VARCHAR),
        column(2, Tp.LONGLONG, key_flags),
        column(3, Tp.NEW_DECIMAL, 0, 20, 4),
        column(70, Tp.DOUBLE),
        column(71, Tp.JSON),
    )
    return Table(1, "t", columns_of, pk_is_handle=pk_is_handle)


TABLES = {
    "signed": (table(key_flags=KEY, pk_is_handle=True), Handle(HandleKind.INTEGER, (2,))),
    "unsigned": (
        table(key_flags=KEY | FLAG_UNSIGNED, pk_is_handle=True),
        Handle(HandleKind.INTEGER, (2,)),
    ),
    "hidden": (table(key_flags=0, pk_is_handle=False), Handle(HandleKind.HIDDEN, (ROWID,))),
}
values = st.fixed_dictionaries(
    {
        1: st.none() | st.text(max_size=80).map(str.encode),
        2: st.integers(0, 2**63 - 1) | st.integers(0, 40),
        3: st.none() | st.integers(0, 9_999).map(lambda n: f"{n}.{n:04d}"),
        70: st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        71: st.none() | st.sampled_from(["{}", '{"a": [1, "b"]}', "null"]),
    }
)
row_changes = st.tuples(st.sampled_from([0, 1, 4]), values, values)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_varints_are_what_they_are_one_by_one(numbers: list[int]) -> None:
    encoded = [uvarint(each) for each in numbers]
    data = b"".join(encoded)
    begins = np.cumsum([0, *map(len, encoded)])[:-1].astype(np.int64)
    found, ends = uvarints(padded(data), begins)
    told = [read_uvarint(data, at) for at in begins.tolist()]
    assert list(zip(found.tolist(), ends.tolist(), strict=True)) == told
    small = [varint(each >> 1) for each in numbers]
    found, _ = uvarints(
        padded(b"".join(small)), np.cumsum([0, *map(len, small)])[:-1].astype(np.int64)
    )
    assert signed(found).tolist() == [each >> 1 for each in numbers]


def test_a_varint_of_more_than_64_bits_ends_nowhere() -> None:
    data = b"\xff" * 9 + b"\x02" + b"\xff" * 9 + b"\x01"
    _, ends = uvarints(padded(data), np.array([0, 10], np.int64))
    assert ends.tolist() == [-1, 20]


def encoded(of: Table, kind: int, old: dict[int, Value], new: dict[int, Value]) -> bytes:
    handle = new[2]
    assert isinstance(handle, int)
    if kind == 0:
        return encode_insert(of, new, handle=handle)
    if kind == 1:
        return encode_update(of, old, new, handle=handle)
    return encode_delete(of, new, handle=handle)


def mutation(of: Table, rows: list[tuple[int, dict[int, Value], dict[int, Value]]]) -> Mutation:
    lists: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
    for kind, old, new in rows:
        lists[kind].append(encoded(of, kind, old, new))
    return Mutation(of.id, lists[0], lists[1], lists[4], bytes(kind for kind, _, _ in rows))


def one_by_one(handle: Handle, runs: list[Run]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for run in runs:
        rows = {
            0: iter(run.change.inserted),
            1: iter(run.change.updated),
            4: iter(run.change.deleted),
        }
        told: list[tuple[bytes, bool, bytes]] = []
        for kind in run.change.sequence:
            row = next(rows[kind])
            if kind == 0:
                put = inserted(handle, row)
                told.append((put.key, False, put.row))
            elif kind == 1:
                gone, put = updated(handle, row)
                told += [(gone.key, True, b"")] if gone else []
                told.append((put.key, False, put.row))
            else:
                told.append((deleted(handle, row).key, True, b""))
        found += [(run.commit_ts, seq, run.schema_version, *each) for seq, each in enumerate(told)]
    return sorted(found)


def together(handle: Handle, runs: list[Run]) -> list[tuple[Any, ...]]:
    found = changed(handle, runs)
    keys = [each.to_bytes(8, "big") for each in found.keys.tolist()]
    columns_of = (found.commit_ts, found.seq, found.schema_version)
    return sorted(
        zip(
            *(each.tolist() for each in columns_of),
            keys,
            found.is_gone.tolist(),
            found.rows,
            strict=True,
        )
    )


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except CorruptRow:
        return "corrupt"


@settings(max_examples=60)
@given(st.sampled_from(sorted(TABLES)), st.lists(st.lists(row_changes, min_size=1), min_size=1))
def test_keys_and_rows_are_what_they_are_one_by_one(
    name: str, transactions: list[list[tuple[int, dict[int, Value], dict[int, Value]]]]
) -> None:
    of, handle = TABLES[name]
    runs = [
        Run(mutation(of, rows), 10 * number, 100 + number)
        for number, rows in enumerate(transactions)
    ]
    assert together(handle, runs) == one_by_one(handle, runs)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(TABLES)),
    st.sampled_from([0, 1, 4]),
    values,
    values,
    st.data(),
)
def test_a_damaged_row_is_told_as_it_is_by_itself(
    name: str,
    kind: int,
    old: dict[int, Value],
    new: dict[int, Value],
    data: st.DataObject,
) -> None:
    of, handle = TABLES[name]
    row = bytearray(encoded(of, kind, old, new))
    at = data.draw(st.integers(0, len(row) - 1))
    if data.draw(st.booleans()):
        del row[at:]
    else:
        row[at] = data.draw(st.integers(0, 255))
    good = encoded(of, kind, old, new)
    rows: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
    rows[kind] = [good, bytes(row), good]
    runs = [Run(Mutation(of.id, rows[0], rows[1], rows[4], bytes([kind] * 3)), 5, 1)]
    assert outcome(lambda: together(handle, runs)) == outcome(lambda: one_by_one(handle, runs))


@given(
    st.lists(
        st.binary(max_size=40) | values.map(lambda row: encoded(TABLES["hidden"][0], 4, row, row))
    )
)
def test_pairs_are_what_they_are_one_by_one(rows: list[bytes]) -> None:
    many = Rows.joined(rows)
    found = columns(many, many.begins)
    for number, row in enumerate(rows):
        if found.is_odd[number]:
            continue
        begin, count = int(many.begins[number]), int(found.count[number])
        told = [
            (int(ids), int(start) - begin, int(end) - begin)
            for ids, start, end in zip(
                found.ids[:count, number],
                found.begins[:count, number],
                found.ends[:count, number],
                strict=True,
            )
        ]
        assert told == pairs(row, 0)
