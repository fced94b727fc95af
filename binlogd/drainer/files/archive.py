"""What becomes of finished files of a file-sink log: compressed, and removed when they are old.

Invariant. A file is touched only when a savepoint is durable that names a later one: a restart
never reads it. Why that is needed: the savepoint knows its file by name. The newest file is never
touched. A file that is being compressed stands there twice for a moment, and is replaced in one
step; a crash in between only means that it is compressed again.

Compressed files are called as the original called them, `<name>-<first commit_ts>.tar.gz`, and are
gzip. Source: tidb-binlog pkg/compress/compress.go, pkg/binlogfile/binlogger.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from binlogd.drainer.files.log import COMPRESSED_SUFFIX, HEAD, LogFile, compressed_name, log_files
from binlogd.drainer.messages.pb import head_of
from binlogd.errors import BinlogdError, CorruptPayload, CorruptRelay
from binlogd.host.clock import is_set_within
from binlogd.ports import Clock, Disk

_HEAD_BYTES = HEAD.size + 32  # the head of a record, and of its payload

log = structlog.get_logger(__name__)


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`keep_s` 0 keeps files for ever; an age counts from the last write to a file."""

    compresses: bool = False
    keep_s: float = 0.0
    interval_s: float = 3600.0


class FileArchive:
    """`saved` tells it how far a savepoint is, `run` does the work beside the sink."""

    def __init__(
        self, directory: Path, options: ArchiveOptions, *, disk: Disk, clock: Clock
    ) -> None:
        self._directory, self._options = directory, options
        self._disk, self._clock = disk, clock
        self._newest = 0
        self._moved = asyncio.Event()

    def saved(self, newest: LogFile) -> None:
        """A savepoint that names this file is durable."""
        if newest.number > self._newest:
            self._newest = newest.number
            self._moved.set()

    async def run(self) -> None:
        """Until cancelled. What fails is logged and tried again: no transaction depends on it."""
        while True:  # until cancelled
            try:
                await self.tidy()
            except (OSError, BinlogdError) as error:
                log.warning("files_not_tidied", directory=str(self._directory), cause=str(error))
            self._moved.clear()
            if not await is_set_within(self._moved, self._options.interval_s):
                log.debug("files_looked_at", directory=str(self._directory))

    async def tidy(self) -> None:
        """Removes what is old, compresses what is finished. Raises OSError, CorruptRelay."""
        names = list(await self._disk.sizes(self._directory))
        finished = [each for each in log_files(names) if each.number < self._newest]
        finished = await self._remove_old(finished)
        if self._options.compresses:
            for file in finished:
                if not file.name.endswith(COMPRESSED_SUFFIX):
                    await self._compress(file)

    async def _remove_old(self, finished: Sequence[LogFile]) -> list[LogFile]:
        """Oldest first and without a gap; gives those that stay."""
        if self._options.keep_s <= 0:
            return list(finished)
        modified_ms = await self._disk.modified_ms(self._directory)
        oldest_kept_ms = self._clock.wall_ms() - self._options.keep_s * 1000
        for number, file in enumerate(finished):
            if modified_ms.get(file.name, 0) >= oldest_kept_ms:
                return list(finished[number:])
            await self._disk.remove([self._directory / file.name])
            log.info("file_removed", file=file.name, reason="older than retention-time")
        return []

    async def _compress(self, file: LogFile) -> None:
        path = self._directory / file.name
        (head,) = await self._disk.read(path, [(0, _HEAD_BYTES)])
        if not head:
            return  # no transaction came before it was full: nothing to gain
        try:
            first_ts = head_of(head[HEAD.size :]).commit_ts
        except CorruptPayload as error:
            raise CorruptRelay(path, 0, str(error)) from error
        target = self._directory / compressed_name(file.name, first_ts)
        await self._disk.compress(path, target)
        log.info("file_compressed", file=target.name)
