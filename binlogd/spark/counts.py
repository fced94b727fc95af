"""Row changes in numbers: what a batch read of them, and what it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import msgspec


class RowCounts(msgspec.Struct, frozen=True):
    """An update that gives a row another key counts as the delete of one and the update of another
    where it is written by keys. `bytes` are those of keys and rows, of binlogs where these are
    applied whole. `put` and `gone` are what was written: keys of a lake that hold a row now and
    that hold none any more; into a database, changes and 0."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    bytes: int = 0
    put: int = 0
    gone: int = 0

    def plus(self, other: RowCounts) -> RowCounts:
        """Both together."""
        return RowCounts(*map(sum, zip(*map(msgspec.structs.astuple, (self, other)), strict=True)))


def total(counts: Iterable[RowCounts]) -> RowCounts:
    """All together."""
    return reduce(RowCounts.plus, counts, RowCounts())
