"""Random values for a column, with a taste for the ends of its range.

Every value is in the one form that a row decoder gives back (`tidb.row.Value`), so that equality
of contents is equality of Python values. What a MariaDB cannot hold or print exactly (negative
zero, a FLOAT of more digits than it keeps) is never drawn.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType
from tests.workload.schema import UNSIGNED

Value = int | float | str | bytes | None

_EXTREMES = 0.12  # share of values taken from the ends of a range
_INTEGER_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ODD_TEXTS = (
    "",
    "it's",
    'say "no"',
    "back\\slash",
    "nul\x00inside",
    "line\nbreak\ttab\rreturn",
    "%_?",
    "grüße",
    "日本語",
    "😀 emoji",
    "é combining",
    "-- comment; drop",
    "\x1a",
)
_ODD_BYTES = (b"", b"\x00", b"\xff" * 4, bytes(range(32)), b"it's \\ \x00\x1a\n")


def draw(rng: random.Random, column: Column) -> Value:
    """A value for the column; NULL now and then where it may be."""
    if not column.not_null and rng.random() < 0.12:
        return None
    kind = column.field_type
    return _DRAW[Tp(kind.tp)](rng, kind)


def draw_key(rng: random.Random, column: Column, serial: int) -> Value:
    """A value that no other serial number gives, for a column of a key. `serial` > 0."""
    kind = column.field_type
    if kind.tp in _INTEGER_BITS:
        return _integer_key(kind, serial)
    if kind.tp == Tp.NEW_DECIMAL:
        return _decimal_text(serial * 10**kind.decimal, kind.decimal)
    if kind.tp == Tp.DATE:
        return f"{1970 + serial // 336:04d}-{serial % 336 // 28 + 1:02d}-{serial % 28 + 1:02d}"
    if kind.charset == "binary":
        return serial.to_bytes(kind.flen, "big")
    stem = "".join(rng.choices(_ALPHABET, k=4))
    return f"{stem}{serial:x}"[: kind.flen].encode()


def zero_value(kind: FieldType) -> Value:
    """What a NOT NULL column without default holds in rows from before it existed."""
    zeros: dict[int, Value] = {
        Tp.NEW_DECIMAL: _decimal_text(0, max(kind.decimal, 0)),
        Tp.FLOAT: 0.0,
        Tp.DOUBLE: 0.0,
        Tp.DATE: "0000-00-00",
        Tp.DATETIME: "0000-00-00 00:00:00" + _fraction(0, kind.decimal),
        Tp.TIMESTAMP: "0000-00-00 00:00:00" + _fraction(0, kind.decimal),
        Tp.DURATION: "00:00:00" + _fraction(0, kind.decimal),
        Tp.ENUM: 1,
        Tp.SET: 0,
    }
    return zeros.get(kind.tp, 0 if kind.charset == "binary" else b"")


def _integer_key(kind: FieldType, serial: int) -> int:
    """Unique as long as the serial numbers fit the type."""
    width = _INTEGER_BITS[Tp(kind.tp)]
    if kind.flag & UNSIGNED:  # odd ones from the upper end, which a signed handle shows negative
        return (-serial if serial % 2 else serial) % (1 << width)
    wrapped = serial % (1 << (width - 1))
    return -wrapped if serial % 7 == 0 else wrapped


def _integer(rng: random.Random, kind: FieldType) -> int:
    width = _INTEGER_BITS[Tp(kind.tp)]
    low, high = (
        (0, (1 << width) - 1)
        if kind.flag & UNSIGNED
        else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    )
    if rng.random() < _EXTREMES:
        return rng.choice((low, high, 0, high >> 1, max(low, -1)))
    return rng.randint(max(low, -100), min(high, 30000))


def _year(rng: random.Random, _: FieldType) -> int:
    if rng.random() < _EXTREMES:
        return rng.choice((0, 1901, 2155))
    return rng.randint(1950, 2050)


def _float(rng: random.Random, _: FieldType) -> float:
    if rng.random() < _EXTREMES:
        # 3.40282e38 is the largest FLOAT that survives MariaDB's six digits.
        value = rng.choice((0.0, 3.40282e38, -3.40282e38, 1.17549e-38, 0.1, -1.5))
    else:
        value = rng.randint(-99999, 99999) / 10 ** rng.randint(0, 3)
    (widened,) = struct.unpack("<f", struct.pack("<f", value))
    return float(widened)


def _double(rng: random.Random, _: FieldType) -> float:
    if rng.random() < _EXTREMES:
        return rng.choice((0.0, 1.7976931348623157e308, -1.7976931348623157e308, 1e-300, 0.1))
    return float(rng.randint(-(10**9), 10**9) / 10 ** rng.randint(0, 6))


def _decimal(rng: random.Random, kind: FieldType) -> str:
    largest = 10**kind.flen - 1
    if rng.random() < _EXTREMES:
        unscaled = rng.choice((0, 1, -1, largest, -largest))
    else:
        unscaled = rng.randint(-(10 ** min(kind.flen, 9)), 10 ** min(kind.flen, 9))
    return _decimal_text(max(-largest, min(largest, unscaled)), kind.decimal)


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _bits(rng: random.Random, kind: FieldType) -> int:
    if rng.random() < _EXTREMES:
        return rng.choice((0, (1 << kind.flen) - 1))
    return rng.getrandbits(kind.flen)


def _fraction(microseconds: int, fsp: int) -> str:
    return "." + f"{microseconds:06d}"[:fsp] if fsp > 0 else ""


def _date(rng: random.Random, _: FieldType) -> str:
    if rng.random() < _EXTREMES:
        return rng.choice(("0000-00-00", "1000-01-01", "9999-12-31", "2020-02-29"))
    return f"{rng.randint(1990, 2030):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _clock(rng: random.Random, fsp: int) -> str:
    hms = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    return hms + _fraction(rng.randint(0, 999999), fsp)


def _datetime(rng: random.Random, kind: FieldType) -> str:
    if rng.random() < _EXTREMES:
        text = rng.choice(("0000-00-00 00:00:00", "1000-01-01 00:00:00", "9999-12-31 23:59:59"))
        return text + _fraction(999999 if text.startswith("9") else 0, kind.decimal)
    year = rng.randint(1990, 2030)
    return (
        f"{year:04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {_clock(rng, kind.decimal)}"
    )


def _timestamp(rng: random.Random, kind: FieldType) -> str:
    if rng.random() < _EXTREMES:
        text = rng.choice(("0000-00-00 00:00:00", "1970-01-01 00:00:01", "2038-01-19 03:14:07"))
        return text + _fraction(0, kind.decimal)
    year = rng.randint(1990, 2030)
    return (
        f"{year:04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {_clock(rng, kind.decimal)}"
    )


def _duration(rng: random.Random, kind: FieldType) -> str:
    if rng.random() < _EXTREMES:
        return rng.choice(("838:59:59", "-838:59:59", "00:00:00")) + _fraction(0, kind.decimal)
    sign = "-" if rng.random() < 0.3 else ""
    return (
        f"{sign}{rng.randint(1, 120):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
        + _fraction(rng.randint(0, 999999), kind.decimal)
    )


def _string(rng: random.Random, kind: FieldType) -> bytes:
    """Of a character column: UTF-8 without trailing spaces. Of a binary one: any bytes."""
    if kind.charset == "binary":
        return _bytes(rng, kind)
    if rng.random() < _EXTREMES:
        text = rng.choice(_ODD_TEXTS)
    else:
        longest = 200 if rng.random() < 0.05 else 24
        text = "".join(rng.choices(_ALPHABET, k=rng.randint(0, min(kind.flen, longest))))
    return text[: kind.flen].rstrip(" ").encode()


def _bytes(rng: random.Random, kind: FieldType) -> bytes:
    if rng.random() < _EXTREMES:
        value = rng.choice(_ODD_BYTES)[: kind.flen]
    else:
        value = rng.randbytes(rng.randint(0, min(kind.flen, 40)))
    return value.ljust(kind.flen, b"\x00") if kind.tp == Tp.STRING else value


def _enum(rng: random.Random, kind: FieldType) -> int:
    return rng.randint(1, len(kind.elems))


def _set(rng: random.Random, kind: FieldType) -> int:
    return rng.getrandbits(len(kind.elems))


def _json(rng: random.Random, _: FieldType) -> str:
    return json.dumps(_document(rng, depth=0), ensure_ascii=False, sort_keys=True)


def _document(rng: random.Random, depth: int) -> object:
    shape = rng.random()
    if depth >= 3 or shape < 0.4:
        return _json_scalar(rng)
    if shape < 0.6:
        return [_document(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    keys = sorted({"".join(rng.choices("abcdefgh", k=rng.randint(1, 3))) for _ in range(4)})
    return {key: _document(rng, depth + 1) for key in keys}


def _json_scalar(rng: random.Random) -> object:
    match rng.randrange(6):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice((0, -1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 42))
        case 3:
            return rng.randint(-9999, 9999) + 0.125  # never integral: prints with a fraction
        case 4:
            return rng.choice(("", "plain", "it's", 'q"q', "back\\", "tab\tnl\n", "日本", "😀"))
        case _:
            return rng.randint(-(10**6), 10**6)


_DRAW: dict[Tp, Callable[[random.Random, FieldType], Value]] = {
    **dict.fromkeys(_INTEGER_BITS, _integer),
    Tp.YEAR: _year,
    Tp.FLOAT: _float,
    Tp.DOUBLE: _double,
    Tp.NEW_DECIMAL: _decimal,
    Tp.BIT: _bits,
    Tp.DATE: _date,
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: _timestamp,
    Tp.DURATION: _duration,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: _json,
    **dict.fromkeys(
        (
            Tp.STRING,
            Tp.VARCHAR,
            Tp.VAR_STRING,
            Tp.TINY_BLOB,
            Tp.BLOB,
            Tp.MEDIUM_BLOB,
            Tp.LONG_BLOB,
        ),
        _string,
    ),
}
