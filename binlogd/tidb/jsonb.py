"""TiDB's binary JSON: to the text that TiDB prints, and from text.

One difference to TiDB's text, on purpose: an integral double keeps its point (`3.0`, where TiDB
prints `3`), so that the document read again has a double in the same place.
Temporal and opaque values have no literal in JSON: they become the strings that TiDB prints.

The bodies of a container lie one behind the other inside it, so the text of a document is bounded
by its bytes: what overlaps is corrupt. Nesting is limited.
Source: pingcap/tidb types/json_binary.go (the comment at its head), types/json_constants.go.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum

from binlogd.errors import CorruptRow
from binlogd.tidb.times import datetime_text, duration_text
from binlogd.tidb.varint import read_uvarint, uvarint


class JsonType(IntEnum):
    """The first byte of a binary JSON value."""

    OBJECT = 0x01
    ARRAY = 0x03
    LITERAL = 0x04
    INT64 = 0x09
    UINT64 = 0x0A
    DOUBLE = 0x0B
    STRING = 0x0C
    OPAQUE = 0x0D
    DATE = 0x0E
    DATETIME = 0x0F
    TIMESTAMP = 0x10
    DURATION = 0x11


DEPTH_MAX = 128
"""Containers inside each other; TiDB and MySQL stop at 100."""

_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_HEAD = struct.Struct("<II")
_KEY = struct.Struct("<IH")
_VALUE = struct.Struct("<BI")
_LITERALS = ("null", "true", "false")
_FIXED = {
    JsonType.LITERAL: 1,
    JsonType.INT64: 8,
    JsonType.UINT64: 8,
    JsonType.DOUBLE: 8,
    JsonType.DATE: 8,
    JsonType.DATETIME: 8,
    JsonType.TIMESTAMP: 8,
    JsonType.DURATION: 12,
}


def json_end(data: bytes, at: int) -> int:
    """The offset behind the binary JSON (type code and body) that starts at `at`."""
    kind = data[at]
    at += 1
    if kind in (JsonType.OBJECT, JsonType.ARRAY):
        end = at + _container_head(data, at, len(data))[1]
    else:
        end = _scalar(data, kind, at)[1]
    if end > len(data):
        raise CorruptRow(f"a JSON value at offset {at} of {len(data)} is cut")
    return end


def json_text(binary: bytes) -> str:
    """The text of one binary JSON value (type code and body). Raises CorruptRow."""
    try:
        return _text(binary, binary[0], 1, len(binary), DEPTH_MAX)[0]
    except (IndexError, struct.error) as error:
        raise CorruptRow("a JSON value is cut") from error


def json_bytes(text: str | bytes) -> bytes:
    """The binary form of a JSON document, as TiDB makes it of text. Raises ValueError."""
    try:
        return json_bytes_of(json.loads(text, parse_int=_number, parse_constant=_refused))
    except RecursionError as error:
        raise ValueError("JSON nested too deep") from error


def json_bytes_of(value: object) -> bytes:
    """The binary form of a document of None, bool, int, float, str, list and dict. Keys are sorted
    by their bytes. Raises ValueError for anything else, and for NaN."""
    kind, body = _binary(value)
    return bytes((kind,)) + body


# --- to text ---------------------------------------------------------------------------


def _container_head(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Number of elements and size in bytes of the container whose body is at `at`."""
    if at + 8 > limit:
        raise CorruptRow("a JSON container is cut")
    count, size = _HEAD.unpack_from(data, at)
    if size < 8 or at + size > limit:
        raise CorruptRow(f"a JSON container of {size} bytes at offset {at} of {limit}")
    return count, size


