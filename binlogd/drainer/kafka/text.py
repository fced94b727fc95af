"""Values as text that JSON can hold."""

from __future__ import annotations

import struct
from collections.abc import Callable

from binlogd.errors import CorruptRow
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

_SINGLE_DIGITS_MAX = 9


def text_of(column: Column) -> Callable[[Value], str]:
    """Text columns: the writer raises CorruptRow for bytes that are no UTF-8."""

    def write(value: Value) -> str:
        assert isinstance(value, bytes)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CorruptRow(
                f"column {column.name} holds bytes that are no UTF-8, which JSON cannot hold"
            ) from None

    return write


def float_text(*, is_single: bool) -> Callable[[Value], str]:
    """The shortest digits that give the same number again, of 32 or of 64 bits."""

    def write(value: Value) -> str:
        assert isinstance(value, float)
        return repr(shortest_single(value)) if is_single else repr(value)

    return write


def shortest_single(value: float) -> float:
    """The number with the fewest digits that is the same in 32 bits: 0.1, not 0.10000000149."""
    wanted = struct.pack("<f", value)
    for digits in range(6, _SINGLE_DIGITS_MAX + 1):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == wanted:
            return short
    return value
