"""Writing a relay log in the original's format, for those who want to restore with a Go Drainer.

Invariant. The log holds every transaction above its base that the sink was given, and all of it was
fsynced before. Why it holds: a group of records is written and fsynced before the call returns; the
file `base` says above which commit_ts nothing is missing, and is moved before a file goes. A
Drainer that begins elsewhere (the checkpoint was set back, or moved on over transactions that never
came here) begins an empty log: all of it comes from upstream then.

Records are what the original writes: rows after filters, names, values; framing and names of files
are those of the file sink. What is not replicated is not in it; the original has DDL in it that its
filters leave out, and executes them when it restores.

Source: tidb-binlog drainer/relay/relayer.go; it does not fsync, and collects a file when what is in
it is applied, not when the checkpoint behind it is saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import structlog

from binlogd.drainer.files.log import (
    FRAMING,
    HEAD,
    LOCK_NAME,
    LogFile,
    Record,
    encode_record,
    file_name,
    log_files,
    records_in,
)
from binlogd.drainer.messages.pb import head_of
from binlogd.drainer.messages.secondary_write import SecondaryEncoder, ddl_message, dml_message
from binlogd.drainer.txn import Ddl, Dml, TableChange, Txn
from binlogd.errors import CorruptPayload, CorruptRelay, CorruptRow, LogFailed, RowMismatch
from binlogd.host.disk import let_go, opened_again
from binlogd.log.checked_text import TEXT_BYTES_MAX, checksummed, text_in
from binlogd.log.drive import Reading, of_bytes
from binlogd.log.scan import Ending, scan
from binlogd.ports import AppendFile, Clock, Disk, DiskLock
from binlogd.relay.frame import UNWRITTEN_BYTES
from binlogd.relay.log import RelayStatistics
from binlogd.tidb.per_table import PerTable
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek

BASE_NAME = "base"
"""The original passes over a file of this name."""
SLICE_ROWS = 256
"""Rows encoded between two turns of the loop."""
_HEAD_BYTES = HEAD.size + 32

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    file: LogFile
    first_ts: Tso | None
    size_bytes: int


class OriginalRelay:
    """The one writer of a directory. Used by one task at a time. Raises as `RelayWriter`."""

    def __init__(self, directory: Path, disk: Disk, clock: Clock, *, max_file_bytes: int) -> None:
        self._directory, self._disk, self._clock = directory, disk, clock
        self._max_file_bytes = max_file_bytes
        self._lock: DiskLock | None = None
        self._file: AppendFile | None = None
        self._files: list[_File] = []
        self._base_ts = self._last_ts = NO_TS
        self._encoders = PerTable(SecondaryEncoder)
        self._entries = self._bytes = self._groups = self._collected = 0
        self._last_error = ""

    async def open(self, *, after: Tso, **_: object) -> None:
        """Makes the log ready for transactions above `after`; a torn tail is cut off. No snapshot
        of the schema is in it: records name tables and columns."""
        self._last_error = ""
        try:
            await self._disk.make_directory(self._directory)
            self._lock = await self._disk.lock(self._directory / LOCK_NAME)
            await self._open_at(after)
        except OSError as error:
            await self.close()
            raise self._failure(error) from error
        except CorruptRelay:
            await self.close()
            raise

    async def _open_at(self, after: Tso) -> None:
        sizes = await self._disk.sizes(self._directory)
        self._files = [
            _File(file, await self._first_ts(file.name, sizes[file.name]), sizes[file.name])
            for file in log_files(list(sizes))
        ]
        self._base_ts = await self._stored_base(sizes)
        self._last_ts = await self._cut_tail()
        if self._files and self._base_ts <= after <= max(self._base_ts, self._last_ts):
            newest = self._files[-1].file
            self._file = await opened_again(self._disk, self._path(newest))
            return
        number = self._files[-1].file.number + 1 if self._files else 0
        for each in self._files:  # oldest first: a crash in between must not leave a gap
            await self._disk.remove([self._path(each.file)])
        self._files = []
        await self._set_base(after)
        self._last_ts = after
        await self._begin_file(number)

    async def _first_ts(self, name: str, size_bytes: int) -> Tso | None:
        if size_bytes <= HEAD.size:
            return None
        path = self._directory / name
        (head,) = await self._disk.read(path, [(0, _HEAD_BYTES)])
        try:
            return head_of(head[HEAD.size :]).commit_ts
        except CorruptPayload as error:
            raise CorruptRelay(path, 0, str(error)) from error

    async def _stored_base(self, sizes: dict[str, int]) -> Tso:
        """Without the file it is the original's log: it holds what follows its first record."""
        if BASE_NAME in sizes:
            path = self._directory / BASE_NAME
            (line,) = await self._disk.read(path, [(0, TEXT_BYTES_MAX)])
            return base_in(path, line)
        return next((each.first_ts for each in self._files if each.first_ts is not None), NO_TS)

    async def _cut_tail(self) -> Tso:
        """The last commit_ts of the log, its newest file verified and cut where it is torn."""
        last_ts = self._base_ts
        for number, each in reversed(list(enumerate(self._files))):
            path = self._path(each.file)
            (data,) = await self._disk.read(path, [(0, each.size_bytes)])
            end, is_newest = 0, number == len(self._files) - 1
            for record in whole_records(path, data, is_newest=is_newest):
                end, last_ts = record.end, head_of(record.payload).commit_ts
            if end < len(data):
                dropped_bytes = len(data) - end
                log.warning(
                    "relay_tail_cut", file=path.name, offset=end, dropped_bytes=dropped_bytes
                )
                await self._disk.truncate(path, end)
                self._files[number] = replace(each, size_bytes=end)
            if end:
                return last_ts
        return last_ts

    async def append_pulled(self, _: object, /) -> int:
        """Nothing: what is restored from are names and values."""
        return 0

    async def append_translated(self, part: Sequence[tuple[Txn, bytes]], /) -> None:
        """Returns when all of it is durable. Transactions, each with its binlog, in their order.

        What the log already holds is passed over. Raises LogFailed, after which the writer is
        useless until it has been closed and opened again, and RowMismatch.
        """
        if self._last_error:
            raise LogFailed(self._directory, OSError(self._last_error))
        assert self._file is not None, "append before open"
        records: list[bytes] = []
        last_ts = self._last_ts
        first_ts: Tso | None = None
        for txn, payload in part:
            message = await self._message(txn, payload) if txn.commit_ts > self._last_ts else b""
            if message:
                records.append(encode_record(message))
                first_ts = first_ts or txn.commit_ts
                last_ts = txn.commit_ts
        if not records:
            return
        try:
            await self._write(records, first_ts)
        except OSError as error:
            raise self._failure(error) from error
        self._last_ts = last_ts

    async def _write(self, records: Sequence[bytes], first_ts: Tso | None) -> None:
        assert self._file is not None, "append before open"
        if self._file.size >= self._max_file_bytes:
            await self._begin_file(self._files[-1].file.number + 1)
        await self._file.append(records, sync=True)
        newest = self._files[-1]
        self._files[-1] = _File(newest.file, newest.first_ts or first_ts, self._file.size)
        self._entries += len(records)
        self._bytes += sum(map(len, records))
        self._groups += 1

    async def _message(self, txn: Txn, payload: bytes) -> bytes:
        """The record of a transaction; empty for one that leaves nothing downstream."""
        if isinstance(txn, Ddl) and not txn.is_skipped:
            query = peek.body(payload).ddl_query
            return ddl_message(txn.commit_ts, txn.database, txn.table, query)
        if not isinstance(txn, Dml):
            return b""
        return dml_message(txn.commit_ts, [await self._table(each, txn) for each in txn.changes])

    async def _table(self, change: TableChange, txn: Dml) -> bytes:
        encoder = self._encoders.of(change.table)
        rows, entries = encoder.mutations(change.mutation), list[bytes]()
        try:
            while slice_of_rows := list(islice(rows, SLICE_ROWS)):
                entries += slice_of_rows
                if len(slice_of_rows) == SLICE_ROWS:
                    await asyncio.sleep(0)
        except CorruptRow as error:
            name = f"`{change.table.database}`.`{change.table.info.name}`"
            raise RowMismatch(name, txn.commit_ts, str(error)) from error
        return encoder.table(entries)

    async def _begin_file(self, number: int) -> None:
        if self._file is not None:
            await self._file.close()
        file = LogFile(number, file_name(number, self._clock.wall_ms()))
        self._file = await self._disk.open_append(self._path(file), create=True)
        self._files.append(_File(file, None, 0))
        log.info("relay_file_begun", file=file.name, last_ts=self._last_ts)

    async def collect(self, saved_ts: Tso) -> int:
        """Removes files that nobody needs once a checkpoint at `saved_ts` is stored: how many."""
        removed = 0
        try:
            while len(self._files) > 1:  # ends: a file goes each turn
                following = self._files[1].first_ts
                if following is None or following > saved_ts:
                    break
                await self._set_base(Tso(following - 1))
                await self._disk.remove([self._path(self._files[0].file)])
                self._files.pop(0)
                removed += 1
        except OSError as error:
            raise LogFailed(self._directory, error) from error
        self._collected += removed
        return removed

    async def _set_base(self, base_ts: Tso) -> None:
        await self._disk.write_whole(self._directory / BASE_NAME, checksummed(b"%d" % base_ts))
        self._base_ts = base_ts

    async def close(self) -> None:
        """Lets go of the file and the lock. Safe to call twice."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        await let_go(file, lock)

    def statistics(self) -> RelayStatistics:
        """How it stands; cheap."""
        return RelayStatistics(
            files=len(self._files),
            size_bytes=sum(each.size_bytes for each in self._files),
            base_ts=self._base_ts,
            last_ts=self._last_ts,
            entries_appended=self._entries,
            bytes_appended=self._bytes,
            groups_appended=self._groups,
            files_collected=self._collected,
            last_error=self._last_error,
        )

    def _path(self, file: LogFile) -> Path:
        return self._directory / file.name

    def _failure(self, error: OSError) -> LogFailed:
        self._last_error = error.strerror or str(error)
        return LogFailed(self._directory, error)


def whole_records(path: Path, data: bytes, *, is_newest: bool) -> Iterator[Record]:
    """The records of a file, up to where the newest one is torn. Raises CorruptRelay.

    Torn is what `log.scan` says, or an end in zeros, which are pages that never reached the
    disk; a record ends with a checksum.
    """
    reading = Reading(scan(FRAMING, size=len(data)), of_bytes(data))
    yield from records_in(reading.batches())
    end = reading.found
    unwritten = bytes(min(len(data) - end.offset, UNWRITTEN_BYTES))
    is_torn = end.ending is Ending.TORN or data.endswith(unwritten)
    if end.ending is not Ending.WHOLE and not (is_newest and is_torn):
        raise CorruptRelay(path, end.offset, end.reason)


def base_in(path: Path, line: bytes) -> Tso:
    """Above which commit_ts a log is complete, of its file. Raises CorruptRelay."""
    try:
        return Tso(int(text_in(line)))
    except ValueError as error:
        todo = "write the commit_ts into it from which the log is complete, as a line"
        raise CorruptRelay(path, 0, f"it holds no timestamp: {error}", todo=todo) from error
