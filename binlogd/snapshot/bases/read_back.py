"""Values out of Arrow again, in the forms of the row decoder: the way back of `columns`.

For columns of a base that are converted, as values of the log are. Values that were lost on their
way into the base (counted in its manifest) are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tidb.times import duration_text

_Read = Callable[[Any], Value]


def values_of(column: Column, array: pa.ChunkedArray) -> list[Value]:
    """The values of a column of this declaration."""
    read = _reader(column, array.type)
    return [None if value is None else read(value) for value in array.to_pylist()]


def _reader(column: Column, type_: pa.DataType) -> _Read:
    kind = column.field_type
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION) and type_ == pa.string():
        return str
    if kind.tp in STRING_TYPES:
        return bytes if type_ == pa.binary() else str.encode
    fraction = max(0, kind.decimal)
    numbers = {label: number for number, label in enumerate(kind.elems, 1)}
    if kind.tp == Tp.DURATION:
        return lambda value: duration_text(micros_of(value) * 1000, fraction)
    readers: dict[int, _Read] = {
        Tp.FLOAT: float,
        Tp.DOUBLE: float,
        Tp.NEW_DECIMAL: lambda value: value if isinstance(value, str) else f"{value:f}",
        Tp.JSON: str,
        Tp.DATE: date.isoformat,
        Tp.DATETIME: lambda value: moment_text(value, fraction),
        Tp.TIMESTAMP: lambda value: moment_text(value, fraction),
        Tp.ENUM: lambda label: numbers.get(label, 0),
        Tp.SET: lambda found: mask_of(found, numbers),
    }
    return readers.get(kind.tp, int)


def micros_of(value: int | timedelta | time) -> int:
    """A TIME in microseconds, however it was exported."""
    if isinstance(value, int):
        return value
    if isinstance(value, time):
        value = datetime.combine(_DAY, value) - datetime.combine(_DAY, time())
    return value // timedelta(microseconds=1)


_DAY = date(1, 1, 1)


def moment_text(value: datetime | str, fraction: int) -> str:
    """A DATETIME or TIMESTAMP of so many digits behind the point, however it was exported."""
    text = value if isinstance(value, str) else f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")
    return text[: 19 + (fraction + 1 if fraction else 0)]


def mask_of(found: str | list[str], numbers: Mapping[str, int]) -> int:
    """A SET however it was exported; its labels have numbers from 1 on."""
    labels = found.split(",") if isinstance(found, str) else found
    return sum(1 << numbers[label] - 1 for label in labels if label)
