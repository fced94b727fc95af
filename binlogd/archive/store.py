"""A directory or a prefix of an object store, by pyarrow; the only file here that knows it.

    store = Store.open("s3://bucket/binlogs")      file, s3, gs, abfs, hdfs, or what fsspec knows
    store.put("a/b.json", b"...")

A name is there with all of its content or not at all: a local file is written beside, synced and
renamed, in a directory whose name is synced; an object appears when its upload is complete. What
fails for a moment is tried again.
"""

from __future__ import annotations

import errno
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from binlogd.errors import ConfigError, Corrupt, Unavailable
from binlogd.extras import require
from binlogd.host.disk import is_no_space, make_directory, put_in_place
from binlogd.host.words import local_path, split_url
from binlogd.log.checked_text import decoded_json
from binlogd.snapshot.publishing.file_systems import (
    NEW,
    directories_in,
    file_system,
    remove_tree,
    whole_object,
    without_secrets,
)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A small file beside the catalog, as it begins where there is none: `format` is that of this
    version."""

    format: int = 1


T = TypeVar("T")
D = TypeVar("D", bound=Document)

ATTEMPTS_MAX = 4
RETRY_S = 0.25
GAP_BYTES = 64 << 10
"""Reading over a gap is cheaper than another request."""
RUN_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 8 << 20


class ArchiveUnavailable(Unavailable):
    """The store of an archive, or of what else is kept there, gives an error again and again."""

    def __init__(self, where: str, error: OSError, what: str = "archive") -> None:
        do = "free some" if is_no_space(error) else "look at the store, credentials and network"
        todo = f"nothing is lost, it goes on where it stopped: {do}"
        super().__init__(f"{what} {where}: {error}", todo=todo)


class ArchiveStore:
    """Files below one URL. All methods block. They raise ArchiveUnavailable, FileNotFoundError."""

    def __init__(
        self, url: str, system: Any, root: str, *, is_local: bool, what: str = "archive"
    ) -> None:
        self.url, self._what = without_secrets(url), what
        self._system, self._root = system, root.rstrip("/")
        self._is_local = is_local
        self._made: set[Path] = set()
        self._fs = importlib.import_module("pyarrow.fs")

    @classmethod
    def open(cls, url: str, what: str = "archive") -> ArchiveStore:
        """A path is a local directory; errors say `what` it is. Raises ConfigError."""
        require("archive", "pyarrow")
        fs = importlib.import_module("pyarrow.fs")
        if (path := local_path(url)) is not None:
            root = str(path.absolute())
            return cls(url, fs.LocalFileSystem(), root, is_local=True, what=what)
        scheme = split_url(url).scheme
        try:
            system, root = file_system(url)
        except (ValueError, OSError) as error:
            system, root = _by_fsspec(fs, url, scheme, error, what)
        return cls(url, system, root, is_local=False, what=what)

    def __eq__(self, other: object) -> bool:
        """The same place is the same store."""
        return isinstance(other, ArchiveStore) and (self.url, self._root) == (
            other.url,
            other._root,
        )

    def __hash__(self) -> int:
        return hash((self.url, self._root))

    # --- reading -----------------------------------------------------------------------------

    def names(self, directory: str = "") -> dict[str, int]:
        """The files of a directory with their sizes; {} where there is no such directory."""
        selector = self._fs.FileSelector(self._path(directory), allow_not_found=True)
        infos = self._trying(directory, lambda: self._system.get_file_info(selector))
        return {
            info.base_name: info.size
            for info in infos
            if info.is_file and not info.base_name.endswith(NEW)
        }

    def directories(self, directory: str = "") -> list[str]:
        """The directories in a directory; of an object store, what the names of objects show."""
        path = self._path(directory)
        return self._trying(directory, lambda: directories_in(self._system, path))

    def read(self, name: str) -> bytes:
        """A whole file."""

        def read() -> bytes:
            with self._system.open_input_stream(self._path(name)) as stream:
                content: bytes = stream.read()
                return content

        return self._trying(name, read)

    def found(self, name: str) -> bytes | None:
        """A whole file; None where there is none."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def document(self, name: str, kind: type[D]) -> D:
        """A file with a checksum (`checksummed_json`); as it begins where there is none. Raises
        Corrupt, and ConfigError for another format."""
        try:
            found = decoded_json(self.read(name), kind)
        except FileNotFoundError:
            return kind()
        except ValueError as error:
            raise Corrupt(f"{self.url}/{name}: {error}") from error
        if found.format != kind().format:
            raise ConfigError(f"{self.url}: {name} has format {found.format}, this is older")
        return found

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length), ascending; neighbours come in one request. Bytes
        that the file does not have are left out."""

        def read() -> list[bytes]:
            found: list[bytes] = []
            with self._system.open_input_file(self._path(name)) as file:
                ends = file.size()  # behind which Google's store has an error, not nothing
                for begin, end, inside in _runs(ranges):
                    stretch = memoryview(file.read_at(end - begin, begin) if begin < ends else b"")
                    found += [bytes(stretch[at : at + size]) for at, size in inside]
            return found

        return self._trying(name, read)

    def stretches(self, name: str) -> Iterator[bytes]:
        """A whole file, some megabytes at a time."""
        offset = 0
        while True:  # ends with the file
            (stretch,) = self.read_ranges(name, [(offset, _CHUNK_BYTES)])
            if not stretch:
                return
            yield stretch
            offset += len(stretch)

    def fetch(self, name: str, target: Path) -> None:
        """Makes a file of this machine: a link where that is possible, else a copy."""
        if self._is_local:
            try:
                target.hardlink_to(self._path(name))
            except FileNotFoundError:
                raise
            except OSError as error:  # another file system, or none that has links
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                    raise
            else:
                return
        with target.open("wb") as file:
            for stretch in self.stretches(name):
                file.write(stretch)

    # --- writing -----------------------------------------------------------------------------

    def put(self, name: str, content: bytes) -> None:
        """Writes a file whole, in the place of another of that name."""

        def write() -> None:
            with self._new(name) as stream:
                stream.write(content)

        self._trying(name, write)

    def put_file(self, name: str, path: Path, size: int, begin: int = 0) -> None:
        """Copies `size` bytes of a local file, from `begin` on. In Azure a file that is on its way
        is seen as one without bytes: nothing may name it before."""

        def write() -> None:
            with path.open("rb") as source, self._new(name, is_small=False) as stream:
                source.seek(begin)
                left = size
                while left > 0:
                    stretch = source.read(min(left, _CHUNK_BYTES))
                    if not stretch:
                        raise OSError(f"{path} ends {left} bytes early")
                    stream.write(stretch)
                    left -= len(stretch)

        self._trying(name, write)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with suppress(FileNotFoundError):
            self._trying(name, lambda: self._system.delete_file(self._path(name)))

    def remove_directory(self, name: str) -> None:
        """Removes a directory with all that is in it, if it is there."""
        self._trying(name, lambda: remove_tree(self._system, self._path(name)))

    @contextmanager
    def _new(self, name: str, *, is_small: bool = True) -> Iterator[Any]:
        path = self._path(name)
        if not self._is_local:
            opened = whole_object if is_small else self._fs.FileSystem.open_output_stream
            try:
                with opened(self._system, path) as stream:
                    yield stream
            except FileNotFoundError as error:  # what is written cannot be missing
                raise OSError(f"there is no such bucket: {error}") from error
            return
        target = Path(path)
        if target.parent not in self._made:
            make_directory(target.parent)
            self._made.add(target.parent)
        beside = target.with_name(target.name + NEW)
        with beside.open("wb") as file:
            yield file
        put_in_place(beside, target)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _trying(self, name: str, act: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS_MAX):
            try:
                return act()
            except FileNotFoundError:
                raise
            except OSError as error:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise ArchiveUnavailable(f"{self.url}/{name}", error, self._what) from error
            time.sleep(RETRY_S * 2**attempt)  # noqa: TID251 - no event loop: it blocks anyway
        raise AssertionError("the last attempt returns or raises")


@lru_cache(8)
def opened(url: str, what: str = "archive") -> ArchiveStore:
    """`ArchiveStore.open`, once in a process: for tasks, of which one begins after the other."""
    return ArchiveStore.open(url, what)


def _by_fsspec(fs: Any, url: str, scheme: str, refused: Exception, what: str) -> tuple[Any, str]:
    """A file system that pyarrow has not itself. Raises ConfigError."""
    try:
        fsspec = importlib.import_module("fsspec")
        system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f'{what} {without_secrets(url)}: no file system for "{scheme}": pyarrow says'
            f' "{refused}", fsspec says "{error}"; use a path, s3://, gs://,'
            " abfs:// or hdfs://, or install the package that fsspec asks for"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), root


_Run = tuple[int, int, list[tuple[int, int]]]
"""Begin, end, and what is wanted of it, relative to its begin."""


def _runs(ranges: Sequence[tuple[int, int]]) -> Iterator[_Run]:
    begin = end = 0
    inside: list[tuple[int, int]] = []
    for offset, length in ranges:
        is_near = inside and offset - end <= GAP_BYTES and offset + length - begin <= RUN_BYTES_MAX
        if not is_near:
            if inside:
                yield begin, end, inside
            begin, inside = offset, []
        inside.append((offset - begin, length))
        end = max(end, offset + length) if is_near else offset + length
    if inside:
        yield begin, end, inside
