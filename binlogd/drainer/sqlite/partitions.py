"""What DROP, TRUNCATE and EXCHANGE PARTITION do to a SQLite replica, which has no partitions: rows
are found by the values that decide where they lie."""

from __future__ import annotations

from collections.abc import Iterable

from binlogd.drainer.sqlite.replica import (
    Function,
    NotStorable,
    Stored,
    quoted,
    reader_of,
    stored_columns,
)
from binlogd.tidb.model import Column, Table
from binlogd.tidb.partitions import PartitionLookup, Unplaceable

_LIES_THERE = "binlogd_lies_there"
_ASIDE = "temp.binlogd_aside"


class PartitionsGone:
    """The rows in the partitions that a DDL took from a table."""

    def __init__(self, before: Table, after: Table) -> None:
        """Raises NotStorable."""
        ids = frozenset(before.partition_ids) - frozenset(after.partition_ids)
        try:
            places = PartitionLookup(before)
        except Unplaceable as error:
            raise NotStorable(f"which rows a partition holds is not known here: {error}") from error
        held = {each.id: each for each in stored_columns(before)}
        if not held.keys() >= set(places.column_ids):
            raise NotStorable("the replica does not have the columns that it is partitioned by")
        columns = [held[each] for each in places.column_ids]
        reads = [(each.id, reader_of(each)) for each in columns]

        def lies_there(*stored: Stored) -> bool:
            values = {of: read(each) for (of, read), each in zip(reads, stored, strict=True)}
            return places.look(values) in ids

        names = ", ".join(quoted(each.name) for each in columns)
        self.function = Function(_LIES_THERE, len(columns), lies_there)
        self._where = f"WHERE {_LIES_THERE}({names})"

    def dropped(self, name: str) -> list[str]:
        """Statements that delete them."""
        return [f"DELETE FROM {quoted(name)} {self._where}"]

    def exchanged(self, name: str, other: str, columns: Iterable[Column]) -> list[str]:
        """Statements that put them into another table, and the rows of that in their place."""
        names = ", ".join(quoted(each.name) for each in columns)
        one, two = quoted(name), quoted(other)
        return [
            f"CREATE TEMP TABLE {_ASIDE.removeprefix('temp.')} AS"
            f" SELECT {names} FROM {one} {self._where}",
            *self.dropped(name),
            f"INSERT INTO {one} ({names}) SELECT {names} FROM {two}",
            f"DELETE FROM {two}",
            f"INSERT INTO {two} ({names}) SELECT {names} FROM {_ASIDE}",
            f"DROP TABLE {_ASIDE}",
        ]
