"""A whole log of the file sink at once, each transaction as its message has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from binlogd.drainer.files.log import Record, log_files, records_of
from binlogd.drainer.messages.named import NamedRow, RowKind
from binlogd.drainer.messages.pb import PbReader, head_of
from binlogd.errors import Corrupt, CorruptRelay
from binlogd.tidb.columns import Value
from binlogd.tso import Tso
from binlogd.wire.generated import pb_binlog


class PbColumn(NamedTuple):
    """One column of one row. `changed_value` is the new value of an update, else None."""

    mysql_type: str
    value: Value
    changed_value: Value


@dataclass(frozen=True, slots=True)
class PbEvent:
    """One changed row; columns by name, in the order of the table."""

    database: str
    table: str
    kind: RowKind
    columns: Mapping[str, PbColumn]


@dataclass(frozen=True, slots=True)
class PbTransaction:
    """Either rows in the order in which they changed, or one DDL text as it stands there."""

    commit_ts: Tso
    ddl: str
    events: tuple[PbEvent, ...]


def decode(payload: bytes, reader: PbReader | None = None) -> PbTransaction:
    """A serialised `Binlog`. Raises CorruptPayload for bytes that are none."""
    found = (reader or PbReader()).named(payload)
    ddl = ""
    if head_of(payload).is_ddl:
        ddl = pb_binlog.Binlog().parse(payload).ddl_query.decode(errors="surrogateescape")
    return PbTransaction(found.commit_ts, ddl, tuple(map(_event, found.rows())))


def _event(row: NamedRow) -> PbEvent:
    is_insert = row.kind is RowKind.INSERT
    columns = {
        each.name: PbColumn(
            each.mysql_type,
            each.new if is_insert else each.old,
            each.new if row.kind is RowKind.UPDATE else None,
        )
        for each in row.columns
    }
    return PbEvent(row.database, row.table, row.kind, columns)


def file_records(directory: Path) -> Iterator[tuple[Path, Record]]:
    """Every record of a log with the file it stands in; ends and raises as `records_of`."""
    files = log_files([entry.name for entry in directory.iterdir()])
    for file in files:
        path = directory / file.name
        for record in records_of(path, is_last=file is files[-1]):
            yield path, record


def read_file_log(directory: Path) -> Iterator[PbTransaction]:
    """The transactions of a log, in commit order."""
    reader = PbReader()
    for path, record in file_records(directory):
        try:
            yield decode(record.payload, reader)
        except Corrupt as error:
            raise CorruptRelay(path, record.offset, str(error)) from error
