"""Rows in either format: a value for each column or CorruptRow, and one answer by every way."""

from __future__ import annotations

from collections.abc import Iterator

from binlogd.drainer.messages.pb_rows import row_events
from binlogd.drainer.messages.pb_write import TableEncoder, dml_binlog
from binlogd.errors import CorruptRow
from binlogd.tidb.kinds import UnexpectedLayout
from binlogd.tidb.row import RowDecoder, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from tests.fuzz.tables import TABLES, VALUES
from tests.support.pb_reader import decode

_DECODERS = [RowDecoder(each) for each in TABLES]
_ENCODERS = [TableEncoder(each.database, each.info) for each in TABLES]
_QUICK = [row_events(each) for each in TABLES]


def seeds() -> Iterator[bytes]:
    """A row of each kind of each table, behind the table's number."""
    for number, (table, values) in enumerate(zip(TABLES, VALUES, strict=True)):
        handle = None if table.info.pk_is_handle or table.info.is_common_handle else 7
        info = table.info
        for kind, row in enumerate(
            (
                encode_insert(info, values, handle=handle),
                encode_update(info, values, values, handle=handle),
                encode_delete(info, values, handle=handle),
            )
        ):
            yield bytes([number * 3 + kind]) + row
        yield bytes([number * 3 + 2, 0x80, 0, 2, 0, 1, 0, 1, 2, 3, 1, 0, 2, 0, 65, 66])


def run(data: bytes) -> None:
    """The first byte says which table, and what happened to the row."""
    if not data:
        return
    number, kind = divmod(data[0] % (3 * len(TABLES)), 3)
    row, decoder, encoder = data[1:], _DECODERS[number], _ENCODERS[number]
    ids = {column.id for column in TABLES[number].info.columns if not column.is_virtual}
    slow = b""
    try:
        if kind == 0:
            new = decoder.insert(row)
            assert new.keys() == ids
            slow = encoder.insert(new)
        elif kind == 1:
            old, new = decoder.update(row)
            assert old.keys() == new.keys() == ids
            slow = encoder.update(old, new)
        else:
            old = decoder.delete(row)
            assert old.keys() <= ids
            slow = encoder.delete(old)
    except CorruptRow:
        slow = b""
    _check_quick(number, kind, row, slow)


def _check_quick(number: int, kind: int, row: bytes, slow: bytes) -> None:
    """The walk along a layout gives what the long way gives, or leaves the row to it."""
    quick = _QUICK[number]
    if quick is None:
        return
    try:
        event = (quick.insert, quick.update, quick.delete)[kind](row)
    except (UnexpectedLayout, CorruptRow, IndexError):
        return
    assert slow, "the quick way reads what the long way refuses"
    one, other = (decode(dml_binlog(Tso(1), [each])) for each in (event, slow))
    assert str(one) == str(other)
