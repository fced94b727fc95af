"""Reading header blocks: one decoder for two readers of the same connection.

Invariant. A block changes the table of its connection, so it is decoded once. Whoever looks ahead
leaves the outcome here, and h2 gets it when it asks for the same block next, damage included.

A gRPC client repeats its headers, all but the timeout: most fields are one byte that points into a
table. These forms are read here; every other form, and every doubt, is left to the hpack library.
Source: RFC 7541 section 6.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKDecodingError, HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable, table_entry_size

_VALUES_MAX = 1024
_BLOCKS_MAX, _BLOCK_BYTES_MAX = 16, 256
_STATIC = HeaderTable.STATIC_TABLE
_STATIC_COUNT = len(_STATIC)

Field = tuple[bytes, bytes]
"""Name and value."""


class SharedDecoder(Decoder):
    """h2's decoder, for one who wants to see a block before h2 does."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[Field] | HPACKError | None = None
        self._values: dict[bytes, bytes] = {}  # as written: as meant
        self._blocks: dict[bytes, list[Field]] = {}  # while no block changes the table

    def look_ahead(self, block: bytes) -> list[Field] | None:
        """Decodes a block. None: it is malformed, and h2 will hear of it when it asks.

        The caller either leaves the fields to h2 (`leave`) or has h2 never see the block. The same
        list comes back for the same block for as long as the table stays as it is.
        """
        self._left = None
        fields = self._blocks.get(block)
        if fields is None:
            try:
                fields = self._fields(block)
            except HPACKError as error:
                self._left = error
            except IndexError:
                self._left = HPACKDecodingError("a header block is cut short or points nowhere")
        return fields

    def leave(self, fields: list[Field]) -> None:
        """What h2 gets for the next block that it asks for, whatever the bytes."""
        self._left = fields

    def decode(
        self,
        data: bytes,
        raw: bool = False,  # noqa: FBT001 - the library's signature
    ) -> Iterable[HeaderTuple]:
        """What was left here, else the block decoded. Raises HPACKError."""
        left, self._left = self._left, None
        if left is None:
            self._blocks.clear()
            return super().decode(data, raw)
        if isinstance(left, HPACKError):
            raise left
        if sum(table_entry_size(*field) for field in left) > self.max_header_list_size:
            raise OversizedHeaderListError("the header list is too large")
        return [field if isinstance(field, HeaderTuple) else HeaderTuple(*field) for field in left]

    def _fields(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        add = fields.append
        table = self.header_table
        dynamic = table.dynamic_entries
        at, end = 0, len(block)
        is_lasting = True
        while at < end:
            first = block[at]
            if 0x80 < first < 0xFF:  # a field of the table
                index = first - 0x81
                add(_STATIC[index] if index < _STATIC_COUNT else dynamic[index - _STATIC_COUNT])
                at += 1
            elif first == 0xFF and block[at + 1] < 0x80:  # the same, its index in two bytes
                add(dynamic[0x7E - _STATIC_COUNT + block[at + 1]])
                at += 2
            elif 0x40 < first < 0x7F:  # a name of the table and a new value, to be put there
                size = block[at + 1] & 0x7F
                stop = at + 2 + size
                if size == 0x7F or stop > end:
                    break
                index = first - 0x41
                name = (
                    _STATIC[index] if index < _STATIC_COUNT else dynamic[index - _STATIC_COUNT]
                )[0]
                value = self._value(block[at + 1 : stop])
                table.add(name, value)
                is_lasting = False
                add((name, value))
                at = stop
            else:
                break
        if at < end:
            if fields and block[at] & 0xE0 == 0x20:
                raise HPACKDecodingError("the table is resized inside a block")
            fields += super().decode(block[at:], raw=True)
        if at < end or not is_lasting:
            self._blocks.clear()
        elif end <= _BLOCK_BYTES_MAX and len(self._blocks) < _BLOCKS_MAX:
            self._blocks[block] = fields
        return fields

    def _value(self, written: bytes) -> bytes:
        value = self._values.get(written)
        if value is None:
            value = decode_huffman(written[1:]) if written[0] & 0x80 else written[1:]
            if len(self._values) >= _VALUES_MAX:
                self._values.clear()
            self._values[written] = value
        return value
