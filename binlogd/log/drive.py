"""Runs what `scan` asks for: by a function that reads, or by a `Disk` that has to be waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from mmap import mmap
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from binlogd.errors import CorruptRecord
from binlogd.log.record import FOOTER_BYTES, FRAMING, footer_ts
from binlogd.log.scan import Batch, Steps, scan
from binlogd.ports import Disk

T = TypeVar("T")
Read = Callable[[int, int], bytes]
"""Gives `size` bytes at an offset, less only at the end."""


class Reading(Generic[T]):
    """One run by a function that reads. `found` is there once `batches` has ended."""

    found: T

    def __init__(self, steps: Steps[T], read: Read) -> None:
        self._steps, self._read = steps, read

    def batches(self) -> Iterator[Batch]:
        """The records, some megabytes at a time. Raises what the function does."""
        try:
            step = next(self._steps)
            while True:  # ends with the steps
                if isinstance(step, list):
                    yield step
                    step = next(self._steps)
                else:
                    step = self._steps.send(self._read(*step))
        except StopIteration as done:
            self.found = done.value

    def ended(self) -> T:
        """What was found out, the records aside."""
        for _ in self.batches():
            pass
        return self.found


class DiskReading(Generic[T]):
    """`Reading` of a file of a `Disk`."""

    found: T

    def __init__(self, disk: Disk, path: Path, steps: Steps[T]) -> None:
        self._disk, self._path, self._steps = disk, path, steps

    async def batches(self) -> AsyncIterator[Batch]:
        """The records, some megabytes at a time. Raises OSError."""
        try:
            step = next(self._steps)
            while True:  # ends with the steps
                if isinstance(step, list):
                    yield step
                    step = next(self._steps)
                else:
                    (stretch,) = await self._disk.read(self._path, [step])
                    step = self._steps.send(stretch)
        except StopIteration as done:
            self.found = done.value

    async def ended(self) -> T:
        """What was found out, the records aside. Raises OSError."""
        async for _ in self.batches():
            pass
        return self.found


def of_stream(stream: BinaryIO) -> Read:
    """Out of an open file."""

    def read(offset: int, size: int) -> bytes:
        stream.seek(offset)
        return stream.read(size)

    return read


def of_bytes(content: bytes | mmap) -> Read:
    """Out of what is in memory, or mapped."""
    return lambda offset, size: content[offset : offset + size]


def of_forward(more: Callable[[int], bytes]) -> Read:
    """Out of what can be read once, from front to back: for a scan to an end that nobody knows."""
    begin, held = 0, b""

    def read(offset: int, size: int) -> bytes:
        nonlocal begin, held
        assert begin <= offset <= begin + len(held), "it goes forward without gaps"
        held = held[offset - begin :]
        begin = offset
        if len(held) < size:
            held += more(size - len(held))
        return held[:size]

    return read


def segment_batches(
    path: Path, *, start: int = 0, size: int | None = None, is_last: bool
) -> Iterator[Batch]:
    """The records of a segment from `start` on, up to `size` or its end; the last one of a log may
    end in a torn record.

    Raises CorruptRecord, OSError.
    """
    with path.open("rb") as stream:
        steps = scan(FRAMING, start=start, size=path.stat().st_size if size is None else size)
        reading = Reading(steps, of_stream(stream))
        yield from reading.batches()
    if not reading.found.ends_well(is_last=is_last):
        raise CorruptRecord(path, reading.found.offset, reading.found.reason)


def has_footer(path: Path) -> bool:
    """Whether a footer ends a segment. Raises OSError."""
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, SEEK_END) - FOOTER_BYTES))
        return footer_ts(stream.read()) is not None
