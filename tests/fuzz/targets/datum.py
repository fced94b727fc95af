"""Datums, decimals, varints and times: a value or CorruptRow, and back."""

from __future__ import annotations

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import read_datum, skip_datum
from binlogd.tidb.decimals import decimal_bytes, read_decimal
from binlogd.tidb.times import datetime_text, duration_text, packed_time
from tests.fuzz.tables import vectors


def seeds() -> list[bytes]:
    """Vectors of TiDB's own codec."""
    return vectors("datum", "datum-cmp", "decimal-roundtrip", "primitive")


def run(data: bytes) -> None:
    """By each reader."""
    try:
        flag, _, end = read_datum(data, 0)
    except (CorruptRow, IndexError):
        end = -1
    else:
        assert flag == data[0]
        assert 0 < end <= len(data)
        assert skip_datum(data, 0) == end
    _decimal(data)
    if len(data) >= 9:
        _times(int.from_bytes(data[:8], "big"), data[8] % 7)


def _decimal(data: bytes) -> None:
    try:
        text, end = read_decimal(data, 0)
    except (CorruptRow, IndexError):
        return
    if text.strip("-0.") or data[2] & 0x80:  # a negative zero has bytes of its own
        assert decimal_bytes(text, data[0], data[1]) == data[:end]


def _times(packed: int, fsp: int) -> None:
    try:
        text = datetime_text(packed, fsp)
        assert packed_time(text) >> 24 == packed >> 24
    except CorruptRow:
        pass
    try:
        duration_text(packed - (1 << 63), fsp)
    except CorruptRow:
        return
