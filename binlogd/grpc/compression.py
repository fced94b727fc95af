"""gzip for gRPC messages, in steps that are small whatever the size of a message.

Source: gRPC's PROTOCOL-HTTP2.md, Message-Encoding gzip; RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

_GZIP_BITS = 31  # zlib's way to say: with the head and tail of gzip
_LEVEL = 1  # the loop that compresses has writers to serve
_SLICE_BYTES = 8 << 10


class NotGzip(ValueError):
    """The bytes are no gzip, or end too early."""


def deflated(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The gzip of all parts together, a piece for each; a piece may be empty."""
    engine = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    for part in parts:
        yield engine.compress(part)
    yield engine.flush()


class Inflater:
    """The way back: one gzip, or several in a row, as the original's library reads them."""

    def __init__(self) -> None:
        self._engine = zlib.decompressobj(_GZIP_BITS)

    def steps(self, data: bytes, step_bytes: int) -> Iterator[bytes]:
        """What `data` means, at most `step_bytes` at a time, which may be nothing. Raises NotGzip.

        No step costs more than a small slice of `data` and what that grows to: the library copies
        what it has not read yet, whenever it stops.
        """
        view = memoryview(data)
        for at in range(0, len(view), _SLICE_BYTES):
            yield from self._of_slice(view[at : at + _SLICE_BYTES], step_bytes)
        while not self._engine.eof:  # what the library holds back beyond a step
            piece = self._decompress(b"", step_bytes)
            if not piece:
                return
            yield piece

    def _of_slice(self, unread: memoryview | bytes, step_bytes: int) -> Iterator[bytes]:
        while unread:
            if self._engine.eof:
                self._engine = zlib.decompressobj(_GZIP_BITS)
            piece = self._decompress(unread, step_bytes)
            unread = self._engine.unconsumed_tail or self._engine.unused_data
            yield piece

    def _decompress(self, data: memoryview | bytes, step_bytes: int) -> bytes:
        try:
            return self._engine.decompress(data, step_bytes)
        except zlib.error as error:
            raise NotGzip(str(error)) from error

    def end(self) -> None:
        """Nothing more comes. Raises NotGzip if something should have."""
        if not self._engine.eof:
            raise NotGzip("unexpected EOF")
