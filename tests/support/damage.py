"""Files with each byte changed and each length cut, before everybody who reads them.

A `Kind` makes a small directory with one file of a kind, and has the `Reader`s of it. Whatever
happens to the file, a reader gives what it gave before, or raises an error of binlogd's own that
names the file; within bounds of memory, and never another error.
"""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from binlogd.errors import BinlogdError

MEMORY_BYTES_MAX = 384 << 20
"""What a reader may take beyond what the process has."""
FLIPS = (0x01, 0x80, 0xFF)
END_OF_RUN, WITHIN_RUN = 16, 61
"""Of a long run of equal bytes so many at each end are tried, and each so-many-th in between: a
prime, so that it meets each place of a word and each word of a line."""
_RUN = re.compile(rb"(.)\1{63,}", re.DOTALL)

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """`read` gives what the files in a directory mean. What `comes_again` may be left out behind a
    changed byte, too, where the log's beginning is all that is built on."""

    name: str
    read: Read
    comes_again: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of file. `make` fills a directory; `victim` is the file, as a pattern below it.

    `may_be_short`: cut, it may mean what its beginning means, as an unfinished append does.
    """

    name: str
    make: Callable[[Path], None]
    victim: str
    readers: Sequence[Reader]
    may_be_short: bool = False
    named_by: Sequence[str] = field(default=())
    """What an error may name instead of the file."""


@dataclass(frozen=True)
class Damage:
    """A byte that is changed, or, with `flip` 0, the length that is left."""

    at: int
    flip: int

    def of(self, content: bytes) -> bytes:
        if not self.flip:
            return content[: self.at]
        return content[: self.at] + bytes([content[self.at] ^ self.flip]) + content[self.at + 1 :]

    def __str__(self) -> str:
        return f"byte {self.at} ^ {self.flip:#x}" if self.flip else f"cut to {self.at} bytes"


def damages(content: bytes, *, cases_max: int) -> Iterator[Damage]:
    """Every byte and every length, or so many of them at an even distance.

    Of a long run of equal bytes both ends count, and some in between: nine tenths of a small SQLite
    file are pages that nothing is stored in yet.
    """
    places, flips = _telling(content), (0, *FLIPS)
    wanted = len(places) * len(flips)
    stride = max(1, -(-wanted // cases_max))
    stride += stride % 2 == 0  # else it would meet one kind of damage alone
    for number in range(0, wanted, stride):
        yield Damage(places[number // len(flips)], flips[number % len(flips)])


def _telling(content: bytes) -> Sequence[int]:
    found, begin = list[int](), 0
    for run in _RUN.finditer(content):
        inner = range(run.start() + END_OF_RUN, run.end() - END_OF_RUN)
        found += range(begin, inner.start)
        found += inner[::WITHIN_RUN]
        begin = inner.stop
    return [*found, *range(begin, len(content))]


@contextmanager
def bounded_memory() -> Iterator[None]:
    """An allocation beyond the bound is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES_MAX, hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Damaged:
    """A directory of a kind, again and again, each time with another damage to its one file."""

    def __init__(self, kind: Kind, scratch: Path) -> None:
        self.kind, self._scratch, self._turn = kind, scratch, 0
        origin = scratch / "origin"
        origin.mkdir()
        kind.make(origin)
        (victim,) = sorted(origin.glob(kind.victim))
        self.victim = victim.relative_to(origin)
        self.content = victim.read_bytes()
        self._origin = origin

    def directory(self, damage: Damage | None) -> Path:
        """A fresh one; whole without a damage."""
        self._turn += 1
        made = self._scratch / f"turn-{self._turn}"
        shutil.copytree(self._origin, made, copy_function=shutil.copy)
        if damage is not None:
            (made / self.victim).write_bytes(damage.of(self.content))
        return made

    def problem(self, reader: Reader, damage: Damage, expected: object) -> str:
        """What is wrong with how a reader takes a damage; "" if nothing is."""
        directory = self.directory(damage)
        try:
            with bounded_memory():
                found = reader.read(directory)
        except BinlogdError as error:
            return self._unnamed(error, directory)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return f"{damage}: {type(error).__name__}: {error}"
        finally:
            shutil.rmtree(directory)
        if found == expected or self._is_beginning(reader, damage, found, expected):
            return ""
        return f"{damage}: another answer without a word: {str(found)[:200]}"

    def _unnamed(self, error: BinlogdError, directory: Path) -> str:
        text = str(error)
        names = (self.victim.name, *self.kind.named_by)
        if not any(name in text for name in names):
            return f"an error that does not name {self.victim.name}: {text}"
        return "" if error.todo else f"an error without a way out: {text}"

    def _is_beginning(
        self, reader: Reader, damage: Damage, found: object, expected: object
    ) -> bool:
        return (
            self.kind.may_be_short
            and (not damage.flip or reader.comes_again)
            and isinstance(found, list)
            and isinstance(expected, list)
            and found == expected[: len(found)]
        )


def problems(kind: Kind, scratch: Path, *, cases_max: int) -> tuple[list[str], int]:
    """What is wrong with the readers of a kind, and how many cases were tried."""
    damaged, found, cases = Damaged(kind, scratch), list[str](), 0
    for reader in kind.readers:
        whole = damaged.directory(None)
        expected = reader.read(whole)
        shutil.rmtree(whole)
        for damage in damages(damaged.content, cases_max=cases_max):
            problem = damaged.problem(reader, damage, expected)
            cases += 1
            if problem:
                found.append(f"{kind.name} by {reader.name}: {problem}")
    return found, cases
