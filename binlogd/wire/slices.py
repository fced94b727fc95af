"""The rows of a large table mutation, left where they are: each is cut out when it is asked for.

A row as an object of its own takes its bytes once more and half as many again, and ten million rows
are many even if each takes no more than its place. So only every thousandth is remembered, and the
others are found behind it, as each tells its length. They may lie on the disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from binlogd.binlog import Payload
from binlogd.wire.fields import read_uvarint

WINDOW_BYTES = 256 << 10
"""So much is read at a time; even."""
HEAD_BYTES_MAX = 11
"""Of a row: a tag and a length."""
_STRIDE = 1024


def cut(data: Payload, begin: int, end: int) -> bytes:
    """Bytes of a payload, wherever it is."""
    return data[begin:end] if isinstance(data, bytes) else data.cut(begin, end)


class RowSlices(Sequence[bytes]):
    """Those rows of a serialised mutation in `data` that have one tag. Read only; equal to any
    sequence of the same rows."""

    __slots__ = ("_count", "_data", "_places", "_tag", "size_bytes")

    def __init__(self, data: Payload, tag: int) -> None:
        self._data, self._tag = data, tag
        self._places = array("Q")
        self._count = self.size_bytes = 0

    def append(self, place: int, size: int) -> None:
        """A further row, whose tag is at `place`; what lies before it are rows, too."""
        if self._count % _STRIDE == 0:
            self._places.append(place)
        self._count += 1
        self.size_bytes += size

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return self._from(0, self._count)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        stride, skipped = divmod(range(self._count)[at], _STRIDE)
        return next(islice(self._from(stride, skipped + 1), skipped, None))

    def _from(self, stride: int, left: int) -> Iterator[bytes]:
        data, tag, window, at = self._data, self._tag, b"", 0
        pos = self._places[stride] if left else 0
        while left:  # ends: there are so many rows with this tag
            here = pos - at
            if here + HEAD_BYTES_MAX > len(window):
                window, at, here = cut(data, pos, pos + WINDOW_BYTES), pos, 0
            size, begin = window[here + 1], here + 2
            if size > 0x7F:
                size, begin = read_uvarint(window, here + 1)
            end = begin + size
            pos = at + end
            if window[here] != tag:
                continue
            left -= 1
            yield window[begin:end] if end <= len(window) else cut(data, at + begin, pos)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as every sequence that compares by what is in it
