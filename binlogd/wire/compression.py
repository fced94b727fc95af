"""gzip for gRPC messages, in steps that are small whatever the size of a message.

Source: gRPC's PROTOCOL-HTTP2.md, Message-Encoding gzip; RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

_GZIP_BITS = 31  # zlib's way to say: with the head and tail of gzip
_LEVEL = 1  # the loop that compresses has writers to serve


class Damaged(ValueError):
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
        """What `data` means, at most `step_bytes` at a time. Raises Damaged."""
        while data:
            if self._engine.eof:
                self._engine = zlib.decompressobj(_GZIP_BITS)
            try:
                piece = self._engine.decompress(data, step_bytes)
            except zlib.error as error:
                raise Damaged(str(error)) from error
            data = self._engine.unconsumed_tail or self._engine.unused_data
            yield piece
        while not self._engine.eof:  # what the library holds back beyond a step
            piece = self._engine.decompress(b"", step_bytes)
            if not piece:
                return
            yield piece

    def end(self) -> None:
        """Nothing more comes. Raises Damaged if something should have."""
        if not self._engine.eof:
            raise Damaged("unexpected EOF")
