"""A header block is read as the library reads it, and a damaged one is damaged for both."""

from __future__ import annotations

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from binlogd.grpc.hpack import SharedDecoder
from tests.support.raw_http2 import call_headers


def seeds() -> list[bytes]:
    """What clients send, twice, so that the table is used."""
    found = []
    for huffman in (True, False):
        encoder = Encoder()
        blocks = [
            encoder.encode(call_headers(grpc_timeout=f"{n}u"), huffman=huffman) for n in (1, 2)
        ]
        found.append(b"".join(bytes([min(len(each), 255)]) + each for each in blocks))
    return found


def run(data: bytes) -> None:
    """Blocks, each behind its length, on one connection."""
    shared, plain, number = SharedDecoder(), Decoder(), 0
    while data:
        block, data = data[1 : 1 + data[0]], data[1 + data[0] :]
        number += 1
        try:
            expected = [tuple(field) for field in plain.decode(block, raw=True)]
        except HPACKError:
            assert shared.reader.look_ahead(block) is None
            try:
                shared.decode(block, raw=True)
            except HPACKError:
                return
            raise AssertionError("a block is read that the library refuses") from None
        if number % 3:
            fields = shared.reader.look_ahead(block)
            assert fields is not None, "a block is refused that the library reads"
            assert [tuple(field) for field in fields] == expected
        else:
            assert [tuple(field) for field in shared.decode(block, raw=True)] == expected
        assert shared.header_table.dynamic_entries == plain.header_table.dynamic_entries
