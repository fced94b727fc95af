"""Rows as TiDB writes them into a binlog, from values by column id.

Which columns a row has depends on its kind; the bytes equal TiDB's, but for one thing: the string
of a clustered key under a collation that needs weights is written as trimmed text, for readers
must take that column from the row anyway, where TiDB repeats it.
Source: pingcap/tidb table/tables/tables.go (addInsertBinlog, addUpdateBinlog, addDeleteBinlog,
CanSkip), tablecodec/tablecodec.go (EncodeOldRow), types/etc.go (NeedRestoredData).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from binlogd.tidb.columns import Value
from binlogd.tidb.datum import Flag, as_signed, compact_bytes, comparable_float, comparable_int
from binlogd.tidb.decimals import decimal_bytes
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.jsonb import json_bytes
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.layout import ROWID, WRITABLE_STATES, Form, form_of, handle_places
from binlogd.tidb.model import Column, Table
from binlogd.tidb.times import duration_ns, packed_time
from binlogd.tidb.varint import uvarint, varint

_NULL = bytes((Flag.NIL,))
_BARE_COLLATIONS = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})
"""Under these only a VARCHAR differs from its key (by trailing spaces)."""
_EXACT_COLLATIONS = frozenset({"binary", "utf8mb4_0900_bin"})
"""Under these a key is the string itself."""


def encode_insert(table: Table, values: Mapping[int, Value], *, handle: int | None) -> bytes:
    """An inserted row: the handle, then the columns that it does not tell.

    `handle` is `_tidb_rowid`, for a table without a clustered key. Raises ValueError for values
    that the columns cannot hold.
    """
    in_handle: set[int] = set()
    key = table.handle_column()
    if table.is_common_handle:
        prefix, in_handle = _common_handle(table, values)
    elif key is not None:
        number = values[key.id]
        if not isinstance(number, int):
            raise ValueError(f"the handle {key.name} must be an integer")
        prefix, in_handle = _integer(Flag.VARINT, as_signed(number)), {key.id}
    else:
        prefix = _integer(Flag.VARINT, _row_id(handle))
    columns = [
        column
        for column in _stored(table)
        if column.id not in in_handle and not _is_left_out(column, values)
    ]
    return prefix + (_pairs(columns, values) or _NULL)


def encode_update(
    table: Table, old: Mapping[int, Value], new: Mapping[int, Value], *, handle: int | None
) -> bytes:
    """An updated row: all stored columns before, then after. Raises ValueError."""
    columns = _stored(table)
    tail = _tail(table, handle)
    return _pairs(columns, old) + tail + _pairs(columns, new) + tail


def encode_delete(table: Table, values: Mapping[int, Value], *, handle: int | None) -> bytes:
    """A deleted row: all public columns, virtual ones too (NULL where `values` lacks one). Raises
    ValueError."""
    columns = [column for column in table.columns if column.is_public]
    given = {column.id: values.get(column.id) for column in columns}
    return _pairs(columns, given) + _tail(table, handle)


def datum_of(column: Column, value: Value) -> bytes:
    """The datum of a value in a row. Raises ValueError if the column cannot hold it."""
    if value is None:
        return _NULL
    form = form_of(column)
    if form is None:
        tp = column.field_type.tp
        raise ValueError(f"column {column.name} has the type {tp:d}, which no row can hold")
    try:
        return _ENCODERS[form](column, value)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"column {column.name} cannot hold a {type(value).__name__}") from error


def needs_restored_data(column: Column) -> bool:
    """Whether a string cannot be told from its form in a key, so that rows repeat it."""
    kind = column.field_type
    if kind.tp not in STRING_TYPES or column.is_binary or kind.collate in _EXACT_COLLATIONS:
        return False
    return kind.collate not in _BARE_COLLATIONS or kind.tp in (Tp.VARCHAR, Tp.VAR_STRING)


# --- parts of a row -----------------------------------------------------------------------


def _stored(table: Table) -> list[Column]:
    return [each for each in table.columns if each.state in WRITABLE_STATES and not each.is_virtual]


def _pairs(columns: Iterable[Column], values: Mapping[int, Value]) -> bytes:
    parts: list[bytes] = []
    for column in columns:
        value = values[column.id] if column.id in values else missing_value(column)
        parts += (_integer(Flag.VARINT, column.id), datum_of(column, value))
    return b"".join(parts)


def _is_left_out(column: Column, values: Mapping[int, Value]) -> bool:
    """TiDB does not write a NULL that a reader must assume anyway."""
    has_default = column.default is not None or column.default_bit is not None
    has_origin = column.origin_default is not None or column.origin_default_bit is not None
    if has_default or has_origin:
        return False
    return values.get(column.id, missing_value(column)) is None


def _row_id(handle: int | None) -> int:
    if handle is None:
        raise ValueError("a table without a clustered key needs the row's handle")
    return handle


def _tail(table: Table, handle: int | None) -> bytes:
    if not table.has_hidden_id:
        return b""
    return _integer(Flag.VARINT, ROWID) + _integer(Flag.VARINT, _row_id(handle))


def _common_handle(table: Table, values: Mapping[int, Value]) -> tuple[bytes, set[int]]:
    """The datums of a clustered key, and the columns that are nowhere but in it."""
    index = table.primary_index()
    if index is None:
        raise ValueError(f"table {table.name} has no index for its clustered key")
    parts: list[bytes] = []
    only_there: set[int] = set()
    for each, place in zip(index.columns, handle_places(table), strict=True):
        column = table.columns[each.offset]
        value = values[column.id]
        if isinstance(value, bytes):
            value = _key_string(column, value, each.length)
        if place.flag == Flag.DURATION and isinstance(value, str):
            parts.append(bytes((Flag.DURATION,)) + comparable_int(duration_ns(value)))
        else:
            parts.append(datum_of(column, value))
        if each.length < 0 and not needs_restored_data(column):
            only_there.add(column.id)
    return b"".join(parts), only_there


def _key_string(column: Column, value: bytes, length: int) -> bytes:
    if length >= 0 and column.is_binary:
        value = value[:length]
    elif length >= 0:
        text = value.decode("utf-8", "surrogateescape")
        value = text[:length].encode("utf-8", "surrogateescape")
    is_exact = column.is_binary or column.field_type.collate in _EXACT_COLLATIONS
    return value if is_exact else value.rstrip(b" ")


# --- datums -------------------------------------------------------------------------------


def _integer(flag: Flag, value: int) -> bytes:
    return bytes((flag,)) + (varint(value) if flag == Flag.VARINT else uvarint(value))


def _signed(column: Column, value: Value) -> bytes:
    return _integer(Flag.VARINT, _within(column, value, -(1 << 63), 1 << 63))


def _unsigned(column: Column, value: Value) -> bytes:
    return _integer(Flag.UVARINT, _within(column, value, 0, 1 << 64))


def _within(column: Column, value: Value, low: int, high: int) -> int:
    if not isinstance(value, int):
        raise TypeError
    if not low <= value < high:
        raise ValueError(f"column {column.name} cannot hold {value}")
    return value


def _float(_column: Column, value: Value) -> bytes:
    if not isinstance(value, (int, float)):
        raise TypeError
    return bytes((Flag.FLOAT,)) + comparable_float(float(value))


def _decimal(column: Column, value: Value) -> bytes:
    kind = column.field_type
    return bytes((Flag.DECIMAL,)) + decimal_bytes(_text(value), kind.flen, max(kind.decimal, 0))


def _datetime(_column: Column, value: Value) -> bytes:
    return _integer(Flag.UVARINT, packed_time(_text(value)))


def _string(_column: Column, value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return bytes((Flag.COMPACT_BYTES,)) + compact_bytes(value)


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_ENCODERS: dict[Form, Callable[[Column, Value], bytes]] = {
    Form.SIGNED: _signed,
    Form.UNSIGNED: _unsigned,
    Form.BYTES: _string,
    Form.FLOAT: _float,
    Form.DECIMAL: _decimal,
    Form.DATE: _datetime,
    Form.DATETIME: _datetime,
    Form.DURATION: lambda _, value: _integer(Flag.VARINT, duration_ns(_text(value))),
    Form.JSON: lambda _, value: bytes((Flag.JSON,)) + json_bytes(_text(value)),
}
