"""Header blocks in the forms that gRPC clients repeat, read ahead of HTTP/2's own reader.

A gRPC client repeats its headers, all but the timeout: most fields are one byte that points into a
table. These forms are read here; every other form, and every doubt, is left to the hpack library.
One pass, no I/O, made to be compiled. Source: RFC 7541 section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field = tuple[bytes, bytes]
"""Name and value."""

_VALUES_MAX: Final = 256
_BLOCKS_MAX: Final = 16
_BLOCK_BYTES_MAX: Final = 256
_ENTRY_BYTES: Final = 32
"""What a field counts beside its name and value."""
# Fields are objects of their own here: compiled, a tuple of a known type is made anew each time.
_STATIC: Final[list[Any]] = list(HeaderTable.STATIC_TABLE)
_STATIC_COUNT: Final[int] = len(_STATIC)


class BlockReader:
    """The reader of one connection's blocks; `table` is the table that hpack keeps for it, and
    `others` reads what stands in any other form. It raises HPACKError. `values` are kept for all
    connections that have the same, as written: as meant."""

    def __init__(
        self, table: HeaderTable, others: Callable[[bytes], list[Field]], values: dict[bytes, bytes]
    ) -> None:
        self.left: list[Field] | HPACKError | None = None
        """What becomes of the block that h2 asks for next, if it was read here."""
        self._table: Any = table
        self._others = others
        self._values = values
        self._blocks: dict[bytes, list[Field]] = {}  # while no block changes the table

    def look_ahead(self, block: bytes) -> list[Field] | None:
        """Decodes a block. None: it is malformed, and h2 will hear of it when it asks.

        The caller either leaves the fields to h2 (`left`) or has h2 never see the block. The same
        list comes back for the same block for as long as the table stays as it is, and the same
        field for as long as it is in the table.
        """
        self.left = None
        fields = self._blocks.get(block)
        if fields is None:
            try:
                fields = self._fields(block)
            except HPACKError as error:
                self.left = error
            except IndexError:
                self.left = HPACKDecodingError("a header block is cut short or points nowhere")
        return fields

    def forget(self) -> None:
        """Somebody else has read a block, and the table may have changed."""
        self._blocks.clear()

    def _fields(self, block: bytes) -> list[Field]:
        fields: list[Any] = []
        dynamic: Any = self._table.dynamic_entries
        at, end = 0, len(block)
        is_lasting = True
        while at < end:
            first = block[at]
            if 0x80 < first < 0xFF:  # a field of the table
                fields.append(_entry(dynamic, first - 0x81))
                at += 1
            elif first == 0xFF and block[at + 1] < 0x80:  # the same, its index in two bytes
                fields.append(_entry(dynamic, 0x7E + block[at + 1]))
                at += 2
            elif 0x40 < first < 0x7F:  # a name of the table and a new value, to be put there
                size = block[at + 1] & 0x7F
                stop = at + 2 + size
                if size == 0x7F or stop > end:
                    break
                field: Any = (_entry(dynamic, first - 0x41)[0], self._value(block[at + 1 : stop]))
                self._put(dynamic, field)
                is_lasting = False
                fields.append(field)
                at = stop
            else:
                break
        if at < end:
            if fields and block[at] & 0xE0 == 0x20:
                raise HPACKDecodingError("the table is resized inside a block")
            fields += self._others(block[at:])
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

    def _put(self, dynamic: Any, field: Field) -> None:
        """What the table's own `add` does, which is called for each call."""
        table = self._table
        most: int = table._maxsize  # noqa: SLF001 - see above
        size: int = table._current_size + _entry_bytes(field)  # noqa: SLF001 - see above
        if _entry_bytes(field) > most:
            table.add(field[0], field[1])
            return
        dynamic.appendleft(field)
        while size > most:  # ends: the new entry alone fits
            oldest: Field = dynamic.pop()
            size -= _entry_bytes(oldest)
        table._current_size = size  # noqa: SLF001 - see above


def _entry(dynamic: Any, index: int) -> Any:
    """A field of the table, itself. Raises IndexError."""
    return _STATIC[index] if index < _STATIC_COUNT else dynamic[index - _STATIC_COUNT]


def weight(fields: Iterable[tuple[Any, Any]]) -> int:
    """As HPACK counts them."""
    return sum(len(name) + len(value) + _ENTRY_BYTES for name, value in fields)


def _entry_bytes(field: Field) -> int:
    return _ENTRY_BYTES + len(field[0]) + len(field[1])
