"""The payload of a large record, left in its segment: a `StoredPayload`.

Invariant. What is cut out of it are the bytes that were checked against the header of the record.
Why it holds: whoever checks a record keeps a checksum of each piece, and a piece is compared with
its own whenever it is read again. The file is open: nobody who removes its name takes it away.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from binlogd.errors import CorruptRecord, LogFailed
from binlogd.log.pointer import Place
from binlogd.log.record import HEADER_BYTES
from binlogd.ports import ReadFile

PIECE_BYTES = 256 << 10


class StoredRecord:
    """`checksums` are those of its pieces. Instead of what stands before `begin` it has `head`."""

    __slots__ = ("_checksums", "_file", "_head", "_last", "_path", "_place", "_shift")

    def __init__(
        self,
        file: ReadFile,
        path: Path,
        place: Place,
        checksums: array[int],
        *,
        head: bytes = b"",
        begin: int = 0,
    ) -> None:
        self._file, self._path, self._place, self._checksums = file, path, place, checksums
        self._head, self._shift = head, begin - len(head)
        self._last = -1, b""  # the piece that was read last, and its number

    def with_head(self, head: bytes, begin: int) -> StoredRecord:
        """The same record with another beginning."""
        return StoredRecord(
            self._file, self._path, self._place, self._checksums, head=head, begin=begin
        )

    def __len__(self) -> int:
        return self._place.length - self._shift

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces())

    def cut(self, begin: int, end: int) -> bytes:
        """See StoredPayload."""
        end = min(end, len(self))
        parts = [self._head[begin:end]]
        at, end = max(begin, len(self._head)) + self._shift, end + self._shift
        while at < end:  # ends: a piece has a byte at `at`, or raises
            number, skipped = divmod(at, PIECE_BYTES)
            parts.append(self._piece(number)[skipped : skipped + end - at])
            at += len(parts[-1])
        return b"".join(parts)

    def pieces(self) -> Iterator[bytes]:
        """See StoredPayload."""
        for begin in range(0, len(self), PIECE_BYTES):
            yield self.cut(begin, begin + PIECE_BYTES)

    def _piece(self, number: int) -> bytes:
        if self._last[0] == number:
            return self._last[1]
        place, begin = self._place, number * PIECE_BYTES
        size = min(PIECE_BYTES, place.length - begin)
        try:
            piece = self._file.read(place.offset + HEADER_BYTES + begin, size)
        except OSError as error:
            raise LogFailed(self._path, error) from error
        if len(piece) < size or google_crc32c.value(piece) != self._checksums[number]:
            reason = f"the payload has changed behind byte {begin} since it was checked"
            raise CorruptRecord(self._path, place.offset, reason)
        self._last = number, piece
        return piece
