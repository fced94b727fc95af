"""Values that a MODIFY COLUMN rewrote, where the log holds the old ones only.

A MODIFY or CHANGE COLUMN that cannot keep the stored bytes gives the column a new id and rewrites
every row, without a binlog. A row that nobody touched since is in the log under the old id, so its
value is converted here, as TiDB did. What is not certain to come out as TiDB's is refused
(`Unconvertible`): the table is then left out of the snapshot, with the reason.
Source: pingcap/tidb types/datum.go (ConvertTo), types/convert.go, table/column.go (CastValue).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation
from enum import Enum, auto

from binlogd.errors import Unfit
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

Convert = Callable[[Value], Value]


class Unconvertible(Unfit):
    """A value whose conversion is not known for certain; the table cannot be told from the log."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A column that replaced another: rows of before `version` mean what `old` holds, converted."""

    old: Column
    new: Column
    version: int


def converter(old: Column, new: Column) -> Convert:
    """The conversion from one column's values to another's, in the row decoder's forms.

    Raises Unconvertible, here or for a single value.
    """
    target = _TARGETS.get(_family(new))
    convert = target(old, new) if target else None
    if convert is None:
        raise Unconvertible(
            f"column {new.name} was rewritten from another type by MODIFY COLUMN (column ids"
            f" {old.id} and {new.id}), and the log holds old values only"
        )
    known = convert

    def guarded(value: Value) -> Value:
        if value is None:
            return None
        try:
            return known(value)
        except (ValueError, ArithmeticError, InvalidOperation):
            raise Unconvertible(
                f"a value of column {new.name} from before its MODIFY COLUMN cannot be converted"
            ) from None

    return guarded


class _Family(Enum):
    INT = auto()
    BIT = auto()
    YEAR = auto()
    FLOAT = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    TEXT = auto()
    BINARY = auto()
    ENUM = auto()
    SET = auto()
    DATE = auto()
    DATETIME = auto()
    TIMESTAMP = auto()
    TIME = auto()
    JSON = auto()
    OTHER = auto()


_FAMILIES = {
    **dict.fromkeys((Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG), _Family.INT),
    Tp.BIT: _Family.BIT,
    Tp.YEAR: _Family.YEAR,
    Tp.FLOAT: _Family.FLOAT,
    Tp.DOUBLE: _Family.DOUBLE,
    Tp.NEW_DECIMAL: _Family.DECIMAL,
    Tp.ENUM: _Family.ENUM,
    Tp.SET: _Family.SET,
    Tp.DATE: _Family.DATE,
    Tp.DATETIME: _Family.DATETIME,
    Tp.TIMESTAMP: _Family.TIMESTAMP,
    Tp.DURATION: _Family.TIME,
    Tp.JSON: _Family.JSON,
}
_COUNTED = (_Family.INT, _Family.BIT, _Family.YEAR)
_LABELLED = (_Family.ENUM, _Family.SET)


def _family(column: Column) -> _Family:
    tp = column.field_type.tp
    if tp in STRING_TYPES:
        return _Family.BINARY if column.is_binary else _Family.TEXT
    return _FAMILIES.get(Tp(tp), _Family.OTHER)


# --- numbers -------------------------------------------------------------------------------


def _to_int(old: Column, _: Column) -> Convert | None:
    source = _family(old)
    if source in _COUNTED or source in _LABELLED:
        return lambda value: value
    if source in (_Family.FLOAT, _Family.DOUBLE):
        return lambda value: int(_exact(value).to_integral_value(ROUND_HALF_EVEN))
    if source in (_Family.DECIMAL, _Family.TEXT):
        return lambda value: int(_exact(value).to_integral_value(ROUND_HALF_UP))
    return None


def _to_decimal(old: Column, new: Column) -> Convert | None:
    if _family(old) not in (*_COUNTED, _Family.DECIMAL, _Family.TEXT):
        return None
    scale = max(0, new.field_type.decimal)
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Value) -> Value:
        text = f"{_exact(value).quantize(unit, ROUND_HALF_UP):f}"
        return text.removeprefix("-") if not text.strip("-0.") else text

    return convert


def _to_double(old: Column, _: Column) -> Convert | None:
    numbers = (*_COUNTED, _Family.FLOAT, _Family.DOUBLE, _Family.DECIMAL, _Family.TEXT)
    return (lambda value: float(_exact(value))) if _family(old) in numbers else None


def _to_float(old: Column, new: Column) -> Convert | None:
    double = _to_double(old, new)
    if double is None:
        return None

    def convert(value: Value) -> Value:
        narrowed: float = struct.unpack("<f", struct.pack("<f", double(value)))[0]
        return narrowed

    return convert


def _exact(value: Value) -> Decimal:
    if isinstance(value, bytes):
        value = value.decode().strip()
    assert value is not None
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("no number")
    return number


def _to_bit(old: Column, _: Column) -> Convert | None:
    return (lambda value: value) if _family(old) in (_Family.INT, _Family.BIT) else None


