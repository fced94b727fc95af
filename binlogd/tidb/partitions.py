"""Which partition of its table a row lies in, by its values.

A row in a binlog carries the id of its table, whatever partition it lies in, so a DDL that takes
partitions away can be followed only by finding the partition out again. What is not certain to come
out as TiDB's is refused (`Unplaceable`): key partitions, expressions beyond the ones below, text
under collations that fold letters.
Source: pingcap/tidb table/tables/partition.go (locatePartition), ddl/partition.go.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime

from binlogd.errors import Unfit
from binlogd.tidb.columns import Value
from binlogd.tidb.datum import as_signed
from binlogd.tidb.kinds import STRING_TYPES, PartitionKind, Tp
from binlogd.tidb.layout import INTEGER_TYPES
from binlogd.tidb.model import Column, Table
from binlogd.tidb.partitioning import Partition, Partitioning


class Unplaceable(Unfit):
    """Nobody here can tell in which partition rows lie; the text says of what and why."""


class PartitionLookup:
    """The partitions of one table as it is at one moment. Cheap to keep, dear to make."""

    def __init__(self, info: Table) -> None:
        """Raises Unplaceable."""
        if info.partitioning is None:
            raise Unplaceable("it has no partitions, or they are not described")
        self._find = _finder(info, info.partitioning)
        self.column_ids = _column_ids(info, info.partitioning)
        """Whose values decide."""

    def find(self, values: Mapping[int, Value]) -> int:
        """The id of the partition that a row with these values lies in. Raises Unplaceable."""
        found = self.look(values)
        if found is None:
            raise Unplaceable("a row fits none of its table's partitions")
        return found

    def look(self, values: Mapping[int, Value]) -> int | None:
        """As `find`; None for a row that fits nowhere. Raises Unplaceable."""
        return self._find([values[each] for each in self.column_ids])


_Find = Callable[[list[Value]], int | None]
_Parts = tuple[Partition, ...]
_MAX, _NULL, _DEFAULT = "MAXVALUE", "NULL", "DEFAULT"


def _finder(info: Table, partitioning: Partitioning) -> _Find:
    columns = [_column(info, each) for each in _column_ids(info, partitioning)]
    reads = [_comparable(column) for column in columns]
    if not partitioning.columns:
        reads = [_function(partitioning.expr, columns[0])]
    if partitioning.kind in (PartitionKind.RANGE, PartitionKind.LIST):
        bounds = [_bound(each, has_expr=not partitioning.columns) for each in columns]
        locate = _range if partitioning.kind == PartitionKind.RANGE else _list
        return locate(partitioning.parts, reads, bounds)
    if partitioning.kind == PartitionKind.HASH and len(reads) == 1:
        return _hash(partitioning.parts, reads[0])
    raise Unplaceable("only partitions by range, list or hash are told apart")


_NAME = r"`((?:[^`]|``)+)`"
_PLAIN = re.compile(_NAME)
_CALL = re.compile(rf"(year|to_days|unix_timestamp)\({_NAME}\)", re.IGNORECASE)


def _column_ids(info: Table, partitioning: Partitioning) -> tuple[int, ...]:
    names = partitioning.columns
    if not names:
        plain, call = _PLAIN.fullmatch(partitioning.expr), _CALL.fullmatch(partitioning.expr)
        if plain is None and call is None:
            raise Unplaceable(f"it is partitioned by {partitioning.expr or 'nothing that is told'}")
        names = ((plain[1] if plain else call[2] if call else "").replace("``", "`"),)
    by_name = {column.name.lower(): column.id for column in info.columns}
    try:
        return tuple(by_name[name.lower()] for name in names)
    except KeyError as error:
        raise Unplaceable(f"it has no column {error} to be partitioned by") from None


def _column(info: Table, column_id: int) -> Column:
    column = next(each for each in info.columns if each.id == column_id)
    if column.is_virtual:
        raise Unplaceable(f"rows do not hold the generated column {column.name}")
    return column


# --- values in the order of the partitions ---------------------------------------------------


_Key = tuple[object, ...]
"""A value behind a 1, in the order of its column."""
_LOWEST: _Key = (0,)
"""NULL, below every value."""
_HIGHEST: _Key = (2,)
"""MAXVALUE, above every value."""
_Read = Callable[[Value], object]
"""What orders the values of a column; of none that is NULL."""


def _keys(reads: list[_Read], values: list[Value]) -> tuple[_Key, ...]:
    pairs = zip(reads, values, strict=True)
    return tuple(_LOWEST if value is None else (1, read(value)) for read, value in pairs)


_BINARY_COLLATIONS = ("binary", "utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin", "")
_PADDED = ("utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin")


def _comparable(column: Column) -> _Read:
    kind = column.field_type
    if kind.tp in INTEGER_TYPES:
        return lambda value: value
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP):
        return lambda value: _whole_datetime(str(value))
    if kind.tp in STRING_TYPES and kind.collate in _BINARY_COLLATIONS:
        return lambda value: _text(column, value)
    raise Unplaceable(f"the order of its column {column.name} is not known here")


def _text(column: Column, value: Value) -> bytes:
    assert isinstance(value, bytes)
    is_padded = not column.is_binary and column.field_type.collate in _PADDED
    return value.rstrip(b" ") if is_padded else value


def _whole_datetime(text: str) -> str:
    """A date, or a date and time, with six digits of fraction: texts order as moments do."""
    if len(text) == len("0000-00-00"):
        text += " 00:00:00"
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction:0<6}"


def _function(expr: str, column: Column) -> _Read:
    """What a whole number that an expression makes of a column is."""
    call = _CALL.fullmatch(expr)
    if call is None:
        if column.field_type.tp not in INTEGER_TYPES:
            raise Unplaceable(f"it is partitioned by {expr}, which is no whole number")
        return _comparable(column)
    name, tp = call[1].lower(), column.field_type.tp
    if name == "unix_timestamp":
        if tp != Tp.TIMESTAMP or column.field_type.decimal > 0:
            raise Unplaceable(f"it is partitioned by {expr} with a fraction, or a time zone")
        return lambda value: _unix_seconds(str(value))
    if tp not in (Tp.DATE, Tp.DATETIME):
        raise Unplaceable(f"it is partitioned by {expr}, which depends on a time zone")
    if name == "year":
        return lambda value: int(str(value)[:4])
    return lambda value: _days(str(value))


def _unix_seconds(text: str) -> int:
    if text.startswith("0000-00-00"):
        return 0
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


_DAYS_BEFORE_YEAR_1 = 365


def _days(text: str) -> int:
    try:
        return date.fromisoformat(text[:10]).toordinal() + _DAYS_BEFORE_YEAR_1
    except ValueError:
        raise Unplaceable(f"a row has the date {text[:10]}, which TO_DAYS makes NULL") from None


def _bound(column: Column, *, has_expr: bool) -> Callable[[str], _Key]:
    """How a bound, or a value of a list, of this column is read."""

    def read(text: str) -> _Key:
        if text.upper() == _MAX:
            return _HIGHEST
        if text.upper() == _NULL:
            return _LOWEST
        if has_expr or column.field_type.tp in INTEGER_TYPES:
            return 1, _whole_number(text)
        content = _unquoted(text)
        if column.field_type.tp in STRING_TYPES:
            return 1, _text(column, content.encode())
        return 1, _whole_datetime(content)

    return read


def _whole_number(text: str) -> int:
    try:
        return int(text.strip("'"))
    except ValueError:
        raise Unplaceable(f"a partition has the bound {text}") from None


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] != "'" or text[-1] != "'" or "\\" in text:
        raise Unplaceable(f"a partition has the bound {text}")
    return text[1:-1].replace("''", "'")


# --- the three kinds ------------------------------------------------------------------------


def _range(parts: _Parts, reads: list[_Read], bounds: list[Callable[[str], _Key]]) -> _Find:
    upper = [
        tuple(read(text) for read, text in zip(bounds, part.less_than, strict=True))
        for part in parts
    ]

    def find(values: list[Value]) -> int | None:
        at = bisect_right(upper, _keys(reads, values))
        return parts[at].id if at < len(upper) else None

    return find


def _list(parts: _Parts, reads: list[_Read], bounds: list[Callable[[str], _Key]]) -> _Find:
    found: dict[tuple[_Key, ...], int] = {}
    others: int | None = None
    for part in parts:
        for texts in part.in_values:
            if len(texts) == 1 and texts[0].upper() == _DEFAULT:
                others = part.id
            else:
                key = tuple(read(text) for read, text in zip(bounds, texts, strict=True))
                found[key] = part.id

    def find(values: list[Value]) -> int | None:
        return found.get(_keys(reads, values), others)

    return find


def _hash(parts: _Parts, read: _Read) -> _Find:
    count = len(parts)

    def find(values: list[Value]) -> int:
        number = 0 if values[0] is None else read(values[0])
        # TiDB takes the 64 bits of an unsigned number for a signed one
        return parts[abs(as_signed(number)) % count if isinstance(number, int) else 0].id

    return find
