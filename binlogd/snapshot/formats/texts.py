"""Values of Arrow arrays as text, column by column, and rows as lines: for CSV, SQL and checksums.

| | text |
|---|---|
| numbers | as Arrow prints them; decimals with all their digits, never with an exponent |
| DATE, DATETIME | `2001-02-03`, `2001-02-03 04:05:06.000007` |
| TIMESTAMP | the same in UTC with a `Z` behind it |
| BINARY | base64 |
| ARRAY<STRING> | joined by commas |

A NULL stays a NULL until a line is made of it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

NULL = "\\N"
CHECKSUM_BITS = 64
_MICROS_PER_S = 1_000_000


def text_of(array: pa.Array) -> pa.Array:
    """A text for each value; binary values in base64."""
    type_ = array.type
    if pa.types.is_string(type_):
        return array
    if pa.types.is_binary(type_):
        texts = [None if each is None else base64.b64encode(each) for each in array.to_pylist()]
        return pa.array(texts, pa.binary()).cast(pa.string())
    if pa.types.is_list(type_):
        return pc.binary_join(array, ",")
    if pa.types.is_duration(type_):
        return array.cast(pa.int64()).cast(pa.string())
    text = array.cast(pa.string())
    if pa.types.is_decimal(type_) and pc.any(pc.match_substring(text, "E")).as_py():
        values = array.to_pylist()
        text = pa.array([None if each is None else f"{each:f}" for each in values], pa.string())
    return text


def time_text(array: pa.Array) -> pa.Array:
    """Signed microseconds, or durations, as `[-]HH:MM:SS.ffffff`, with all the hours' digits."""
    values = array.cast(pa.int64()).to_pylist()
    return pa.array([None if each is None else _time(each) for each in values], pa.string())


def _time(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), _MICROS_PER_S)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if micros < 0 else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}.{fraction:06d}"


def replaced(array: pa.Array, pairs: Sequence[tuple[str, str]]) -> pa.Array:
    """Text with each first of a pair replaced by its second, in this order."""
    for old, new in pairs:
        if pc.any(pc.match_substring(array, old)).as_py():
            array = pc.replace_substring(array, old, new)
    return array


def lines(columns: Sequence[pa.Array]) -> bytes:
    """Rows of text with commas, one after another; a NULL must have got its text already."""
    last = columns[-1]
    comma, end, nothing = (pa.scalar(each, last.type) for each in (",", "\n", ""))
    ended = pc.binary_join_element_wise(last, end, nothing)
    return joined_bytes(pc.binary_join_element_wise(*columns[:-1], ended, comma))


def joined_bytes(array: pa.Array) -> bytes:
    """All values of an array without NULLs, one behind the other: Arrow keeps them like that."""
    if not len(array):
        return b""
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("i")
    first, last = places[array.offset], places[array.offset + len(array)]
    return bytes(memoryview(data)[first:last])


# --- what rows sum up to -------------------------------------------------------------------

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))


def checksum(columns: Sequence[pa.Array]) -> int:
    """What rows sum up to, whatever order and file format they are in, modulo 2^64.

    Of each row the values' texts (TIME as its microseconds), NULL as `\\N`, joined by tabs;
    backslash, tab and line feed inside a value are escaped by a backslash. A row in a column stands
    as its values. BLAKE2b of that, 8 bytes as a big-endian number; the sum of all rows.
    """
    if not columns or not len(columns[0]):
        return 0
    parts = [
        part
        for each in columns
        for part in (each.flatten() if pa.types.is_struct(each.type) else [each])
    ]
    texts = [pc.fill_null(_escaped(each), NULL) for each in parts]
    rows = pc.binary_join_element_wise(*texts, "\t") if len(texts) > 1 else texts[0]
    total = 0
    for row in rows.cast(pa.binary()).to_pylist():
        total += int.from_bytes(hashlib.blake2b(row, digest_size=8).digest())
    return total % (1 << CHECKSUM_BITS)


def checksum_text(total: int) -> str:
    """A row checksum as manifests have it: 16 hexadecimal digits."""
    return f"{total % (1 << CHECKSUM_BITS):016x}"


def _escaped(array: pa.Array) -> pa.Array:
    text = text_of(array)
    is_free = pa.types.is_string(array.type) or pa.types.is_list(array.type)
    return replaced(text, _ESCAPES) if is_free else text
