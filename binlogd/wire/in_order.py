"""The rows of a table in one transaction, in the order in which they changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlogd.tidb.kinds import DELETE, INSERT, UPDATE
from binlogd.tidb.row import RowDecoder, Value
from binlogd.wire.mutation import Mutation

__all__ = ["DELETE", "INSERT", "UPDATE", "changes_of", "mutation_of", "rows_of"]

Values = dict[int, Value]
"""By column id."""


def rows_of(mutation: Mutation) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each row."""
    rows = {
        INSERT: iter(mutation.inserted),
        UPDATE: iter(mutation.updated),
        DELETE: iter(mutation.deleted),
    }
    for kind in mutation.sequence:
        yield kind, next(rows[kind])


def changes_of(mutation: Mutation, decoder: RowDecoder) -> Iterator[tuple[int, Values, Values]]:
    """Kind of each row, its values before and after; none before an insert and after a delete.
    Raises CorruptRow."""
    nothing: Values = {}
    for kind, row in rows_of(mutation):
        if kind == INSERT:
            yield kind, nothing, decoder.insert(row)
        elif kind == UPDATE:
            yield kind, *decoder.update(row)
        else:
            yield kind, decoder.delete(row), nothing


def mutation_of(table_id: int, rows: Sequence[tuple[int, bytes]]) -> Mutation:
    """Of what `rows_of` gives."""
    return Mutation(
        table_id,
        [row for kind, row in rows if kind == INSERT],
        [row for kind, row in rows if kind == UPDATE],
        [row for kind, row in rows if kind == DELETE],
        bytes(kind for kind, _ in rows),
    )
