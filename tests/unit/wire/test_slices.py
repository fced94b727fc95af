"""Rows of a large table mutation are those of a small one, cut out later."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from binlogd.binlog import Payload
from binlogd.errors import MalformedBinlog
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.fields import uvarint
from binlogd.wire.mutation import (
    LARGE_BYTES,
    Mutation,
    encode_mutations,
    large_table_mutation,
    mutations_of,
)
from binlogd.wire.slices import WINDOW_BYTES, RowSlices
from tests.support.stored import OfBytes

RNG = Random(3)


def rows(count: int) -> list[bytes]:
    return [RNG.randbytes(RNG.choice((1, 100, 200, 20_000))) for _ in range(count)]


@pytest.fixture(scope="module")
def table() -> Mutation:
    kinds = bytes(RNG.choice((0, 1, 4)) for _ in range(1500))
    inserted, updated, deleted = (rows(kinds.count(kind)) for kind in (0, 1, 4))
    assert sum(map(len, inserted + updated + deleted)) > LARGE_BYTES
    return Mutation(300, inserted, updated, deleted, kinds)


def payload_of(*tables: Mutation) -> bytes:
    return prewrite_binlog(Tso(5), prewrite_value=encode_mutations(9, list(tables)))


@pytest.mark.parametrize("form", [bytes, OfBytes])
def test_rows_of_a_large_table_are_cut_out_when_asked_for(
    table: Mutation, form: Callable[[bytes], Payload]
) -> None:
    small = Mutation(7, [b"one"], [], [], bytes([0]))
    version, (first, large, last) = mutations_of(form(payload_of(small, table, small)))
    assert (version, first, last) == (9, small, small)
    assert (large.table_id, large.sequence) == (300, table.sequence)
    for found, expected in zip(
        (large.inserted, large.updated, large.deleted),
        (table.inserted, table.updated, table.deleted),
        strict=True,
    ):
        assert isinstance(found, RowSlices)
        assert list(found) == expected
        assert (found[0], found[-1], found[3:5]) == (expected[0], expected[-1], expected[3:5])
        assert found.size_bytes == sum(map(len, expected))
        assert found == expected
        assert found != expected[:-1]
        assert [found[at] for at in (7, len(found) - 1)] == [expected[7], expected[-1]]


def test_rows_that_lie_in_another_order_are_found() -> None:
    """Every row of any kind may stand anywhere before the sequence, and be larger than a window."""
    kinds = bytes(RNG.choice((0, 1, 4)) for _ in range(3000))
    rows = [RNG.randbytes(RNG.choice((0, 1, 127, 128, 3000))) for _ in kinds]
    rows[5] = RNG.randbytes(WINDOW_BYTES * 2)
    value = b"\x08\x07" + b"".join(
        bytes([{0: 0x12, 1: 0x1A, 4: 0x32}[kind]]) + uvarint(len(row)) + row
        for kind, row in zip(kinds, rows, strict=True)
    )
    value += b"".join(b"\x38" + bytes([kind]) for kind in kinds)
    found = large_table_mutation(OfBytes(value), 0, len(value))
    assert (found.table_id, found.sequence) == (7, kinds)
    of_kind = {
        kind: [row for each, row in zip(kinds, rows, strict=True) if each == kind]
        for kind in (0, 1, 4)
    }
    lists = (found.inserted, found.updated, found.deleted)
    assert [list(each) for each in lists] == list(of_kind.values())
    assert found.updated[-1] == of_kind[1][-1]


def test_of_a_large_payload_no_more_is_read_than_where_its_rows_are(table: Mutation) -> None:
    stored = OfBytes(payload_of(table))
    mutations_of(stored)
    assert stored.read < 2 * len(stored)
    assert peek.ddl(stored) is None


def test_tables_that_are_not_wanted_are_left_out(table: Mutation) -> None:
    small = Mutation(7, [b"one"], [], [], bytes([0]))
    for form in (bytes, OfBytes):
        payload = form(payload_of(small, table))
        assert mutations_of(payload, {7}.__contains__) == (9, [small])


def test_a_kind_that_nobody_knows_is_refused(table: Mutation) -> None:
    wrong = payload_of(table)[:-5] + b"\x03" + peek.NO_DDL
    with pytest.raises(MalformedBinlog, match="sequence"):
        mutations_of(OfBytes(wrong))


def test_a_large_table_whose_sequence_is_wrong_is_refused(table: Mutation) -> None:
    wrong = Mutation(300, table.inserted, table.updated, table.deleted, table.sequence[:-1])
    with pytest.raises(MalformedBinlog, match="sequence"):
        mutations_of(payload_of(wrong))


def test_a_table_that_ends_too_early_is_refused_with_the_words_of_go(table: Mutation) -> None:
    value = encode_mutations(9, [table])
    with pytest.raises(MalformedBinlog, match="unexpected EOF"):
        mutations_of(prewrite_binlog(Tso(5), prewrite_value=value[:-100]))
