"""Transactions that tell names: what the original's files hold, in one form for all of them.

A file of the file sink and a relay log of the original name the tables and columns of each row, so
that no schema is needed to read them. Rows are decoded one by one: a transaction may be large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec

from binlogd.tidb.columns import Value
from binlogd.tso import Tso


class RowKind(IntEnum):
    """What happened to a row; the numbers are those of the original's messages."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


class NamedColumn(NamedTuple):
    """A column of a changed row: `old` is None in an insert, `new` in a delete (and for NULL)."""

    name: str
    mysql_type: str
    old: Value
    new: Value
    is_generated: bool = False
    """Whether the server computes it itself, as far as is told: files do not tell."""


@dataclass(frozen=True, slots=True)
class NamedRow:
    """One changed row, columns in the order of the file. `keys` are the unique keys by their
    columns, PRIMARY first; empty where the file tells none."""

    database: str
    table: str
    kind: RowKind
    columns: tuple[NamedColumn, ...]
    keys: tuple[tuple[str, ...], ...] = ()


class NamedDdl(NamedTuple):
    """A DDL: its text as TiDB wrote it, and the database that it was executed in ("" is none)."""

    database: str
    text: str


class NamedTransaction(msgspec.Struct, frozen=True):
    """One record: a DDL, or rows. `rows()` decodes anew each time, and raises Corrupt. Rows of one
    table stand in the order in which they changed; the order between tables is lost."""

    commit_ts: Tso
    ddl: NamedDdl | None
    rows: Callable[[], Iterator[NamedRow]] = msgspec.field(default=lambda: iter(()))

    def only(self, replicates: Callable[[str, str], bool]) -> NamedTransaction:
        """Without the rows of other tables."""
        return NamedTransaction(
            self.commit_ts,
            self.ddl,
            lambda: (each for each in self.rows() if replicates(each.database, each.table)),
        )
