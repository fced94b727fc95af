"""Rows of a large table mutation are those of a small one, cut out later."""

from __future__ import annotations

from random import Random

import pytest

from binlogd.errors import MalformedBinlog
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.mutation import LARGE_BYTES, Mutation
from binlogd.wire.slices import RowSlices

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
    return peek.prewrite_binlog(Tso(5), prewrite_value=peek.encode_mutations(9, list(tables)))


def test_rows_of_a_large_table_are_cut_out_when_asked_for(table: Mutation) -> None:
    small = Mutation(7, [b"one"], [], [], bytes([0]))
    version, (first, large, last) = peek.changes(payload_of(small, table, small))
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


def test_a_large_table_whose_sequence_is_wrong_is_refused(table: Mutation) -> None:
    wrong = Mutation(300, table.inserted, table.updated, table.deleted, table.sequence[:-1])
    with pytest.raises(MalformedBinlog, match="sequence"):
        peek.changes(payload_of(wrong))


def test_a_table_that_ends_too_early_is_refused_with_the_words_of_go(table: Mutation) -> None:
    value = peek.encode_mutations(9, [table])
    with pytest.raises(MalformedBinlog, match="unexpected EOF"):
        peek.changes(peek.prewrite_binlog(Tso(5), prewrite_value=value[:-100]))
