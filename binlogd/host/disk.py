"""Files of this machine behind `ports.Disk`. Owns the threads that wait for the disk.

Every method is one hop to a thread, so callers bring whole batches: an append writes all of its
parts and syncs in the same hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import google_crc32c
import structlog

from binlogd.errors import ConfigError, DiskFull, LogFailed, Unavailable
from binlogd.host.threads import Threads
from binlogd.ports import AppendFile, Disk, DiskLock, Space

_GZIP_MAGIC = b"\x1f\x8b"
_PACKED_BYTES = 4 << 20
_CHECKSUM_BYTES = 1 << 20
_NAME_BYTES_MAX = 255
_LARGE_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = structlog.get_logger(__name__)


class PosixDisk:
    """A local file system. `threads` bounds how many system calls wait at the same time."""

    def __init__(self, *, threads: int = 8) -> None:
        self._threads = Threads(threads, name="disk")
        self._hop = self._threads.run
        self._boot_id = ""
        with contextlib.suppress(OSError):
            self._boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        self._replacing = threading.Lock()
        self._turns = count(1)
        self._replaced: dict[Path, int] = {}

    async def make_directory(self, directory: Path) -> None:
        """Makes it and its parents, each name synced into its parent."""
        await self._hop(lambda: make_directory(directory))

    async def sync_directory(self, directory: Path) -> None:
        """Syncs the names in a directory."""
        await self._hop(lambda: sync_directory(directory))

    async def sizes(self, directory: Path) -> dict[str, int]:
        """The plain files of a directory by name, with their sizes in bytes."""
        found = await self._hop(lambda: _plain_files(directory))
        return {name: each.st_size for name, each in found.items()}

    async def open_append(self, path: Path, *, create: bool) -> PosixAppendFile:
        """Opens a file to append; with `create` it must be new, and its name is durable."""
        descriptor, size = await self._hop(lambda: _open_append(path, create=create))
        return PosixAppendFile(self._threads, path, descriptor, size)

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length), all in one hop."""
        return await self._hop(lambda: _read(path, ranges))

    async def open_read(self, path: Path) -> PosixReadFile:
        """Opens a file to read."""
        return await self._hop(lambda: PosixReadFile(path))

    async def content(self, path: Path) -> bytes:
        """A whole file, unpacked if it is gzip. Raises also EOFError or zlib.error for a torn
        one."""
        return await self._hop(lambda: _content(path))

    async def checksum(self, path: Path, length: int) -> int:
        """CRC-32C of the first `length` bytes; raises OSError if the file is shorter."""
        return await self._hop(lambda: _checksum(path, length))

    async def truncate(self, path: Path, size: int) -> None:
        """Cuts a file and syncs it."""
        await self._hop(lambda: _truncate(path, size))

    async def overwrite(self, path: Path, begin: int, content: bytes) -> None:
        """Replaces bytes of a file and syncs it."""
        await self._hop(lambda: _overwrite(path, begin, content))

    async def remove(self, paths: Sequence[Path]) -> None:
        """Removes files of one directory and syncs the directory."""
        await self._hop(lambda: _remove(paths))

    async def write_whole(self, path: Path, content: bytes) -> None:
        """Writes beside it, syncs, renames over it, syncs the directory."""
        turn = next(self._turns)
        await self._hop(lambda: self._replace(path, content, turn))

    def _replace(self, path: Path, content: bytes, turn: int) -> None:
        """One at a time, and never an older content over a newer one: whoever is cancelled leaves
        its thread writing, and may ask again."""
        with self._replacing:
            if self._replaced.get(path, 0) < turn:
                write_whole(path, content)
                self._replaced[path] = turn

    async def reserve(self, path: Path, size_bytes: int) -> None:
        """Takes the room from the file system without writing to it, where it can do that."""
        await self._hop(lambda: _reserve(path, size_bytes))

    async def compress(self, source: Path, target: Path) -> None:
        """Beside it, in steps of some megabytes, then renamed and synced; then the source goes."""
        packing = _Packing(source, target)
        try:
            await self._hop(packing.begin)
            while await self._hop(packing.step):
                pass
            await self._hop(packing.finish)
        finally:
            await asyncio.shield(self._hop(packing.close))

    async def modified_ms(self, directory: Path) -> dict[str, int]:
        """When the plain files of a directory were last changed."""
        found = await self._hop(lambda: _plain_files(directory))
        return {name: each.st_mtime_ns // 1_000_000 for name, each in found.items()}

    async def rename(self, source: Path, target: Path) -> None:
        """Puts a file or directory in the place of another, durably; both have one parent."""
        await self._hop(lambda: _rename(source, target))

    async def copy(self, source: Path, target: Path, *, may_link: bool = False) -> None:
        """Copies a file durably; `target` must be new. With `may_link` it may become another name
        of the same bytes, for those that nobody writes to any more."""
        await self._hop(lambda: _copy(source, target, may_link=may_link))

    async def remove_tree(self, directory: Path) -> None:
        """Removes a directory with all that is in it, if it is there."""
        await self._hop(lambda: shutil.rmtree(directory, ignore_errors=not directory.exists()))

    async def space(self, directory: Path) -> Space:
        """How full its file system is."""
        return await self._hop(lambda: _space(directory))

    async def lock(self, path: Path) -> PosixLock:
        """Takes an flock. Raises ConfigError naming the process that has it."""
        # without a hop: it never waits, and a caller that is cancelled must not leave it taken
        return PosixLock(_lock(path))

    def boot_id(self) -> str:
        """The kernel's boot id; empty if the system does not tell."""
        return self._boot_id

    def close(self) -> None:
        """Ends the threads; nothing may be in flight."""
        self._threads.close()


class PosixAppendFile:
    """A descriptor opened to append; made by `PosixDisk.open_append`."""

    def __init__(self, threads: Threads, path: Path, descriptor: int, size: int) -> None:
        self._hop, self.path, self._descriptor = threads.run, path, descriptor
        self.size, self.last_sync_s = size, 0.0
        self._in_use = threading.Lock()  # a cancelled caller leaves its thread writing

    async def append(self, parts: Sequence[bytes], *, sync: bool) -> None:
        """Writes the parts and, with `sync`, calls fdatasync, in one hop."""
        await self._hop(lambda: self._append(parts, sync=sync))
        self.size += sum(map(len, parts))

    async def close(self) -> None:
        """Closes the descriptor; an error on close says nothing that a sync did not."""
        await self._hop(self._close)

    def _append(self, parts: Sequence[bytes], *, sync: bool) -> None:
        with self._in_use:
            if self._descriptor < 0:
                raise OSError(errno.EBADF, "closed")
            for content in _joined(parts):
                _write_all(self._descriptor, content)
            if sync:
                begin_s = time.perf_counter()
                os.fdatasync(self._descriptor)
                self.last_sync_s = time.perf_counter() - begin_s
            # the system goes on writing to a file without a name, which nobody reads any more
            there, size = self.path.stat(), self.size + sum(map(len, parts))
            if there.st_size < size or not os.path.samestat(there, os.fstat(self._descriptor)):
                raise OSError(errno.ESTALE, "it was replaced or cut under this process")

    def _close(self) -> None:
        with self._in_use:
            descriptor, self._descriptor = self._descriptor, -1
            _close(descriptor)


class PosixReadFile:
    """A descriptor that lives as long as this object."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, begin: int, size: int) -> bytes:
        """The bytes at an offset, by whoever calls: it waits for the disk."""
        return _pread_all(self._descriptor, begin, size)


class PosixLock:
    """A held flock; made by `PosixDisk.lock`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def release(self) -> None:
        """Closes the descriptor, which gives up the lock; the file stays."""
        descriptor, self._descriptor = self._descriptor, -1
        _close(descriptor)


async def cut_back(disk: Disk, path: Path, synced_bytes: int) -> None:
    """To what was synced: after a sync that failed the page cache shows what the disk may not have,
    and the next one would call it durable. Source: Rebello et al., ATC 2020."""
    try:
        await disk.truncate(path, synced_bytes)
    except OSError as error:
        log.warning("file_not_cut_back", file=path.name, cause=str(error))


async def opened_again(disk: Disk, path: Path) -> AppendFile:
    """The newest file of a log, to append to. It is durable with its name, as a process that died
    between write and sync left it to the page cache alone."""
    file = await disk.open_append(path, create=False)
    try:
        await file.append([], sync=True)
        await disk.sync_directory(path.parent)
    except BaseException:
        await file.close()
        raise
    return file


async def let_go(file: AppendFile | None, lock: DiskLock | None) -> None:
    """Closes the file of a log and gives up the lock of its directory, that also where the close
    fails."""
    try:
        if file is not None:
            await file.close()
    finally:
        if lock is not None:
            await lock.release()


# --- what the threads do -------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """`Disk.sync_directory`, for a process without an event loop."""
    with _opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def alone_in(directory: Path, otherwise: str) -> Iterator[None]:
    """Holds an flock of a directory, which may be read-only. Raises Unavailable, with the words of
    `otherwise`, where another process does."""
    with _opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"{directory} {otherwise}") from None
        yield


