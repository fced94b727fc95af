"""Room that is kept for the day when the disk is full, so that garbage can still be deleted.

SQLite cannot even open a database without room for its log beside it, and a round of garbage
collection writes down what goes before it goes. So a file of a few megabytes lies in the data
directory, made while there is plenty of room, and given up for a start or a round that meets a full
disk. It has nothing in it: whoever is killed while it is made or given up leaves a shorter one or
none, and it is made again once there is room. docs/decisions/0101-a-reserve.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from binlogd.errors import BinlogdError, Corrupt, Unavailable
from binlogd.log.directory import RESERVE_FILE
from binlogd.ports import Disk

log = structlog.get_logger(__name__)

RESERVE_BYTES = 16 << 20
"""Many times what a start and a round write: some 200 KiB for each shard."""
_PLENTY = 4
"""The reserve is made with that many times its size free beyond what the caller wants: giving it up
never makes so much room that it would be made again at once."""
_FULL_BYTES = 1 << 20
"""Less than this is full: whatever failed then may have failed for that."""


class DataDiskFull(Unavailable):
    """Something failed where the disk of the data directory is full, reserve and all."""

    def __init__(self, data_dir: Path, free_bytes: int, cause: BinlogdError | OSError) -> None:
        missing = RESERVE_BYTES - free_bytes
        super().__init__(
            f"data-dir {data_dir}: its disk is full, {free_bytes} bytes are free ({cause})",
            todo=f"free at least {missing} bytes more on that file system, or enlarge it, and start"
            " again: what pump.gc lets go is deleted then. Move nothing out of pump/ by hand",
        )


class Reserve:
    """The file of one data directory. `size_bytes` is what it has, as far as was looked."""

    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._path = data_dir / RESERVE_FILE
        self._disk = disk
        self.size_bytes = 0
        self._was_refused = False

    async def keep(self, *, free_bytes: int, wanted_bytes: int) -> None:
        """Makes it, if it is not there and much more than `wanted_bytes` is free; where the file
        system refuses that, it is said, and not tried again. Raises OSError when it cannot look."""
        self.size_bytes = await self._found()
        is_made = self.size_bytes >= RESERVE_BYTES
        has_room = free_bytes > wanted_bytes + _PLENTY * RESERVE_BYTES
        if is_made or not has_room or self._was_refused:
            return
        try:
            await self._disk.reserve(self._path, RESERVE_BYTES)
            self.size_bytes = RESERVE_BYTES
        except OSError as error:
            self._was_refused, self.size_bytes = True, 0
            log.warning("reserve_not_made", path=str(self._path), cause=str(error))

    async def give_up(self) -> bool:
        """Deletes it, if less than its size is free; whether that made room. Raises OSError."""
        free_bytes = (await self._disk.space(self._path.parent)).free_bytes
        self.size_bytes = await self._found()
        if not self.size_bytes or free_bytes >= RESERVE_BYTES:
            return False
        await self._disk.remove([self._path])
        log.warning(
            "reserve_given_up",
            path=str(self._path),
            free_bytes=free_bytes,
            reserve_bytes=self.size_bytes,
            consequence="garbage can be collected; it is made again when there is room",
        )
        self.size_bytes = 0
        return True

    async def _found(self) -> int:
        return (await self._disk.sizes(self._path.parent)).get(self._path.name, 0)


@asynccontextmanager
async def room_in(data_dir: Path, disk: Disk) -> AsyncIterator[None]:
    """For a node that lives in a data directory: gives up the reserve before its files are opened,
    if there is little room; what fails all the same says where the disk is full: DataDiskFull."""
    try:
        await Reserve(data_dir, disk).give_up()
        yield
    except Corrupt:
        raise
    except (BinlogdError, OSError) as error:
        free_bytes = (await disk.space(data_dir)).free_bytes
        if free_bytes >= _FULL_BYTES:
            raise
        raise DataDiskFull(data_dir, free_bytes, error) from error
