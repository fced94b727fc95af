"""One value as another type of TiDB has it: what MODIFY COLUMN did to a value, without its session.

Each function takes a column before and after and gives the cast, None where none is certain. A cast
raises ValueError or ArithmeticError for a value that the new type cannot hold: a strict session
would have refused it, so what became of it was up to the session.
Source: pingcap/tidb types/datum.go (ConvertTo), convert.go, mydecimal.go, enum.go, set.go.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

from binlogd.tidb.cast_times import Cast, number_text, rounded_number
from binlogd.tidb.columns import shortest_single, single
from binlogd.tidb.families import COUNTED, LABELLED, STRINGS, TIMES, Family, family_of
from binlogd.tidb.jsonb import double_text, json_bytes, json_text
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

_WIDE = Context(prec=200)
_EXPONENT_MAX = 400
"""No type holds a number with so many digits; without it `1e999999999` would be spelled out."""
_EXACT_MAX = 1 << 53
_NEAR = 1e-6
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e15
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_NUMBERS = (*COUNTED, *LABELLED, *STRINGS, Family.FLOAT, Family.DOUBLE, Family.DECIMAL)
_PRINTED = {
    *(Family.INT, Family.YEAR, Family.FLOAT, Family.DOUBLE, Family.DECIMAL, Family.TEXT),
    *(Family.BINARY, Family.DATE, Family.DATETIME, Family.TIME, Family.JSON, *LABELLED),
}

# --- numbers -------------------------------------------------------------------------------------


def to_int(old: Column, new: Column) -> Cast | None:
    """Floats are rounded half to even, all else half away from zero."""
    whole = _whole_of(old)
    if whole is None:
        return None
    bits = _BITS[Tp(new.field_type.tp)]
    low, high = (0, (1 << bits) - 1) if new.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return lambda value: _within(whole(value), low, high)


def to_year(old: Column, _new: Column) -> Cast | None:
    """A number of two digits is a year of 1970 to 2069."""
    source, whole = family_of(old), _whole_of(old)
    if source in (Family.DATE, Family.DATETIME):
        return lambda value: _year(int(str(value)[:4]))
    if whole is None or source in (Family.TIME, Family.JSON):
        return None

    def cast(value: Value) -> Value:
        number = whole(value)
        if source in STRINGS and number == 0:
            assert isinstance(value, bytes)
            is_short = len(value) != 4 and value.strip().startswith(b"0")
            return 2000 if is_short else 0
        if isinstance(value, float) and value != number:
            raise ValueError("no whole number")
        if source is not Family.YEAR and 0 < number < 100:
            number += 2000 if number < 70 else 1900
        return _year(number)

    return cast


def _year(number: int) -> int:
    return number if number == 0 else _within(number, 1901, 2155)


def to_bit(old: Column, new: Column) -> Cast | None:
    """The number in binary."""
    sources = (Family.INT, Family.BIT, *LABELLED, Family.FLOAT, Family.DOUBLE, Family.DECIMAL)
    whole = _whole_of(old) if family_of(old) in sources else None
    if whole is None:
        return None
    return lambda value: _within(whole(value), 0, (1 << max(new.field_type.flen, 1)) - 1)


def _whole_of(old: Column) -> Callable[[Value], int] | None:
    source = family_of(old)
    if source in COUNTED or source in LABELLED:
        return lambda value: _int(value)
    if source in (Family.FLOAT, Family.DOUBLE):
        return lambda value: int(_sane(_float(value)).to_integral_value(ROUND_HALF_EVEN))
    if source in TIMES:
        return lambda value: rounded_number(source, str(value))
    if source is Family.JSON:
        return lambda value: int(_json_number(value).to_integral_value(ROUND_HALF_EVEN))
    if source in (Family.DECIMAL, *STRINGS):
        return lambda value: int(_written(value).to_integral_value(ROUND_HALF_UP))
    return None


def to_decimal(old: Column, new: Column) -> Cast | None:
    """Rounded half away from zero; of a float its shortest digits, of a FLOAT those of a double."""
    number = _number_of(old)
    if number is None:
        return None
    scale, precision = max(0, new.field_type.decimal), new.field_type.flen
    unit = Decimal(1).scaleb(-scale)

    def cast(value: Value) -> Value:
        rounded = number(value).quantize(unit, ROUND_HALF_UP, _WIDE)
        if rounded.is_zero():
            return f"{abs(rounded):f}"
        if precision >= 0 and rounded.adjusted() >= precision - scale:
            raise ValueError("too many digits")
        if new.is_unsigned and rounded < 0:
            raise ValueError("below zero")
        return f"{rounded:f}"

    return cast


def to_double(old: Column, new: Column) -> Cast | None:
    """With (M, D), rounded as TiDB does: times a power of ten, and back."""
    number = _number_of(old)
    if number is None:
        return None
    width, scale = new.field_type.flen, new.field_type.decimal

    def cast(value: Value) -> Value:
        found = float(number(value))
        if width >= 0 and scale >= 0:
            shifted = found * 10.0**scale
            if abs(abs(math.fmod(shifted, 1.0)) - 0.5) < _NEAR:
                raise ValueError("in the middle")
            found = round(shifted) / 10.0**scale if math.isfinite(shifted) else found
            if abs(found) > 10.0 ** (width - scale) - 10.0**-scale:
                raise ValueError("too large")
        if not math.isfinite(found) or (new.is_unsigned and found < 0):
            raise ValueError("out of range")
        return found

    return cast


def to_float(old: Column, new: Column) -> Cast | None:
    """A double, narrowed."""
    double = to_double(old, new)
    return None if double is None else lambda value: single(_float(double(value)))


def _number_of(old: Column) -> Callable[[Value], Decimal] | None:
    source = family_of(old)
    if source in TIMES:
        return lambda value: Decimal(number_text(str(value)))
    if source is Family.JSON:
        return _json_number
    return _written if source in _NUMBERS else None


def _written(value: Value) -> Decimal:
    """A number by its digits."""
    if isinstance(value, int):
        return Decimal(value)
    text = value.decode() if isinstance(value, bytes) else str(value)
    match = _NUMBER.fullmatch(text.strip(" \t\n\v\f\r"))
    if match is None:
        raise ValueError("no number")
    return _sane(Decimal(match[0]))


def _sane(number: Decimal | float) -> Decimal:
    found = Decimal(number)
    if not found.is_finite() or abs(found.adjusted()) > _EXPONENT_MAX:
        raise ValueError("no number of that size")
    return found


def _json_number(value: Value) -> Decimal:
    """Versions of TiDB differ for all but numbers that a double holds exactly."""
    found = json.loads(str(value))
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > _EXACT_MAX:
        raise ValueError("no such number")
    return _written(found)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError("out of range")
    return number


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _float(value: Value) -> float:
    assert isinstance(value, float)
    return value


# --- text ----------------------------------------------------------------------------------------


def to_text(old: Column, new: Column) -> Cast | None:
    """As it is printed; CHAR loses spaces at its end."""
    if family_of(old) not in _PRINTED:
        return None
    is_char, width = new.field_type.tp == Tp.STRING, new.field_type.flen
    is_counted = new.field_type.tp in (Tp.STRING, Tp.VARCHAR, Tp.VAR_STRING)

    def cast(value: Value) -> Value:
        raw = _printed(old, value)
        text = raw.decode()
        if is_char:
            text = text.rstrip(" ")
        if 0 <= width < (len(text) if is_counted else len(raw)):
            raise ValueError("too long")
        if not text.isascii() and not _has(new.field_type.charset, old.field_type.charset, text):
            raise ValueError("no such character")
        return text.encode()

    return cast


def _has(charset: str, before: str, text: str) -> bool:
    """Whether a character set has these characters, as far as that is certain."""
    return charset in ("utf8mb4", before) or (charset == "utf8" and max(text) <= "\uffff")


def to_binary(old: Column, new: Column) -> Cast | None:
    """As it is printed; BINARY is padded with zeros."""
    if family_of(old) not in _PRINTED:
        return None
    width = new.field_type.flen
    padded = width if new.field_type.tp == Tp.STRING else 0

    def cast(value: Value) -> Value:
        raw = _printed(old, value)
        if 0 <= width < len(raw):
            raise ValueError("too long")
        return raw.ljust(padded, b"\0")

    return cast


def _printed(old: Column, value: Value) -> bytes:
    source = family_of(old)
    if isinstance(value, bytes):
        return value
    if source is Family.YEAR:
        return b"%04d" % _int(value)
    if source in LABELLED:
        return _label(old, value).encode()
    if source in (Family.FLOAT, Family.DOUBLE):
        return _positional(old, _float(value)).encode()
    return str(value).encode()


def _positional(old: Column, value: float) -> str:
    """The fewest digits that read back as the same, where that needs no exponent."""
    shortest = shortest_single(value) if family_of(old) is Family.FLOAT else value
    whole, _, fraction = f"{_sane(Decimal(repr(shortest))):f}".partition(".")
    fraction = fraction.rstrip("0")
    if value and not _PLAIN_MIN <= abs(value) < _PLAIN_MAX:
        raise ValueError("it may be printed with an exponent")
    if old.field_type.decimal >= 0 and len(fraction) != old.field_type.decimal:
        raise ValueError("it may be printed with zeros at its end")
    return f"{whole}.{fraction}" if fraction else whole


# --- labels --------------------------------------------------------------------------------------


def to_enum(old: Column, new: Column) -> Cast | None:
    """By the label; a text without one, and a number, by its number."""
    source, labels = family_of(old), new.field_type.elems
    if source is Family.INT:
        return lambda value: _within(_int(value), 1, len(labels))
    if source not in (*LABELLED, Family.TEXT):
        return None
    known = _Labels(new)

    def cast(value: Value) -> Value:
        if source is Family.ENUM and value == 0:
            return 0
        text = _label(old, value)
        place = known.place(text)
        if place is None and text.isdigit() and text.isascii() and not text.startswith("0"):
            return _within(int(text), 1, len(labels))
        return _found(place) + 1

    return cast


def to_set(old: Column, new: Column) -> Cast | None:
    """Label by label; a number by its bits."""
    source = family_of(old)
    if source is Family.INT:
        return lambda value: _within(_int(value), 0, (1 << len(new.field_type.elems)) - 1)
    if source not in (*LABELLED, Family.TEXT):
        return None
    known = _Labels(new)

    def cast(value: Value) -> Value:
        text = _label(old, value)
        mask = 0
        for label in text.split(",") if text else ():
            mask |= 1 << _found(known.place(label))
        return mask

    return cast


class _Labels:
    """Where a label stands among those of a column, by its collation as far as that is certain."""

    def __init__(self, column: Column) -> None:
        elems = [label.rstrip(" ") for label in column.field_type.elems]
        self._places = {label: at for at, label in reversed(list(enumerate(elems)))}
        is_folded = column.field_type.collate.endswith("_ci")
        self._folded = {_folded(label): at for label, at in self._places.items()}
        self._folded = self._folded if is_folded else {}

    def place(self, label: str) -> int | None:
        text = label.rstrip(" ")
        return self._places.get(text, self._folded.get(_folded(text)))


def _folded(label: str) -> str:
    """ASCII alone: what else is equal differs by collation."""
    return label.lower() if label.isascii() else label


def _found(place: int | None) -> int:
    if place is None:
        raise ValueError("no such label")
    return place


def _label(old: Column, value: Value) -> str:
    """What an ENUM, SET or text says."""
    if isinstance(value, bytes):
        return value.decode()
    labels, number = old.field_type.elems, _int(value)
    if family_of(old) is Family.SET:
        return old.field_type.label(_within(number, 0, (1 << len(labels)) - 1))
    return old.field_type.label(_within(number, 0, len(labels)))


# --- JSON ----------------------------------------------------------------------------------------


def to_json(old: Column, _new: Column) -> Cast | None:
    """A text is read as JSON; numbers are numbers, a DECIMAL a double; labels are strings."""
    source = family_of(old)
    if source is Family.JSON:
        return lambda value: value
    if source is Family.TEXT:
        return lambda value: json_text(json_bytes(_printed(old, value).decode()))
    if source in (Family.INT, Family.YEAR):
        return lambda value: str(value)
    if source in (Family.DOUBLE, Family.DECIMAL):
        return lambda value: double_text(float(str(value)))
    if source in LABELLED:
        return lambda value: json_text(json_bytes(json.dumps(_label(old, value))))
    return None