def make_directory(directory: Path) -> None:
    """`Disk.make_directory`, for a process without an event loop."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    # whoever was killed behind its mkdir has not synced the name; one that may not be read is no
    # directory of ours
    with contextlib.suppress(PermissionError):
        sync_directory(directory.parent)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            each.mkdir()
        sync_directory(each.parent)


def _plain_files(directory: Path) -> dict[str, os.stat_result]:
    """In the order of their names. One that goes meanwhile is none, and hides no other."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    found[entry.name] = entry.stat()
    return found


class _Packing:
    """A file on its way to a gzip of it; each method is called by one thread at a time."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._beside = target.with_name(target.name + ".tmp")
        self._in_use = threading.Lock()  # a cancelled caller leaves its thread at a step
        self._files = contextlib.ExitStack()
        self._is_over = False

    def begin(self) -> None:
        """Opens both, unless the caller has gone meanwhile."""
        with self._in_use:
            if self._is_over:
                return
            self._from = self._files.enter_context(self._source.open("rb", buffering=0))
            self._to = self._files.enter_context(self._beside.open("wb", buffering=0))
            packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._to, mtime=0)
            self._gzip = self._files.enter_context(packed)

    def step(self) -> bool:
        """Packs some megabytes; False at the end of the file."""
        with self._in_use:
            part = self._from.read(_PACKED_BYTES)
            self._gzip.write(part)
        return bool(part)

    def finish(self) -> None:
        """Puts it in place of the source."""
        with self._in_use:
            self._gzip.close()
            os.fsync(self._to.fileno())
            status = os.fstat(self._from.fileno())
            os.utime(self._beside, ns=(status.st_atime_ns, status.st_mtime_ns))
            self._beside.replace(self._target)
            sync_directory(self._target.parent)
            self._source.unlink()
            sync_directory(self._target.parent)

    def close(self) -> None:
        """Lets go of the files; what is not finished goes."""
        with self._in_use:
            self._is_over = True
            with contextlib.suppress(OSError):  # of the end of a gzip that is not finished
                self._files.close()
            self._beside.unlink(missing_ok=True)


def _open_append(path: Path, *, create: bool) -> tuple[int, int]:
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    if create:
        flags |= os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, flags, 0o666)
    try:
        if create:
            sync_directory(path.parent)
        return descriptor, os.fstat(descriptor).st_size
    except OSError:
        os.close(descriptor)
        raise


def _joined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Small neighbours in one piece, large parts as they are: those must not be held twice."""
    begin = 0
    for at, part in enumerate(parts):
        if len(part) >= _LARGE_BYTES:
            yield b"".join(parts[begin:at])
            yield part
            begin = at + 1
    yield parts[0] if begin == 0 and len(parts) == 1 else b"".join(parts[begin:])


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:  # ends: every turn writes at least a byte or raises
        written = os.write(descriptor, view)
        view = view[written:]


