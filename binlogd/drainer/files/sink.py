"""The file sink: one record per transaction in `binlog-*` files, each transaction once.

Invariant. The log holds every transaction up to `applied_ts()` exactly once, in commit order, and
all of it is durable. Why it holds: a group of records is written and fsynced before `applied_ts`
moves, and the savepoint says how far the files were durable when it was saved; there is one before
the first record. After a crash whatever lies behind that is read again: what is torn is cut off,
and transactions at or below the last whole one are passed over when they come again.

DDL may take several records of one commit_ts. If the log ends with a DDL that the savepoint does
not cover, nobody can tell whether all of them are there: they are cut off, and come again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.archive import ArchiveOptions, FileArchive
from binlogd.drainer.files.checkpoint import DurableUpTo, Savepoint
from binlogd.drainer.files.log import LOCK_NAME, LogFile, encode_record, file_name
from binlogd.drainer.files.tail import find_tail
from binlogd.drainer.measures import FileMeasures
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import ddl_binlog, ddl_text, dml_binlog
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Skip, TableChange, Txn
from binlogd.errors import BinlogdError, CorruptRow, LogFailed, RowMismatch
from binlogd.host.disk import let_go, opened_again
from binlogd.ports import AppendFile, Clock, Disk, DiskLock
from binlogd.tidb.model import ActionType, TableAt
from binlogd.tso import NO_TS, Tso

MAX_FILE_BYTES = 512 << 20
QUEUE_BYTES_MAX = 32 << 20
GROUP_BYTES_MAX = 8 << 20
SLICE_ROWS = 256
"""Rows encoded between two turns of the loop, some milliseconds."""
ENCODERS_MAX = 4096

log = structlog.get_logger(__name__)


class _Item(NamedTuple):
    commit_ts: Tso
    record: bytes  # b"" for one that only moves progress; several records for some DDL
    rows: int
    is_ddl: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSinkOptions:
    """Sizes of a file and of what may wait, and what becomes of finished files."""

    max_file_bytes: int = MAX_FILE_BYTES
    queue_bytes_max: int = QUEUE_BYTES_MAX
    archive: ArchiveOptions = field(default_factory=ArchiveOptions)


class FileSink:
    """A `Sink` that writes `directory`; the checkpoint is the file `savepoint`.

    Beside what a Sink may raise, `open` raises ConfigError when another process writes here, and
    CorruptRelay when durable bytes are missing or damaged; `run` raises LogFailed.
    """

    def __init__(
        self,
        directory: Path,
        savepoint: Path,
        *,
        disk: Disk,
        clock: Clock,
        options: FileSinkOptions | None = None,
    ) -> None:
        self._directory, self._savepoint = directory, savepoint
        self._disk, self._clock = disk, clock
        self._options = options or FileSinkOptions()
        self._archive = FileArchive(directory, self._options.archive, disk=disk, clock=clock)
        self._lock: DiskLock | None = None
        self._file: AppendFile | None = None
        self._name = LogFile(0, "")
        self._written_ts = self._applied_ts = self._resumed_ts = self._submitted_ts = NO_TS
        self._queue: deque[_Item] = deque()
        self._queued_bytes = self._queued_rows = 0
        self._queued, self._moved = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_closing = False
        self._failure: BinlogdError | None = None
        self._encoders: dict[tuple[int, int], tuple[TableAt, ChangeEncoder]] = {}
        self._txns = self._rows = self._ddls = self._bytes = 0
        self._measures = FileMeasures()

    # --- opening -------------------------------------------------------------------------

    async def open(self) -> Checkpoint | None:
        """Locks the directory, verifies what the savepoint does not cover, cuts a torn tail."""
        try:
            await self._disk.make_directory(self._directory)
            self._lock = await self._disk.lock(self._directory / LOCK_NAME)
            savepoint = await self._load()
            await self._open_tail(savepoint)
            if savepoint is None and self._written_ts == NO_TS:  # so that the first may be torn
                await self.save(Checkpoint(NO_TS))
        except OSError as error:
            raise LogFailed(self._directory, error) from error
        checkpoint = savepoint.checkpoint if savepoint else None
        if checkpoint is not None and checkpoint.commit_ts == NO_TS:
            checkpoint = None  # nobody has got that far yet
        self._resumed_ts = max(self._written_ts, checkpoint.commit_ts if checkpoint else NO_TS)
        self._applied_ts = self._submitted_ts = self._resumed_ts
        return checkpoint

    async def _load(self) -> Savepoint | None:
        sizes = await self._disk.sizes(self._savepoint.parent)
        if self._savepoint.name not in sizes:
            return None
        (text,) = await self._disk.read(self._savepoint, [(0, sizes[self._savepoint.name])])
        return Savepoint.from_toml(text, str(self._savepoint))

    async def _open_tail(self, savepoint: Savepoint | None) -> None:
        tail = await find_tail(self._disk, self._directory, savepoint)
        self._written_ts = tail.commit_ts
        if tail.file is None:
            await self._begin_file(tail.next_number)
            return
        path = self._directory / tail.file.name
        if tail.dropped_bytes:
            log.warning(
                "file_tail_cut",
                file=tail.file.name,
                offset=tail.offset,
                dropped_bytes=tail.dropped_bytes,
                last_commit_ts=tail.commit_ts,
            )
            await self._disk.truncate(path, tail.offset)
        self._name = tail.file
        self._file = await opened_again(self._disk, path)

    # --- submitting ------------------------------------------------------------------------

    async def submit(self, txns: Sequence[Txn]) -> None:
        """Encodes and queues; waits for room. Raises RowMismatch, and what `run` failed with."""
        for txn in txns:
            if txn.commit_ts <= self._resumed_ts:
                continue
            assert txn.commit_ts >= self._submitted_ts, "transactions out of order"
            item = await self._item(txn)
            self._queue.append(item)
            self._queued_bytes += len(item.record)
            self._queued_rows += item.rows
            self._submitted_ts = txn.commit_ts
            self._queued.set()
            while self._queued_bytes > self._options.queue_bytes_max and not self._is_over():
                await self._move()
            self._raise_failure()

    async def _item(self, txn: Txn) -> _Item:
        match txn:
            case Dml():
                return await self._dml(txn)
            case Ddl():
                self._encoders.clear()
                # as the original has it; a DROP DATABASE too stands behind a `use`
                database = "" if txn.job.type == ActionType.CREATE_SCHEMA else txn.database
                records = [
                    encode_record(ddl_binlog(txn.commit_ts, ddl_text(database, text)))
                    for text in txn.statements
                ]
                return _Item(txn.commit_ts, b"".join(records), 0, is_ddl=bool(records))
            case Skip():
                return _Item(txn.commit_ts, b"", 0, is_ddl=False)

    async def _dml(self, txn: Dml) -> _Item:
        events: list[bytes] = []
        for change in txn.changes:
            rows = self._encoder(change.table).events(change.mutation)
            while True:  # ends when the rows do
                count = len(events)
                try:
                    events.extend(islice(rows, SLICE_ROWS))
                except CorruptRow as error:
                    raise RowMismatch(_name_of(change), txn.commit_ts, str(error)) from error
                if len(events) - count < SLICE_ROWS:
                    break
                await asyncio.sleep(0)
        record = encode_record(dml_binlog(txn.commit_ts, events))
        return _Item(txn.commit_ts, record, len(events), is_ddl=False)

    def _encoder(self, table: TableAt) -> ChangeEncoder:
        key = table.info.id, table.version
        kept = self._encoders.get(key)
        if kept is not None and kept[0] is table:
            return kept[1]
        if len(self._encoders) >= ENCODERS_MAX:
            self._encoders.clear()
        encoder = ChangeEncoder(table)
        self._encoders[key] = table, encoder
        return encoder

    # --- writing -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes what is queued; ends after `close`."""
        async with asyncio.TaskGroup() as group:
            tidying = group.create_task(self._archive.run(), name="archive")
            try:
                await self._write_queued()
            finally:
                tidying.cancel()

    async def _write_queued(self) -> None:
        try:
            while True:  # until closed, or a write fails
                while not self._queue and not self._is_closing:
                    self._queued.clear()
                    await self._queued.wait()
                async with self._writing:
                    if self._is_closing:
                        return
                    await self._write_group()
        except OSError as error:
            self._failure = LogFailed(self._directory / self._name.name, error)
            raise self._failure from error
        finally:
            self._moved.set()

    async def _write_group(self) -> None:
        assert self._file is not None, "run before open"
        if self._file.size >= self._options.max_file_bytes:
            await self._file.close()
            await self._begin_file(self._name.number + 1)
        group = self._group(self._options.max_file_bytes - self._file.size)
        parts = [item.record for item in group if item.record]
        if parts:
            clock = asyncio.get_running_loop().time
            begin_s = clock()
            try:
                await self._file.append(parts, sync=True)
            except OSError:
                await self._cut_back(self._file.size)
                raise
            self._measures.wrote(sum(map(len, parts)), clock() - begin_s)
        for item in group:
            self._queue.popleft()
            self._queued_bytes -= len(item.record)
            self._queued_rows -= item.rows
            self._bytes += len(item.record)
            self._rows += item.rows
            self._ddls += item.is_ddl
            if item.record:
                self._txns += 1
                self._written_ts = item.commit_ts
        self._applied_ts = group[-1].commit_ts
        self._moved.set()

    async def _cut_back(self, synced_bytes: int) -> None:
        """After a sync that failed the page cache shows what the disk may not have. Source: Rebello
        et al., ATC 2020."""
        try:
            await self._disk.truncate(self._directory / self._name.name, synced_bytes)
        except OSError as error:
            log.warning("file_not_cut_back", file=self._name.name, cause=str(error))

    def _group(self, room_bytes: int) -> list[_Item]:
        """What one fsync covers: up to the limits, and all of the last commit_ts."""
        group: list[_Item] = []
        size = 0
        for item in self._queue:
            is_full = size >= min(GROUP_BYTES_MAX, room_bytes)
            if group and is_full and item.commit_ts != group[-1].commit_ts:
                break
            group.append(item)
            size += len(item.record)
        return group

    async def _begin_file(self, number: int) -> None:
        name = LogFile(number, file_name(number, self._clock.wall_ms()))
        file = await self._disk.open_append(self._directory / name.name, create=True)
        # both at once: a savepoint must not tell the size of one file under the name of another
        self._name, self._file = name, file
        log.info("file_begun", file=self._name.name, applied_ts=self._applied_ts)

    # --- progress ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when everything submitted is durable. Raises what `run` failed with."""
        while self._queue and not self._is_over():
            await self._move()
        self._raise_failure()

    async def _move(self) -> None:
        """Returns when a group was written, or writing is over."""
        self._moved.clear()
        await self._moved.wait()

    def applied_ts(self) -> Tso:
        """Everything up to here is in the files, durable."""
        return self._applied_ts

    async def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the savepoint. Raises LogFailed; the one before is whole then."""
        is_behind = not self._queue or checkpoint.commit_ts < self._queue[0].commit_ts
        assert is_behind, "a checkpoint ahead of the files"
        assert self._file is not None, "save before open"
        name = self._name
        written = DurableUpTo(name.name, self._file.size, self._written_ts)
        try:
            text = Savepoint(checkpoint, written).to_toml()
            await self._disk.write_whole(self._savepoint, text)
        except OSError as error:
            raise LogFailed(self._savepoint, error) from error
        self._archive.saved(name)

    async def close(self) -> None:
        """Drops what is queued, waits for a write that is under way, lets go of file and lock."""
        self._is_closing = True
        self._queued.set()
        self._moved.set()
        async with self._writing:
            file, self._file = self._file, None
            lock, self._lock = self._lock, None
            await let_go(file, lock)

    def statistics(self) -> SinkStatistics:
        """How it stands; cheap."""
        return SinkStatistics(
            applied_ts=self._applied_ts,
            txns_applied=self._txns,
            rows_applied=self._rows,
            ddls_applied=self._ddls,
            lane_ts=(),
            txns_queued=len(self._queue),
            rows_queued=self._queued_rows,
            bytes_written=self._bytes,
            retries=0,
            last_error=str(self._failure or ""),
            is_safe_mode=False,
            files=self._measures.statistics(),
        )

    def _is_over(self) -> bool:
        return self._is_closing or self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _name_of(change: TableChange) -> str:
    return f"`{change.table.database}`.`{change.table.info.name}`"
