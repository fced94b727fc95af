"""Writing a relay log: joined binlogs and DDL jobs, durable before the downstream sees them.

Invariant. What `append` returned for is on disk and reads back, unless `collect` was told
that the checkpoint behind it is saved. Why it holds: a group is one frame, written and fsynced
before the call returns; a new file is fsynced and so is its directory before anything is written
behind its head; a failed write or fsync poisons the writer, and opening it again verifies the last
file.

Each file begins with a snapshot of the schema, so that reading can begin at any file. Files that
continue each other form a chain. When the Drainer begins somewhere that the chain does not cover
(the checkpoint was set back, or moved on over transactions that never came here), or meets a
transaction that it lacks (a late commit, in its place), a new chain is started, and only the newest
chain is ever read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import BinlogdError, CorruptRelay, LogFailed
from binlogd.host.disk import cut_back, disk_errors, let_go, opened_again
from binlogd.ports import AppendFile, Disk, DiskLock
from binlogd.relay.frame import FrameKind, RelayEntry, RelayFile, RelayPos, encode_frame, file_name
from binlogd.relay.group import append_group, in_groups
from binlogd.relay.reader import chain_of, commit_tss_of, list_files, read_relay, spans
from binlogd.tso import NO_TS, Tso

LOCK_NAME = ".lock"

log = structlog.get_logger(__name__)


class RelayStatistics(msgspec.Struct, frozen=True):
    """How the relay log stands; counters since it was opened."""

    files: int
    size_bytes: int
    last_ts: Tso
    entries_appended: int
    bytes_appended: int


def deletable(files: Sequence[RelayFile], saved_ts: Tso) -> list[int]:
    """Numbers of the files that nobody needs any more, oldest first; never the newest one's.

    Invariant. A reader that starts behind the saved checkpoint always finds a file whose head lies
    at or before it. Why it holds: a file goes only when the *next* one begins at or before the
    saved checkpoint. Not the applied one: what is not saved is read again after a crash.
    """
    needed = max((at for at, file in enumerate(files) if file.base_ts <= saved_ts), default=0)
    return [file.suffix for file in files[:needed]]


class RelayWriter:
    """The one writer of a relay directory. Used by one task at a time."""

    def __init__(self, directory: Path, disk: Disk, *, max_file_bytes: int) -> None:
        self._directory, self._disk, self._max_file_bytes = directory, disk, max_file_bytes
        self._snapshot: Callable[[], bytes] = bytes
        self._lock: DiskLock | None = None
        self._file: AppendFile | None = None
        self._files: list[RelayFile] = []
        self._head_bytes = 0
        self._last_ts = self._after = NO_TS
        self._held = set[int]()
        """What lies between the two, and comes again."""
        self._entries = self._bytes = 0
        self._last_error = ""

    async def open(self, *, after: Tso, snapshot: Callable[[], bytes]) -> None:
        """Makes the log ready for transactions above `after`.

        `snapshot` gives the schema after everything that earlier calls of `append` were
        given (and everything up to `after`); it is called when a file is begun. A torn tail is cut
        off. Raises CorruptRelay, ConfigError if another process writes here, LogFailed.
        """
        self._snapshot = snapshot
        self._head_bytes = 0
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
        self._files, headless = await list_files(self._disk, self._directory, comes_again=True)
        if headless is not None:
            await self._disk.remove([self._path(headless)])
        self._after, self._held = after, set()
        last_ts = await self._cut_tail() if self._files else NO_TS
        chain = chain_of(self._files)
        if chain and chain[0].base_ts <= after <= last_ts:
            self._last_ts = last_ts
            self._file = await opened_again(self._disk, self._path(chain[-1].suffix))
            return
        self._last_ts = after
        await self._begin_file(FrameKind.START, self._snapshot())

    async def _cut_tail(self) -> Tso:
        """The last commit_ts of the log, verified from the begin on and cut where it is torn; what
        it has behind the begin is noted."""
        chain = chain_of(self._files)
        for file in chain[len(deletable(chain, self._after)) :]:
            path, last_ts, end, self._head_bytes = self._path(file.suffix), file.base_ts, 0, 0
            is_last = file is self._files[-1]
            frames = spans(self._disk, path, file.size_bytes, is_last=is_last, comes_again=True)
            async for frame in frames:
                self._head_bytes = self._head_bytes or frame.end
                last_ts, end = frame.commit_ts, frame.end
                if frame.kind is FrameKind.GROUP and last_ts > self._after:
                    self._held.update(await commit_tss_of(self._disk, path, frame))
        if end < file.size_bytes:
            dropped_bytes = file.size_bytes - end
            log.warning("relay_tail_cut", file=path.name, offset=end, dropped_bytes=dropped_bytes)
            await self._disk.truncate(path, end)
            self._files[-1] = replace(file, size_bytes=end)
        return last_ts

    async def append(self, entries: Sequence[RelayEntry]) -> int:
        """Returns when all entries are durable: the bytes of binlogs that were written.

        In commit_ts order; what the log already holds is passed over, since after a restart it
        comes again. What it does not hold and lies before its end, as a late commit that comes in
        its place, begins a chain, with what the log has before it. Raises LogFailed, CorruptRelay;
        the writer is useless then, until it has been closed and opened again.
        """
        if self._last_error:
            raise LogFailed(self._directory, OSError(self._last_error))
        begin, end = self._after, self._last_ts
        again = (each.commit_ts for each in entries if begin < each.commit_ts <= end)
        is_as_before = self._held.issuperset(again)
        known_ts = end if is_as_before else entries[0].commit_ts - 1
        fresh = [entry for entry in entries if entry.commit_ts > known_ts]
        # a file has at least as much of groups as its head has of schema
        size_bytes, wanted = self._files[-1].size_bytes, max(self._max_file_bytes, self._head_bytes)
        is_full = size_bytes - self._head_bytes >= wanted
        try:
            # what is passed over here is not yet in the schema that a snapshot would show
            if not is_as_before:
                await self._begin_chain(known_ts)
            elif is_full and fresh and len(fresh) == len(entries):
                await self._begin_file(FrameKind.CONTINUE, self._snapshot())
            await self._write(fresh)
        except (OSError, BinlogdError) as error:  # of the disk, or of what was to be written
            newest = self._files[-1]
            await cut_back(self._disk, self._path(newest.suffix), newest.size_bytes)
            if isinstance(error, OSError):
                raise self._failure(error) from error
            self._last_error = str(error)
            raise
        return sum(len(entry.payload) for entry in fresh)

    async def _begin_chain(self, upto: int) -> None:
        """One that has what the newest one has up to a commit_ts: a restore needs it, too. What
        was collected meanwhile is behind the checkpoint."""
        begin = max(self._after, chain_of(self._files)[0].base_ts)
        former = await read_relay(self._disk, self._directory, begin)
        self._last_ts = former.base_ts
        await self._begin_file(FrameKind.START, former.snapshot)
        async for batch in former.batches:
            await self._write([each for each in batch if each.commit_ts <= upto])

    async def _write(self, entries: Sequence[RelayEntry]) -> None:
        for group in in_groups(entries):
            assert self._file is not None, "append before open"
            assert all(a.commit_ts <= b.commit_ts for a, b in pairwise(group))
            newest = self._files[-1]
            at = RelayPos(newest.suffix, newest.size_bytes)
            frame_bytes = await append_group(self._file, at, group)
            self._last_ts = group[-1].commit_ts
            self._files[-1] = replace(newest, size_bytes=newest.size_bytes + frame_bytes)
            self._entries += len(group)
            self._bytes += frame_bytes

    async def _begin_file(self, kind: FrameKind, snapshot: bytes) -> None:
        suffix = self._files[-1].suffix + 1 if self._files else 0
        if self._file is not None:
            await self._file.close()
        head = encode_frame(kind, RelayPos(suffix, 0), self._last_ts, [snapshot])
        self._file = await self._disk.open_append(self._path(suffix), create=True)
        await self._file.append(head, sync=True)
        self._head_bytes = size_bytes = sum(map(len, head))
        self._files.append(RelayFile(suffix, self._last_ts, kind is FrameKind.START, size_bytes))
        log.info(
            "relay_file_begun", suffix=suffix, base_ts=self._last_ts, head_bytes=self._head_bytes
        )

    async def collect(self, saved_ts: Tso) -> None:
        """Removes files that nobody needs once a checkpoint at `saved_ts` is stored. Raises
        LogFailed; the files go next time then, and `append` says whether the log is good."""
        assert self._file is not None, "collect before open"
        with disk_errors(self._directory):
            await self._file.append([], sync=False)  # whether it is there
            for suffix in deletable(self._files, saved_ts):
                # one by one: a crash in between must not leave a gap
                await self._disk.remove([self._path(suffix)])
                self._files.pop(0)

    async def close(self) -> None:
        """Lets go of the file and the lock. Safe to call twice."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        await let_go(file, lock)

    def statistics(self) -> RelayStatistics:
        """How it stands; cheap."""
        return RelayStatistics(
            files=len(self._files),
            size_bytes=sum(file.size_bytes for file in self._files),
            last_ts=self._last_ts,
            entries_appended=self._entries,
            bytes_appended=self._bytes,
        )

    def _path(self, suffix: int) -> Path:
        return self._directory / file_name(suffix)

    def _failure(self, error: OSError) -> LogFailed:
        self._last_error = error.strerror or str(error)
        return LogFailed(self._directory, error)
