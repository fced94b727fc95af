"""What is made once for a table as it is at a moment, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from binlogd.tidb.model import TableAt

TABLES_KEPT_MAX = 4096
T = TypeVar("T")


class PerTable(Generic[T]):
    """The tables that come again and again; when there are many, all are forgotten."""

    def __init__(self, make: Callable[[TableAt], T], most: int = TABLES_KEPT_MAX) -> None:
        self._make, self._most = make, most
        self._kept: dict[tuple[int, int], tuple[TableAt, T]] = {}

    def of(self, table: TableAt) -> T:
        """That of this very moment: a TableAt is another one once a DDL has changed the table."""
        place = table.info.id, table.version
        kept = self._kept.get(place)
        if kept is not None and kept[0] is table:
            return kept[1]
        if len(self._kept) >= self._most:
            self._kept.clear()
        made = self._make(table)
        self._kept[place] = table, made
        return made
