"""A large record on its way into a log: written to a file of its own, which becomes a segment.

Invariant. Nothing of it is in the log before all of it is durable: the file gets the name of a
segment then. One that is left over has another name, and is removed when the log is opened.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog

from binlogd.host.disk import disk_errors, failed
from binlogd.host.threads import over
from binlogd.log import record
from binlogd.ports import AppendFile, Disk

log = structlog.get_logger(__name__)

SPOOL_SUFFIX = ".spool"


class Spool:
    """Made by `ValueLog.spool`. Methods raise LogFailed or DiskFull."""

    def __init__(self, disk: Disk, path: Path, file: AppendFile) -> None:
        self._disk, self.path, self.file = disk, path, file
        self._checksum = self.payload_bytes = 0
        self.is_given = False
        """Somebody has it who writes it to the log, or drops it."""

    @classmethod
    async def begin(cls, disk: Disk, path: Path) -> Spool:
        """A new one, with room for the header of the record."""
        opening = asyncio.get_running_loop().create_task(disk.open_append(path, create=True))
        try:
            spool = cls(disk, path, await over(opening))
        except OSError as error:
            raise await failed(disk, path, error) from error
        except asyncio.CancelledError:  # the file is made all the same
            with suppress(OSError):
                await cls(disk, path, opening.result()).drop()
            raise
        try:
            await spool._append(bytes(record.HEADER_BYTES))
        except BaseException:
            await spool.drop()
            raise
        return spool

    async def write(self, piece: bytes) -> None:
        """What follows of the payload."""
        await self._append(piece)
        self._checksum = record.extend(self._checksum, piece)
        self.payload_bytes += len(piece)

    async def finish(self) -> None:
        """Makes it a whole record, and durable."""
        header = record.header_for(self.payload_bytes, self._checksum)
        try:
            await self._disk.overwrite(self.path, 0, header)
        except OSError as error:
            raise await failed(self._disk, self.path, error) from error

    async def become(self, segment: Path) -> None:
        """Gives it the name of a segment. Raises OSError, and then it has not."""
        try:
            await self._disk.rename(self.path, segment)
        except OSError:  # perhaps only of the sync of its name
            await self._disk.remove([segment])
            raise
        self.file.path = segment

    async def payload(self) -> bytes:
        """What was written so far, in memory."""
        wanted = [(record.HEADER_BYTES, self.payload_bytes)]
        with disk_errors(self.path):
            (payload,) = await self._disk.read(self.path, wanted)
        return payload

    async def _append(self, piece: bytes) -> None:
        try:
            await self.file.append([piece], sync=False)
        except OSError as error:
            raise await failed(self._disk, self.path, error) from error

    async def drop(self) -> None:
        """Removes it, also when who asks is cancelled. The next start removes what is left."""
        await over(asyncio.get_running_loop().create_task(self._drop()))

    async def _drop(self) -> None:
        await self.file.close()
        try:
            await self._disk.remove([self.path])
        except OSError as error:
            log.warning("spool_left", path=str(self.path), cause=str(error))
