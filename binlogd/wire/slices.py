"""The rows of a large table mutation, left where they are: each is cut out when it is asked for.

A row as an object of its own takes its bytes once more and half as many again. Where a binlog has
hundreds of megabytes of rows, a table of their places takes sixteen bytes a row instead.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload


class RowSlices(Sequence[bytes]):
    """Read only; equal to any sequence of the same rows."""

    __slots__ = ("_data", "_places", "size_bytes")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._places = array("Q")
        self.size_bytes = 0

    def append(self, begin: int, end: int) -> None:
        """A further row."""
        self._places.append(begin)
        self._places.append(end)
        self.size_bytes += end - begin

    def __len__(self) -> int:
        return len(self._places) // 2

    def __iter__(self) -> Iterator[bytes]:
        data, places = self._data, iter(self._places)
        for begin, end in zip(places, places, strict=True):
            yield data[begin:end]

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        place = 2 * range(len(self))[at]
        return self._data[self._places[place] : self._places[place + 1]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as every sequence that compares by what is in it
