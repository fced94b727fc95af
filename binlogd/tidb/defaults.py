"""What a column means that a row does not hold.

TiDB keeps a column's default as a JSON scalar in no particular form (`2.5` for DECIMAL(8,2), a
DATETIME(3) without fraction): it is brought into the form of the column here.
A TIMESTAMP default is UTC from column version 1 on; older ones (TiDB before 2.1) stand in the
zone of a server that is not known here and are taken for UTC too.
Source: pingcap/tidb table/column.go (GetColOriginDefaultValue, GetZeroValue), types/convert.go;
tidb-binlog drainer/translator (getDefaultOrZeroValue).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

from binlogd.errors import CorruptRow
from binlogd.tidb.columns import Value, single
from binlogd.tidb.jsonb import json_bytes, json_text
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.layout import DATETIME_TYPES, INTEGER_TYPES
from binlogd.tidb.model import Column, Scalar
from binlogd.tidb.times import (
    ZERO_CLOCK,
    ZERO_DATE,
    date_text,
    datetime_text,
    duration_ns,
    duration_text,
    fraction_text,
    packed_time,
)

_WIDE = Context(prec=300)
"""So that no digit of a DECIMAL is lost on the way to it."""


def missing_value(column: Column) -> Value:
    """The value of a column in rows from before it existed. Raises CorruptRow for a bad default."""
    if column.origin_default is not None or column.origin_default_bit is not None:
        return in_form_of(column, column.origin_default)
    return zero_value(column) if column.not_null else None


def zero_value(column: Column) -> Value:
    """What a NOT NULL column without a default starts with; an ENUM with its first member."""
    kind = column.field_type
    if kind.is_array:
        return "[]"
    if kind.tp in STRING_TYPES:
        return bytes(kind.flen) if _is_padded(column) else b""
    if kind.tp in DATETIME_TYPES:
        return f"{ZERO_DATE} {ZERO_CLOCK}{fraction_text(0, kind.decimal)}"
    return _ZEROS[kind.tp](max(kind.decimal, 0)) if kind.tp in _ZEROS else 0


_ZEROS: dict[int, Callable[[int], Value]] = {
    Tp.ENUM: lambda _scale: 1,
    Tp.FLOAT: lambda _scale: 0.0,
    Tp.DOUBLE: lambda _scale: 0.0,
    Tp.NEW_DECIMAL: lambda scale: f"{0:.{scale}f}",
    Tp.DATE: lambda _scale: ZERO_DATE,
    Tp.DURATION: lambda scale: ZERO_CLOCK + fraction_text(0, scale),
    Tp.JSON: lambda _scale: "null",
}


def in_form_of(column: Column, scalar: Scalar) -> Value:
    """A default of TiDB's JSON as a value of the column. Raises CorruptRow where it is none."""
    if scalar is None and column.origin_default_bit is None:
        return None
    tp = column.field_type.tp
    step = _FORMS.get(tp)
    if step is None:
        raise CorruptRow(f"column {column.name} of type {tp:d} cannot have a default")
    try:
        return step(column, _plain(scalar))
    except (ValueError, ArithmeticError) as error:
        raise CorruptRow(f"column {column.name} has the default {scalar!r}: {error}") from error


def _plain(scalar: Scalar) -> str:
    if isinstance(scalar, bool):
        return str(int(scalar))
    return "" if scalar is None else str(scalar)


def _number(text: str) -> Decimal:
    """A number at the head of the text, as casts in MySQL read it: the empty text is zero."""
    try:
        number = Decimal(text.strip() or 0)
    except InvalidOperation as error:
        raise ValueError("no number") from error
    if not number.is_finite():
        raise ValueError("no finite number")
    return number


def _integer(column: Column, text: str) -> Value:
    number = int(_number(text).to_integral_value(ROUND_HALF_UP))
    if column.field_type.tp == Tp.YEAR and 0 < number < 100:
        return number + (2000 if number < 70 else 1900)
    return number


def _float(column: Column, text: str) -> Value:
    value, scale = float(text or 0), column.field_type.decimal
    if scale >= 0:
        value = round(value, scale)
    if value - value != 0.0:
        raise ValueError("no finite number")
    return single(value) if column.field_type.tp == Tp.FLOAT else value


def _decimal(column: Column, text: str) -> Value:
    number = _number(text)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) + abs(exponent) > 200:
        raise ValueError("too many digits")
    unit = Decimal(1).scaleb(-max(column.field_type.decimal, 0))
    rounded = number.quantize(unit, ROUND_HALF_UP, _WIDE)
    return f"{rounded if rounded else abs(rounded):f}"


def _string(column: Column, text: str) -> Value:
    raw, length = text.encode("utf-8", "replace"), column.field_type.flen
    if not column.is_binary:
        return raw.rstrip(b" ") if column.field_type.tp == Tp.STRING else raw
    if length >= 0:
        raw = raw[:length]
    return raw.ljust(length, b"\x00") if _is_padded(column) else raw


def _is_padded(column: Column) -> bool:
    return column.is_binary and column.field_type.tp == Tp.STRING and column.field_type.flen > 0


def _bit(column: Column, text: str) -> Value:
    raw = column.origin_default_bit
    return int.from_bytes(text.encode("utf-8", "replace") if raw is None else raw, "big")


def _enum(column: Column, text: str) -> Value:
    if not text and "" not in column.field_type.elems:
        return 0
    return _member(column.field_type.elems, text) + 1


def _set(column: Column, text: str) -> Value:
    elems = column.field_type.elems
    if not text:
        return 0
    if text.isdigit() and text not in elems:
        return int(text)
    mask = 0
    for name in text.split(","):
        mask |= 1 << _member(elems, name)
    return mask


def _member(elems: Sequence[str], name: str) -> int:
    """The position of a member by its name, as written or but for case; or by its number."""
    if name in elems:
        return elems.index(name)
    folded = [each.casefold() for each in elems]
    if name.casefold() in folded:
        return folded.index(name.casefold())
    if name.isdigit() and 0 < int(name) <= len(elems):
        return int(name) - 1
    raise ValueError(f"no member of {', '.join(elems)}")


def _datetime(column: Column, text: str) -> Value:
    return datetime_text(packed_time(text or ZERO_DATE), column.field_type.decimal)


_FORMS: dict[int, Callable[[Column, str], Value]] = {
    **dict.fromkeys(INTEGER_TYPES, _integer),
    **dict.fromkeys(STRING_TYPES, _string),
    **dict.fromkeys(DATETIME_TYPES, _datetime),
    Tp.FLOAT: _float,
    Tp.DOUBLE: _float,
    Tp.NEW_DECIMAL: _decimal,
    Tp.BIT: _bit,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.DATE: lambda _, text: date_text(packed_time(text or ZERO_DATE)),
    Tp.DURATION: lambda column, text: duration_text(
        duration_ns(text or ZERO_CLOCK), column.field_type.decimal
    ),
    Tp.JSON: lambda _, text: json_text(json_bytes(text or "null")),
}
