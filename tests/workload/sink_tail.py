"""What comes out of the file sink: watched while it is written, and read back as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from binlogd.drainer.files.log import FRAMING, log_files, records_in
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb import head_of
from binlogd.tso import NO_TS, Tso
from tests.support.pb_reader import PbColumn, PbEvent, read_file_log
from tests.workload.replica import Replica
from tests.workload.values import Value

_TEXTUAL = frozenset({"decimal", "date", "datetime", "timestamp", "time", "json"})


class SinkTail:
    """Follows the files of a sink: `poll` tells what has been written since the last one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = ""
        self._offset = 0

    def poll(self) -> Iterator[Tso]:
        """The commit_ts of every whole record that is new. Raises CorruptRelay."""
        for name in self._files():
            if name != self._file:
                self._file, self._offset = name, 0
            yield from self._new_records()

    def _files(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        names = [file.name for file in log_files([each.name for each in self._directory.iterdir()])]
        return names[names.index(self._file) :] if self._file in names else names

    def _new_records(self) -> Iterator[Tso]:
        with (self._directory / self._file).open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        begin = self._offset
        for record in records_in([FRAMING.split(data).records]):
            yield head_of(record.payload).commit_ts
            self._offset = begin + record.end


def replay(directory: Path, replica: Replica) -> tuple[int, int]:
    """Reads a sink's log into a replica; (transactions, transactions that stand there twice)."""
    transactions = twice = 0
    last, last_was_ddl = NO_TS, False
    for transaction in read_file_log(directory):
        transactions += 1
        if transaction.commit_ts <= last and not (last_was_ddl and transaction.ddl):
            twice += 1
            continue
        last, last_was_ddl = transaction.commit_ts, bool(transaction.ddl)
        if transaction.ddl:
            replica.execute(transaction.ddl)
        for event in transaction.events:
            _apply(event, replica)
    return transactions, twice


def _apply(event: PbEvent, replica: Replica) -> None:
    name = (event.database, event.table)
    old = {each: _value(column, column.value) for each, column in event.columns.items()}
    match event.kind:
        case RowKind.INSERT:
            replica.insert(name, old)
        case RowKind.UPDATE:
            new = {
                each: _value(column, column.changed_value) for each, column in event.columns.items()
            }
            replica.update(name, old, new)
        case RowKind.DELETE:
            replica.delete(name, old)


def _value(column: PbColumn, value: Value) -> Value:
    """The file has text where rows have `str`."""
    return value.decode() if isinstance(value, bytes) and column.mysql_type in _TEXTUAL else value