def _read(path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    with _opened(path, os.O_RDONLY) as descriptor:
        return [_pread_all(descriptor, offset, length) for offset, length in ranges]


def _pread_all(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0:  # ends: at the end of the file, or when all is read
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content


def _checksum(path: Path, length: int) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while length > 0:
            part = file.read(min(length, _CHECKSUM_BYTES))
            if not part:
                raise OSError(errno.EIO, f"{length} bytes are missing at the end", str(path))
            checksum = google_crc32c.extend(checksum, part)
            length -= len(part)
    return checksum


def _truncate(path: Path, size: int) -> None:
    with _opened(path, os.O_RDWR) as descriptor:
        if (found := os.fstat(descriptor).st_size) < size:  # which would fill it with zeros
            raise OSError(errno.ESTALE, f"it has {found} bytes, not {size}", str(path))
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)


def _overwrite(path: Path, begin: int, content: bytes) -> None:
    with _opened(path, os.O_RDWR) as descriptor:
        written = os.pwrite(descriptor, content, begin)
        if written < len(content):
            raise OSError(errno.EIO, f"{written} of {len(content)} bytes were written", str(path))
        os.fsync(descriptor)


def _reserve(path: Path, size_bytes: int) -> None:
    with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            os.fsync(descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    for directory in sorted({path.parent for path in paths}):
        sync_directory(directory)


def _rename(source: Path, target: Path) -> None:
    source.replace(target)
    sync_directory(target.parent)


def _copy(source: Path, target: Path, *, may_link: bool) -> None:
    if may_link:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(source, target)
            sync_directory(target.parent)
            return
    with source.open("rb", buffering=0) as original, target.open("xb", buffering=0) as copy:
        while part := original.read(_CHECKSUM_BYTES):
            _write_all(copy.fileno(), part)
        os.fsync(copy.fileno())
    sync_directory(target.parent)


def write_whole(path: Path, content: bytes) -> None:
    """`Disk.write_whole`, for a process without an event loop; one writer at a time."""
    beside = path.with_name(path.name + ".new")
    write_synced(beside, content)
    _rename(beside, path)


def write_synced(path: Path, content: bytes) -> None:
    """What it holds is on the disk on return; its name is there once its directory is synced."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        _write_all(descriptor, content)
        os.fsync(descriptor)


def put_in_place(beside: Path, path: Path) -> None:
    """Gives a finished file its name; it is on the disk from then on, name and all."""
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    _rename(beside, path)


def _space(directory: Path) -> Space:
    status = os.statvfs(directory)
    unit = status.f_frsize  # fragments, not blocks: the preferred size differs
    return Space(status.f_blocks * unit, status.f_bavail * unit)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise ConfigError(
                f"{path.parent} is in use by process {holder or 'unknown'} (lock {path}):"
                " stop that process, or give this one another data-dir"
            ) from error
        raise
    return descriptor


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # also where it was closed before, and is -1
        os.close(descriptor)


def check_writable(key: str, directory: Path) -> None:
    """Whether this user may write there, or make it; changes nothing. Raises ConfigError."""
    if any(len(os.fsencode(name)) > _NAME_BYTES_MAX for name in directory.parts):
        raise ConfigError(f"{key} {directory}: a name has {_NAME_BYTES_MAX} bytes at most")
    there = directory
    while not os.path.exists(there):  # ends at the root
        if os.path.islink(there):
            raise ConfigError(
                f"{key} {directory}: {there} is a link to {there.readlink()}, where nothing is;"
                " make that, or remove the link"
            )
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = f"no permission to write in {there}" if there.is_dir() else f"{there} is a file"
        raise ConfigError(
            f"{key} {directory}: {reason}; name a directory that user {os.getuid()} may write"
        )


def is_no_space(error: OSError) -> bool:
    """Whether bytes were refused for want of room: of the disk, or of the user's share."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


async def failed(disk: Disk, path: Path, error: OSError) -> DiskFull | LogFailed:
    """The error to raise for one of the disk at a file."""
    if is_no_space(error):
        try:
            return DiskFull((await disk.space(path.parent)).free_bytes, 0)
        except OSError as again:
            error = again
    return LogFailed(path, error)


@contextlib.contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """What a disk refuses in the block is raised as LogFailed of `path`."""
    try:
        yield
    except OSError as error:
        raise LogFailed(path, error) from error