# --- text and labels -----------------------------------------------------------------------


def _to_text(old: Column, new: Column) -> Convert | None:
    text = _text_of(old)
    if text is None or new.field_type.tp != Tp.STRING:
        return text
    return lambda value: _bytes(text(value)).rstrip(b" ")


def _text_of(old: Column) -> Convert | None:
    source = _family(old)
    if source is _Family.TEXT:
        return lambda value: value
    if source is _Family.YEAR:
        return lambda value: str(value).zfill(4).encode()
    if source in _LABELLED:
        return lambda value: _label(old, value).encode()
    plain = (_Family.INT, _Family.DECIMAL, _Family.JSON, _Family.DATE, _Family.DATETIME)
    if source in (*plain, _Family.TIME):
        return lambda value: str(value).encode()
    return None


def _to_binary(old: Column, new: Column) -> Convert | None:
    if _family(old) not in (_Family.TEXT, _Family.BINARY):
        return None
    width = new.field_type.flen if new.field_type.tp == Tp.STRING else 0
    return lambda value: _bytes(value).ljust(width, b"\0")


def _to_enum(old: Column, new: Column) -> Convert | None:
    if _family(old) not in (_Family.ENUM, _Family.TEXT):
        return None
    numbers = {label.lower(): number for number, label in enumerate(new.field_type.elems, 1)}
    return lambda value: 0 if value == 0 else _number(numbers, _label(old, value))


def _to_set(old: Column, new: Column) -> Convert | None:
    if _family(old) not in (_Family.SET, _Family.TEXT):
        return None
    bits = {label.lower(): 1 << at for at, label in enumerate(new.field_type.elems)}

    def convert(value: Value) -> Value:
        text = _label(old, value)
        return sum(_number(bits, label) for label in set(text.split(",")) if text)

    return convert


def _number(numbers: dict[str, int], label: str) -> int:
    number = numbers.get(label.rstrip(" ").lower())
    if number is None:
        raise ValueError("no such label")
    return number


def _label(old: Column, value: Value) -> str:
    """What an ENUM, SET or text says."""
    if isinstance(value, bytes):
        return value.decode()
    assert isinstance(value, int)
    labels = old.field_type.elems
    if _family(old) is _Family.SET:
        return ",".join(label for at, label in enumerate(labels) if value >> at & 1)
    if value > len(labels):
        raise ValueError("no such label")
    return labels[value - 1] if value else ""


def _bytes(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


# --- dates and times -----------------------------------------------------------------------


def _to_date(old: Column, _: Column) -> Convert | None:
    if _family(old) not in (_Family.DATE, _Family.DATETIME):
        return None
    return lambda value: str(value)[:10]


def _to_datetime(old: Column, new: Column) -> Convert | None:
    fsp = max(0, new.field_type.decimal)
    if _family(old) is _Family.DATE:
        zeros = "." + "0" * fsp if fsp else ""
        return lambda value: str(value) + f" 00:00:00{zeros}"
    if _family(old) is not _family(new):
        return None  # between DATETIME and TIMESTAMP the time zone of the session counted
    return lambda value: _refracted(str(value), fsp)


def _refracted(text: str, fsp: int) -> str:
    """A date and time with another number of fraction digits, rounded half up."""
    whole, _, fraction = text.partition(".")
    if len(fraction) <= fsp:
        return whole + ("." + fraction.ljust(fsp, "0") if fsp else "")
    half = timedelta(microseconds=10 ** (6 - fsp) // 2)
    rounded = f"{datetime.fromisoformat(text) + half:%Y-%m-%d %H:%M:%S.%f}"
    return rounded[: 19 + (fsp + 1 if fsp else 0)].rjust(19, "0")


def _to_time(old: Column, new: Column) -> Convert | None:
    wanted, there = new.field_type.decimal, old.field_type.decimal
    if _family(old) is not _Family.TIME or max(0, wanted) < max(0, there):
        return None

    def convert(value: Value) -> Value:
        whole, _, fraction = str(value).partition(".")
        return f"{whole}.{fraction.ljust(wanted, '0')}" if wanted > 0 else whole

    return convert


_TARGETS: dict[_Family, Callable[[Column, Column], Convert | None]] = {
    _Family.INT: _to_int,
    _Family.YEAR: lambda old, new: _to_int(old, new) if _family(old) is _Family.YEAR else None,
    _Family.BIT: _to_bit,
    _Family.FLOAT: _to_float,
    _Family.DOUBLE: _to_double,
    _Family.DECIMAL: _to_decimal,
    _Family.TEXT: _to_text,
    _Family.BINARY: _to_binary,
    _Family.ENUM: _to_enum,
    _Family.SET: _to_set,
    _Family.DATE: _to_date,
    _Family.DATETIME: _to_datetime,
    _Family.TIMESTAMP: lambda old, new: (
        _to_datetime(old, new) if _family(old) is _Family.TIMESTAMP else None
    ),
    _Family.TIME: _to_time,
}
