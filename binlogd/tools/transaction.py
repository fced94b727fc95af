"""What every kind of binlog file is read as: committed transactions, with their place in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from binlogd.drainer.messages.named import NamedDdl, NamedRow
from binlogd.drainer.txn import TableChange
from binlogd.tidb.model import Job
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire.mutation import Mutation


class FilePosition(NamedTuple):
    """Where a record begins; in a compressed file the offset is that of its content."""

    path: Path
    offset: int

    def __str__(self) -> str:
        return f"{self.path} at offset {self.offset}"


class CommitWindow(NamedTuple):
    """Commit timestamps that are wanted, both ends included."""

    start: Tso = NO_TS
    stop: Tso = MAX_TS


@dataclass(slots=True)
class Meter:
    """How far a reading is, in bytes of the files; `total_bytes` grows when more is found."""

    total_bytes: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """What a Pump's log and binlogd's relay log tell beyond names: TiDB's own bytes.

    `payload` is the joined binlog. `tables` are its rows, each table beside the schema that
    explains them; `unexplained` those of tables that no DDL of the history made. `job` is the job
    of a DDL.
    """

    payload: bytes
    schema_version: int = 0
    job: Job | None = None
    tables: tuple[TableChange, ...] = ()
    unexplained: tuple[Mutation, ...] = ()
    prewrite_place: FilePosition | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """One committed transaction: a DDL, or rows.

    `rows()` decodes the rows one by one, anew at each call, because a transaction may be larger
    than memory; it raises Corrupt or CorruptRow. `start_ts` is NO_TS where the file does not tell
    it. `note` says what an operator should know of it ("" mostly): that a DDL was rolled back, that
    its job or its prewrite is missing. `raw` is None where the file holds names only.
    """

    commit_ts: Tso
    start_ts: Tso
    place: FilePosition
    size_bytes: int
    ddl: NamedDdl | None
    rows: Callable[[], Iterator[NamedRow]]
    note: str = ""
    raw: Raw | None = None
