"""Rows read many at a time are what they are one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import CorruptRow, MalformedBinlog, UnreadableRow
from binlogd.snapshot.log.datums import (
    RowSpans,
    columns,
    packed_longs,
    padded,
    signed,
    unpacked_longs,
    uvarints,
)
from binlogd.snapshot.log.events import CommittedPrewrite, Run, WantedTables, events
from binlogd.snapshot.log.moves import Moves, PartitionsSpread, Twice
from binlogd.snapshot.log.prewrites import OTHER as OTHER_KIND
from binlogd.snapshot.log.prewrites import DdlCommit, Heads, packed, parse_mutations, unpacked
from binlogd.snapshot.log.row_changes import TableRows, changed
from binlogd.snapshot.log.rowkey import (
    Handle,
    HandleKind,
    both_images,
    deleted,
    inserted,
    last_image,
    pairs,
    updated,
)
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, PartitionKind, Tp
from binlogd.tidb.layout import ROWID
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tidb.varint import read_uvarint, uvarint, varint
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations, mutations_of

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
OTHER = Mutation(200, [b"other"], [], [], b"\0")
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


def one_by_one(handle: Handle, runs: list[Run], *, keeps_gone: bool) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for run in runs:
        rows = {
            0: iter(run.change.inserted),
            1: iter(run.change.updated),
            4: iter(run.change.deleted),
        }
        told: list[tuple[int, bytes, int, bytes]] = []
        for number, kind in enumerate(run.change.sequence):
            row, seq = next(rows[kind]), 2 * number
            if kind == 0:
                put = inserted(handle, row)
                told.append((seq, put.key, 0, put.row))
            elif kind == 1:
                gone, put = updated(handle, row)
                left = both_images(handle, row).old if keeps_gone else b""
                told += [(seq, gone, 4, left)] if gone else []
                told.append((seq + (gone is not None), put.key, 1, put.row))
            else:
                left = last_image(handle, row).row if keeps_gone else b""
                told.append((seq, deleted(handle, row), 4, left))
        found += [(run.commit_ts, seq, run.schema_version, *each) for seq, *each in told]
    return sorted(found)


def table_rows(runs: list[Run]) -> TableRows:
    """The rows of transactions, as they are found in their prewrites."""
    prewrites = [
        prewrite_binlog(
            Tso(9), prewrite_value=encode_mutations(each.schema_version, [OTHER, each.change])
        )
        for each in runs
    ]
    found = parse_mutations(RowSpans.joined(prewrites), lambda table_id: table_id != OTHER.table_id)
    assert not found.is_slow.any()
    assert set(found.table_id.tolist()) <= {runs[0].change.table_id}
    lists = [
        found.prewrites.within(found.rows.begins[each], found.rows.ends[each])
        for each in (found.rows.kinds == kind for kind in (0, 1, 4))
    ]
    commit_ts = np.array([each.commit_ts for each in runs], np.int64)[found.of_prewrite]
    versions = found.schema_version[found.of_prewrite]
    return TableRows(
        lists[0], lists[1], lists[2], found.sequence, found.of_step, commit_ts, versions
    )


def together(handle: Handle, runs: list[Run], *, keeps_gone: bool) -> list[tuple[Any, ...]]:
    found = changed(handle, table_rows(runs), keeps_gone=keeps_gone)
    keys = [each.to_bytes(8, "big") for each in found.keys.tolist()]
    columns_of = (found.commit_ts, found.seq, found.schema_version)
    return sorted(
        zip(
            *(each.tolist() for each in columns_of),
            keys,
            found.kinds.tolist(),
            found.rows.to_pylist(),
            strict=True,
        )
    )


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except CorruptRow:
        return "corrupt"


@settings(max_examples=25)
@given(
    st.booleans(),
    st.sampled_from(sorted(TABLES)),
    st.lists(st.lists(row_changes, min_size=1), min_size=1),
)
def test_keys_and_rows_are_what_they_are_one_by_one(
    keeps_gone: bool,  # noqa: FBT001 - drawn
    name: str,
    transactions: list[list[tuple[int, dict[int, Value], dict[int, Value]]]],
) -> None:
    of, handle = TABLES[name]
    runs = [
        Run(mutation(of, rows), 10 * number, 100 + number)
        for number, rows in enumerate(transactions)
    ]
    found = together(handle, runs, keeps_gone=keeps_gone)
    assert found == one_by_one(handle, runs, keeps_gone=keeps_gone)


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(TABLES)),
    st.sampled_from([0, 1, 4]),
    values,
    values,
    st.data(),
    st.booleans(),
)
def test_a_damaged_row_is_told_as_it_is_by_itself(
    name: str,
    kind: int,
    old: dict[int, Value],
    new: dict[int, Value],
    data: st.DataObject,
    keeps_gone: bool,  # noqa: FBT001 - drawn
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
    assert outcome(lambda: together(handle, runs, keeps_gone=keeps_gone)) == outcome(
        lambda: one_by_one(handle, runs, keeps_gone=keeps_gone)
    )


@given(
    st.lists(
        st.binary(max_size=40) | values.map(lambda row: encoded(TABLES["hidden"][0], 4, row, row))
    )
)
def test_pairs_are_what_they_are_one_by_one(rows: list[bytes]) -> None:
    many = RowSpans.joined(rows)
    found = columns(many, many.begins)
    for number, row in enumerate(rows):
        if found.is_slow[number]:
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


@st.composite
def prewrites(draw: st.DrawFn) -> list[bytes]:
    tables = st.builds(
        lambda table_id, kinds, row: Mutation(
            table_id,
            [row] * kinds.count(0),
            [row * 30] * kinds.count(1),
            [b""] * kinds.count(4),
            bytes(kinds),
        ),
        st.sampled_from([1, 2, 300]),
        st.lists(st.sampled_from([0, 1, 4]), max_size=4),
        st.binary(max_size=9),
    )
    found = []
    for version in draw(st.lists(st.sampled_from([0, 7, 4000]), max_size=6)):
        value = encode_mutations(version, draw(st.lists(tables, max_size=3)))
        payload = bytearray(
            prewrite_binlog(
                Tso(draw(st.integers(1, 2**62))),
                prewrite_key=draw(st.none() | st.just(b"k" * 200)),
                prewrite_value=draw(st.none() | st.just(value)),
            )
        )
        if draw(st.integers(0, 2)) == 0:
            at = draw(st.integers(0, len(payload) - 1))
            payload[at] = draw(st.integers(0, 255))
        found.append(bytes(payload))
    return found


def by_itself(payload: bytes) -> tuple[int, list[Mutation]] | None:
    try:
        return mutations_of(payload, lambda table_id: table_id != 2)
    except MalformedBinlog:
        return None


@settings(max_examples=80)
@given(prewrites())
def test_rows_of_prewrites_are_what_they_are_one_by_one(payloads: list[bytes]) -> None:
    found = parse_mutations(RowSpans.joined(payloads), lambda table_id: table_id != 2)
    for number, payload in enumerate(payloads):
        ours = np.flatnonzero(found.of_prewrite == number).tolist()
        if found.is_slow[number]:
            assert ours == []
            continue
        alone = by_itself(payload)
        assert alone is not None
        assert found.schema_version[number] == alone[0]
        assert found.table_id[ours].tolist() == [each.table_id for each in alone[1]]
        for mutation_number, table in zip(ours, alone[1], strict=True):
            assert found.sequence[found.of_step == mutation_number].tobytes() == table.sequence
            for kind, rows in ((0, table.inserted), (1, table.updated), (4, table.deleted)):
                is_ours = (found.rows.of == mutation_number) & (found.rows.kinds == kind)
                spans = found.prewrites.within(found.rows.begins[is_ours], found.rows.ends[is_ours])
                assert [spans[each] for each in range(len(spans))] == rows


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(-(2**62), 2**62))))
def test_packed_columns_come_back(pairs_of: list[tuple[int, int]]) -> None:
    one, other = (np.array([each[place] for each in pairs_of], np.int64) for place in (0, 1))
    found = unpacked_longs(packed_longs(one, other))
    assert [each.tolist() for each in found] == [one.tolist(), other.tolist()]


@pytest.mark.parametrize("commit_ts", [0, 1, 76, 77, 2**62])
def test_packed_heads_come_back(commit_ts: int) -> None:
    ddl = (DdlCommit(9, 8, 7, 5, b"create \xff"),)
    for kind in range(OTHER_KIND + 1):
        one = np.array([77], np.int64)
        told_of = Heads(np.array([kind], np.int8), one, one, np.array([commit_ts], np.int64), ddl)
        row = packed(3, told_of).to_pylist()[0]
        assert repr(unpacked(row["heads"], row["ddl"])) == repr(told_of)


def test_a_corrupt_row_beside_a_reorganization_is_told_with_its_transaction() -> None:
    """Rows that may be written twice are looked at before the others of their transaction."""
    split = Partitioning(
        PartitionKind.RANGE, "`c1`", (), (Partition(11, ("10",)), Partition(12, ("MAXVALUE",)))
    )
    info = Table(7, "t", (column(1, Tp.LONGLONG),), partition_ids=(11, 12), partitioning=split)
    handle = Handle(HandleKind.HIDDEN, (ROWID,))
    spread = PartitionsSpread(20, 7, frozenset({11}), info)
    twice = Twice(20, 19, 7, frozenset({11}), 100)
    moves = Moves((spread,), {7: ((0, info),)}, {7: handle}, twice=(twice,))
    value = encode_mutations(10, [Mutation(7, [b"\x08\x02\xff"], [], [], b"\x00")])
    found = CommittedPrewrite("file", 0, prewrite_binlog(Tso(140), prewrite_value=value), 150)
    with pytest.raises(UnreadableRow, match=r"table id 7.*150"):
        list(events([found], WantedTables({7: handle}, frozenset(), moves=moves)))
