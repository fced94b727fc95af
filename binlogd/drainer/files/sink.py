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
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from binlogd.binlog import in_parts
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.archive import ArchiveOptions, FileArchive
from binlogd.drainer.files.checkpoint import DurableUpTo, Savepoint
from binlogd.drainer.files.log import LOCK_NAME, LogFile, encode_record, file_name
from binlogd.drainer.files.tail import find_tail
from binlogd.drainer.measures import FileMeasures
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import ddl_binlog, ddl_text, dml_binlog
from binlogd.drainer.pending import PendingItem, PendingLimits, PendingTransactions, pending
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Txn, combined
from binlogd.errors import CorruptRow, DownstreamWentBack, LogFailed, RowMismatch
from binlogd.host.disk import cut_back, disk_errors, let_go, opened_again
from binlogd.ports import AppendFile, Clock, Disk, DiskLock
from binlogd.tidb.model import ActionType
from binlogd.tidb.per_table import PerTable
from binlogd.tso import NO_TS, Tso

MAX_FILE_BYTES = 512 << 20
_LIMITS = PendingLimits(
    queued_rows=500_000, group_rows=200_000, queued_bytes=32 << 20, group_bytes=8 << 20
)
SLICE_ROWS = 256
"""Rows encoded between two turns of the loop, some milliseconds."""

log = structlog.get_logger(__name__)


class FileSinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a file and of what may wait, and what becomes of finished files."""

    max_file_bytes: int = MAX_FILE_BYTES
    limits: PendingLimits = _LIMITS
    archive: ArchiveOptions = msgspec.field(default_factory=ArchiveOptions)


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
        self._written_ts = NO_TS
        self._bytes = 0
        self._pending = PendingTransactions[bytes](self._options.limits)
        self._encoders = PerTable(ChangeEncoder)
        self._measures = FileMeasures()

    # --- opening -------------------------------------------------------------------------

    async def open(self) -> Checkpoint | None:
        """Locks the directory, verifies what the savepoint does not cover, cuts a torn tail."""
        with disk_errors(self._directory):
            await self._disk.make_directory(self._directory)
            self._lock = await self._disk.lock(self._directory / LOCK_NAME)
            savepoint = await self._load()
            await self._open_tail(savepoint)
            if savepoint is None and self._written_ts == NO_TS:  # so that the first may be torn
                await self.save(Checkpoint(NO_TS))
        checkpoint = savepoint.checkpoint if savepoint else Checkpoint(NO_TS)
        self._pending.begin(max(self._written_ts, checkpoint.commit_ts))
        return checkpoint if checkpoint.commit_ts > NO_TS else None  # nobody has got anywhere yet

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
        resumed_ts = self._pending.resumed_ts
        new = [each for each in combined(txns) if each.commit_ts > resumed_ts]
        await self._pending.put([await self._encoded(txn) for txn in new])

    async def _encoded(self, txn: Txn) -> PendingItem[bytes]:
        """What it is in the files: nothing, a record, or several for some DDL."""
        data = b""
        match txn:
            case Dml():
                data = await self._dml(txn)
            case Ddl():
                # as the original has it; a DROP DATABASE too stands behind a `use`
                database = "" if txn.job.type == ActionType.CREATE_SCHEMA else txn.database
                texts = (ddl_text(database, each) for each in txn.statements)
                data = b"".join(encode_record(ddl_binlog(txn.commit_ts, each)) for each in texts)
        return pending(txn, data, len(data))

    async def _dml(self, txn: Dml) -> bytes:
        events: list[bytes] = []
        for change in txn.changes:
            rows = self._encoders.of(change.table).events(change.mutation)
            while True:  # ends when the rows do
                count = len(events)
                try:
                    events.extend(islice(rows, SLICE_ROWS))
                except CorruptRow as error:
                    raise RowMismatch(change.table.label, txn.commit_ts, str(error)) from error
                if len(events) - count < SLICE_ROWS:
                    break
                await asyncio.sleep(0)
        return encode_record(dml_binlog(txn.commit_ts, events))

    # --- writing -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes what is queued; ends after `close`."""
        async with asyncio.TaskGroup() as group:
            tidying = group.create_task(self._archive.run(), name="archive")
            try:
                await self._pending.run(self._write)
            finally:
                tidying.cancel()

    async def _write(self, group: Sequence[PendingItem[bytes]]) -> None:
        """Durable when it returns: one sync for each file that it goes to. Raises LogFailed."""
        try:
            while group:  # ends: a file that has room takes one at least
                assert self._file is not None, "run before open"
                if self._file.size >= self._options.max_file_bytes:
                    await self._file.close()
                    await self._begin_file(self._name.number + 1)
                sizes = [each.size_bytes for each in group]
                room = self._options.max_file_bytes - self._file.size
                fitting = next(in_parts(group, sizes, bytes_max=room))
                await self._append([each for each in fitting if each.form])
                group = group[len(fitting) :]
        except OSError as error:
            raise LogFailed(self._directory / self._name.name, error) from error

    async def _append(self, records: Sequence[PendingItem[bytes]]) -> None:
        assert self._file is not None, "run before open"
        if not records:
            return
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        try:
            await self._file.append([each.form for each in records], sync=True)
        except OSError:
            await cut_back(self._disk, self._directory / self._name.name, self._file.size)
            raise
        self._written_ts = records[-1].commit_ts
        size_bytes = sum(each.size_bytes for each in records)
        self._measures.wrote(size_bytes, clock() - begin_s)
        self._bytes += size_bytes

    async def _begin_file(self, number: int) -> None:
        name = LogFile(number, file_name(number, self._clock.wall_ms()))
        file = await self._disk.open_append(self._directory / name.name, create=True)
        # both at once: a savepoint must not tell the size of one file under the name of another
        self._name, self._file = name, file
        log.info("file_begun", file=self._name.name, applied_ts=self.applied_ts())

    # --- progress ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when everything submitted is durable. Raises what `run` failed with."""
        await self._pending.flush()

    def applied_ts(self) -> Tso:
        """Everything up to here is in the files, durable."""
        return self._pending.applied_ts

    async def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the savepoint. Raises LogFailed; the one before is whole then. Where the file is
        gone, into which the system would go on writing, DownstreamWentBack."""
        assert not self._pending.is_waiting(checkpoint.commit_ts), "a checkpoint ahead of the files"
        async with self._pending.writing:
            assert self._file is not None, "save before open"
            name, file = self._name, self._file
            written = DurableUpTo(name.name, file.size, self._written_ts)
            try:
                await file.append([], sync=False)  # whether it is there
            except OSError as error:
                gone = f"nothing: {error.strerror}"
                raise DownstreamWentBack(str(file.path), gone, str(written.commit_ts)) from error
        with disk_errors(self._savepoint):
            text = Savepoint(checkpoint, written).to_toml()
            await self._disk.write_whole(self._savepoint, text)
        self._archive.saved(name)

    async def close(self) -> None:
        """Drops what is queued, waits for a write that is under way, lets go of file and lock."""
        self._pending.close()
        async with self._pending.writing:
            file, self._file = self._file, None
            lock, self._lock = self._lock, None
            await let_go(file, lock)

    def statistics(self) -> SinkStatistics:
        """How it stands; cheap."""
        now = self._pending.statistics(bytes_written=self._bytes)
        return replace(now, files=self._measures.statistics())
