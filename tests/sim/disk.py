"""A disk in memory that can lose what was not synced. Passes the same contract as PosixDisk."""

from __future__ import annotations

import asyncio
import errno
import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

from binlogd.errors import ConfigError
from binlogd.ports import Space
from tests.sim.sqlite import Databases


@dataclass
class SimFile:
    """A file's bytes, and how many of them a crash cannot take."""

    content: bytearray = field(default_factory=bytearray)
    synced: int = 0
    is_name_durable: bool = False
    zeros: int = 0
    """More behind the content, all of them durable, which nobody reads."""

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.content) + self.zeros


@dataclass
class Pace:
    """How long things take, in seconds of the loop's time. Without one they take some turns of the
    loop, so that a test can stop between any two steps."""

    read_s: tuple[float, float] = (0.00002, 0.0002)
    write_s: tuple[float, float] = (0.00005, 0.0005)
    sync_s: tuple[float, float] = (0.0002, 0.003)


class SimDisk:
    """`crash` and `kill` give the disk that the next process finds."""

    def __init__(self, rng: random.Random) -> None:
        self.files: dict[Path, SimFile] = {}
        self.directories: set[Path] = set()
        self.locked: set[Path] = set()
        self.boot = 1
        self.fail_writes_after: int | None = None
        self.fail_syncs = 0
        self.fail_creates = 0
        self.free = 1 << 40
        self.flips = 0.02
        """How many of the unsynced bytes that a crash leaves are wrong."""
        self.pace: Pace | None = None
        self.databases = Databases(rng)
        """Those of SQLite that lie on it."""
        self._rng = rng

    def is_durable(self, content: bytes, directory: str) -> bool:
        """Whether a loss of power leaves a file below the directory that has these bytes."""
        return any(
            file.is_name_durable and file.content.find(content, 0, file.synced) >= 0
            for path, file in self.files.items()
            if directory in path.parts
        )

    # --- faults ------------------------------------------------------------------------------

    def crash(self) -> SimDisk:
        """The power fails: of what was not synced any part may be gone, or wrong."""
        after = SimDisk(self._rng)
        after.pace, after.flips = self.pace, self.flips
        after.boot = self.boot + 1
        after.directories = set(self.directories)
        after.databases = self.databases.crash()
        for path, file in self.files.items():
            if not file.is_name_durable and self._rng.random() < 0.5:
                continue
            keep = self._rng.randint(file.synced, len(file.content))
            content = bytearray(file.content[:keep])
            for position in range(file.synced, keep):
                if self._rng.random() < self.flips:
                    content[position] ^= 1 << self._rng.randrange(8)
            after.files[path] = SimFile(content, keep, is_name_durable=True, zeros=file.zeros)
        return after

    def kill(self) -> SimDisk:
        """The process dies: every byte that a write call took is there."""
        after = SimDisk(self._rng)
        after.pace, after.flips = self.pace, self.flips
        after.boot = self.boot
        after.directories, after.files = self.directories, self.files
        after.databases = self.databases
        return after

    # --- ports.Disk --------------------------------------------------------------------------

    async def make_directory(self, directory: Path) -> None:
        self.directories |= {directory, *directory.parents}

    async def sync_directory(self, directory: Path) -> None:
        self._need(directory)
        await self._wait("sync_s")
        for path, file in self.files.items():
            if path.parent == directory:
                file.is_name_durable = True

    async def sizes(self, directory: Path) -> dict[str, int]:
        self._need(directory)
        return {
            path.name: file.size
            for path, file in sorted(self.files.items())
            if path.parent == directory
        }

    async def open_append(self, path: Path, *, create: bool) -> SimAppendFile:
        if create:
            self._need(path.parent)
            if path in self.files:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            self.files[path] = SimFile()
            if self.fail_creates:
                self.fail_creates -= 1
                raise OSError(errno.EIO, "Input/output error", str(path))
            await self.sync_directory(path.parent)
        return SimAppendFile(self, path, self._file(path))

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        content = self._file(path).content
        await self._wait()
        return [bytes(content[offset : offset + length]) for offset, length in ranges]

    async def open_read(self, path: Path) -> SimReadFile:
        return SimReadFile(self._file(path))

    async def checksum(self, path: Path, length: int) -> int:
        content = bytes(self._file(path).content[:length])
        if len(content) < length:
            raise OSError(errno.EIO, "short", str(path))
        return int(google_crc32c.value(content))

    async def truncate(self, path: Path, size: int) -> None:
        file = self._file(path)
        if len(file.content) < size:
            raise OSError(errno.ESTALE, f"it has {len(file.content)} bytes, not {size}", str(path))
        del file.content[size:]
        file.synced = len(file.content)

    async def remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self.files.pop(path, None)
            self.databases.remove(path)

    async def rename(self, source: Path, target: Path) -> None:
        file = self._file(source)
        assert target not in self.files, f"{target} is there"
        file.is_name_durable = False
        self.files[target] = self.files.pop(source)
        await self.sync_directory(target.parent)

    async def overwrite(self, path: Path, begin: int, content: bytes) -> None:
        file = self._file(path)
        assert begin + len(content) <= len(file.content), "bytes that are not there"
        await self._wait("write_s")
        file.content[begin : begin + len(content)] = content
        await self.sync(file)

    async def write_whole(self, path: Path, content: bytes) -> None:
        self._need(path.parent)
        self.files[path] = SimFile(bytearray(content), len(content), is_name_durable=True)

    async def reserve(self, path: Path, size_bytes: int) -> None:
        self._need(path.parent)
        self.files[path] = SimFile(is_name_durable=True, zeros=size_bytes)

    async def compress(self, source: Path, target: Path) -> None:
        await self._wait()
        await self.write_whole(target, gzip.compress(bytes(self._file(source).content)))
        await self.remove([source])

    async def modified_ms(self, directory: Path) -> dict[str, int]:
        return dict.fromkeys(await self.sizes(directory), 0)

    async def space(self, directory: Path) -> Space:
        self._need(directory)
        return Space(self.free + sum(file.size for file in self.files.values()), self.free)

    async def lock(self, path: Path) -> SimLock:
        if path in self.locked:
            raise ConfigError(f"{path.parent} is in use by process 1")
        self.locked.add(path)
        return SimLock(self, path)

    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    # --- inside ------------------------------------------------------------------------------

    def _need(self, directory: Path) -> None:
        if directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(directory))

    def _file(self, path: Path) -> SimFile:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return self.files[path]

    async def _wait(self, kind: str = "read_s") -> None:
        if self.pace is not None:
            await asyncio.sleep(self._rng.uniform(*getattr(self.pace, kind)))
            return
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)

    async def write(self, file: SimFile, content: bytes) -> None:
        """What a write call does: some of it may get there before it fails."""
        if self.pace is not None:
            await self._write_in_time(file, content)
            return
        for begin in range(0, len(content), 512):
            part = content[begin : begin + 512]
            if self.fail_writes_after is not None:
                if self.fail_writes_after < len(part):
                    file.content += part[: self.fail_writes_after]
                    self.fail_writes_after = None
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.fail_writes_after -= len(part)
            file.content += part
            await self._wait()

    async def _write_in_time(self, file: SimFile, content: bytes) -> None:
        """In one or two steps, between which a kill finds a part of it."""
        first = self._rng.randrange(len(content) + 1) if self._rng.random() < 0.2 else len(content)
        for part in (content[:first], content[first:]):
            await self._wait("write_s")
            if self.fail_writes_after is not None:
                if self.fail_writes_after < len(part):
                    file.content += part[: self.fail_writes_after]
                    self.fail_writes_after = 0 if self.free == 0 else None
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.fail_writes_after -= len(part)
            file.content += part
            if first == len(content):
                return

    async def sync(self, file: SimFile) -> None:
        """What fdatasync does: when it fails, pages may be lost and count as clean."""
        size = len(file.content)
        await self._wait("sync_s")
        if self.fail_syncs:
            self.fail_syncs -= 1
            for position in range(file.synced, size):
                if self._rng.random() < 0.3:
                    file.content[position] = 0
            raise OSError(errno.EIO, "Input/output error")
        file.synced = max(file.synced, size)


class SimAppendFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: SimDisk, path: Path, file: SimFile) -> None:
        self._disk = disk
        self.path = path
        self._file = file
        self._size = len(file.content)
        self._is_open = True

    @property
    def size(self) -> int:
        return self._size

    @property
    def last_sync_s(self) -> float:
        return 0.0

    async def append(self, parts: Sequence[bytes], *, sync: bool) -> None:
        if not self._is_open:
            raise OSError(errno.EBADF, "closed")
        await self._disk.write(self._file, b"".join(parts))
        if sync:
            await self._disk.sync(self._file)
        size = self._size + sum(map(len, parts))
        if self._disk._file(self.path) is not self._file or self._file.size < size:
            raise OSError(errno.ESTALE, "it was replaced or cut under this process")
        self._size = size

    async def close(self) -> None:
        await asyncio.sleep(0)  # a hop to a thread, which who is cancelled may never make
        self._is_open = False


class SimReadFile:
    """A file of a SimDisk that is read."""

    def __init__(self, file: SimFile) -> None:
        self._file = file

    def read(self, begin: int, size: int) -> bytes:
        return bytes(self._file.content[begin : begin + size])


class SimLock:
    """A lock of a SimDisk."""

    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    async def release(self) -> None:
        self._disk.locked.discard(self._path)
