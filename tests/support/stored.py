"""A `StoredPayload` of what is in memory, for whoever only has to read one."""

from __future__ import annotations

from collections.abc import Iterator

from binlogd.log.stored import PIECE_BYTES


class OfBytes:
    """Gives out its bytes as one on the disk does; `read` is how many were asked for."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.read = 0

    def __len__(self) -> int:
        return len(self._content)

    def __bytes__(self) -> bytes:
        raise AssertionError("all of it was read into memory")

    def cut(self, begin: int, end: int) -> bytes:
        self.read += len(self._content[begin:end])
        return self._content[begin:end]

    def pieces(self) -> Iterator[bytes]:
        for begin in range(0, len(self), PIECE_BYTES):
            yield self.cut(begin, begin + PIECE_BYTES)
