"""Values as text that a message can hold."""

from __future__ import annotations

from collections.abc import Callable

from binlogd.errors import CorruptRow
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tidb.singles import shortest_single


def text_of(column: Column) -> Callable[[Value], str]:
    """Text columns: the writer raises CorruptRow for bytes that are no UTF-8."""

    def write(value: Value) -> str:
        assert isinstance(value, bytes)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CorruptRow(
                f"column {column.name} holds bytes that are no UTF-8, which no message can hold"
            ) from None

    return write


def float_text(*, is_single: bool) -> Callable[[Value], str]:
    """The shortest digits that give the same number again, of 32 or of 64 bits."""

    def write(value: Value) -> str:
        assert isinstance(value, float)
        return repr(shortest_single(value)) if is_single else repr(value)

    return write