def _text(data: bytes, kind: int, at: int, limit: int, depth: int) -> tuple[str, int]:
    """Text and end of the value of `kind` with its body at `at`, which ends before `limit`."""
    if kind not in (JsonType.OBJECT, JsonType.ARRAY):
        text, end = _scalar(data, kind, at)
        if end > limit:
            raise CorruptRow("a JSON value reaches out of its container")
        return text(data, at, end), end
    if depth == 0:
        raise CorruptRow(f"JSON nested deeper than {DEPTH_MAX}")
    count, size = _container_head(data, at, limit)
    end = at + size
    key_entries = at + 8
    value_entries = key_entries + (6 * count if kind == JsonType.OBJECT else 0)
    bodies = value_entries + 5 * count
    if bodies > end:
        raise CorruptRow(f"a JSON container of {size} bytes cannot hold {count} elements")
    keys: list[str] = []
    if kind == JsonType.OBJECT:
        keys, bodies = _keys(data, at, count, bodies, end)
    parts: list[str] = []
    for entry in range(value_entries, value_entries + 5 * count, 5):
        inner, offset = _VALUE.unpack_from(data, entry)
        if inner == JsonType.LITERAL:
            parts.append(_literal(data, entry + 1, entry + 2))
            continue
        if at + offset < bodies:
            raise CorruptRow(f"JSON values overlap at offset {at + offset}")
        text_of, bodies = _text(data, inner, at + offset, end, depth - 1)
        parts.append(text_of)
    if kind == JsonType.ARRAY:
        return f"[{', '.join(parts)}]", end
    pairs = ", ".join(f"{key}: {part}" for key, part in zip(keys, parts, strict=True))
    return f"{{{pairs}}}", end


def _keys(data: bytes, at: int, count: int, bodies: int, end: int) -> tuple[list[str], int]:
    """The quoted keys of the object at `at`, and the offset behind the last of them."""
    keys: list[str] = []
    for entry in range(at + 8, at + 8 + 6 * count, 6):
        offset, length = _KEY.unpack_from(data, entry)
        start = at + offset
        if start < bodies or start + length > end:
            raise CorruptRow(f"a JSON key of {length} bytes at offset {start} of {end}")
        bodies = start + length
        keys.append(_quoted(data[start:bodies]))
    return keys, bodies


def _scalar(data: bytes, kind: int, at: int) -> tuple[Callable[[bytes, int, int], str], int]:
    """How to print the scalar of `kind` with its body at `at`, and the offset behind it."""
    printer = _PRINTERS.get(kind)
    if printer is None:
        raise CorruptRow(f"unknown JSON type {kind} at offset {at}")
    if kind in _FIXED:
        return printer, at + _FIXED[JsonType(kind)]
    start = at if kind == JsonType.STRING else at + 1
    length, body = _length(data, start)
    return printer, body + length


def _length(data: bytes, at: int) -> tuple[int, int]:
    length, end = read_uvarint(data, at)
    if length >> 32:
        raise CorruptRow(f"a JSON length at offset {at} has more than 32 bits")
    return length, end


def _literal(data: bytes, at: int, _end: int) -> str:
    if data[at] >= len(_LITERALS):
        raise CorruptRow(f"JSON literal {data[at]}")
    return _LITERALS[data[at]]


def double_text(value: float) -> str:
    """A double as it stands in JSON text: shortest digits, always with a point or an exponent.
    Positional from 1e-6 up to 1e21, as in JavaScript. Raises CorruptRow for NaN and infinities."""
    text = repr(value)
    if "e" not in text:
        if "n" in text:
            raise CorruptRow(f"JSON cannot hold the double {text}")
        if abs(value) >= 1e-4 or value == 0.0:
            return text
    if 1e-6 <= abs(value) < 1e21:
        text = format(Decimal(text), "f")
        return text if "." in text else text + ".0"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"


def _opaque(data: bytes, at: int, end: int) -> str:
    body = data[_length(data, at + 1)[1] : end]
    return f'"base64:type{data[at]}:{base64.b64encode(body).decode()}"'


def _packed_time(data: bytes, at: int) -> int:
    """The bit field of a date or time as a packed time (see times.py)."""
    bits: int = _U64.unpack_from(data, at)[0]
    year, month, day = bits >> 50, bits >> 46 & 15, bits >> 41 & 31
    hour, minute, second = bits >> 36 & 31, bits >> 30 & 63, bits >> 24 & 63
    if month > 12:
        raise CorruptRow(f"a JSON date in month {month}")
    ymd = (year * 13 + month) << 5 | day
    hms = hour << 12 | minute << 6 | second
    return (ymd << 17 | hms) << 24 | bits >> 4 & 0xFFFFF


def _datetime(data: bytes, at: int, _end: int) -> str:
    return f'"{datetime_text(_packed_time(data, at), 6)}"'


_PRINTERS: dict[int, Callable[[bytes, int, int], str]] = {
    JsonType.LITERAL: _literal,
    JsonType.INT64: lambda data, at, _: str(_I64.unpack_from(data, at)[0]),
    JsonType.UINT64: lambda data, at, _: str(_U64.unpack_from(data, at)[0]),
    JsonType.DOUBLE: lambda data, at, _: double_text(_F64.unpack_from(data, at)[0]),
    JsonType.STRING: lambda data, at, end: _quoted(data[_length(data, at)[1] : end]),
    JsonType.OPAQUE: _opaque,
    JsonType.DATE: lambda data, at, _: f'"{datetime_text(_packed_time(data, at), 0)[:10]}"',
    JsonType.DATETIME: _datetime,
    JsonType.TIMESTAMP: _datetime,
    JsonType.DURATION: lambda data, at, _: f'"{duration_text(_I64.unpack_from(data, at)[0], 6)}"',
}

_PLAIN = re.compile(r'[^"\\\x00-\x1f\u2028\u2029\udc80-\udcff]*')
_HALVES = re.compile(f"[{chr(0xD800)}-{chr(0xDFFF)}]")
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), 0x2028, 0x2029)}
_ESCAPES |= dict.fromkeys(range(0xDC80, 0xDD00), "\\ufffd")
_ESCAPES |= {ord(each): f"\\{each}" for each in '"\\'}
_ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


def _quoted(raw: bytes) -> str:
    """A JSON string as Go prints it; each byte that is no UTF-8 becomes `\\ufffd`."""
    text = raw.decode("utf-8", "surrogateescape")
    if _PLAIN.fullmatch(text) is None:
        text = text.translate(_ESCAPES)
    return f'"{text}"'


# --- from text -------------------------------------------------------------------------


def _number(text: str) -> int | float:
    value = int(text) if len(text) <= 20 else None
    return float(text) if value is None or not -(1 << 63) <= value < 1 << 64 else value


def _refused(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _utf8(text: str) -> bytes:
    """UTF-8; half a surrogate pair (`"\\ud800"`) is U+FFFD, as in Go."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _HALVES.sub("\ufffd", text).encode()


def _binary(value: object) -> tuple[int, bytes]:  # noqa: PLR0911 - one return for each JSON type
    match value:
        case None:
            return JsonType.LITERAL, b"\x00"
        case bool():
            return JsonType.LITERAL, b"\x01" if value else b"\x02"
        case int() if value < 1 << 63:
            return JsonType.INT64, value.to_bytes(8, "little", signed=True)
        case int():
            return JsonType.UINT64, value.to_bytes(8, "little")
        case float():
            if value - value != 0.0:
                raise ValueError(f"JSON cannot hold {value}")
            return JsonType.DOUBLE, _F64.pack(value)
        case str():
            raw = _utf8(value)
            return JsonType.STRING, uvarint(len(raw)) + raw
        case list():
            return JsonType.ARRAY, _container(value, None)
        case dict():
            named = {_utf8(key): element for key, element in value.items()}
            keys = sorted(named)
            return JsonType.OBJECT, _container([named[key] for key in keys], keys)
        case _:
            raise ValueError(f"JSON cannot hold a {type(value).__name__}")


def _container(values: list[object], keys: list[bytes] | None) -> bytes:
    """The body of an array, or of an object with sorted keys."""
    names = keys or []
    at = 8 + 6 * len(names) + 5 * len(values)
    key_entries, value_entries, bodies = bytearray(), bytearray(), bytearray()
    for name in names:
        key_entries += _KEY.pack(at + len(bodies), len(name))
        bodies += name
    for value in values:
        kind, body = _binary(value)
        if kind == JsonType.LITERAL:
            value_entries += bytes((kind,)) + body.ljust(4, b"\x00")
        else:
            value_entries += _VALUE.pack(kind, at + len(bodies))
            bodies += body
    head = _HEAD.pack(len(values), at + len(bodies))
    return head + bytes(key_entries) + bytes(value_entries) + bytes(bodies)
