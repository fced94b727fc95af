"""Hypothesis strategies: tables with columns of every type, and values that fit them."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import strategies as st

from binlogd.tidb.columns import Value
from binlogd.tidb.jsonb import json_bytes, json_text
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, SchemaState, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt

BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
BLOBS = (Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB)
MEMBERS = tuple(f"m{each}" for each in range(64))
COLLATIONS = ("utf8mb4_bin", "utf8mb4_general_ci")

Typed = tuple[FieldType, st.SearchStrategy[Value]]


def _fraction(fsp: int) -> st.SearchStrategy[str]:
    digits = st.integers(0, 10**fsp - 1)
    return digits.map(lambda each: f".{each:0{fsp}d}" if fsp else "")


def _clock(hours_max: int) -> st.SearchStrategy[str]:
    parts = st.tuples(st.integers(0, hours_max), st.integers(0, 59), st.integers(0, 59))
    return parts.map(lambda each: f"{each[0]:02d}:{each[1]:02d}:{each[2]:02d}")


def _day() -> st.SearchStrategy[str]:
    """MySQL's days: month and day may be zero, and every month may have 31 days."""
    parts = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
    return parts.map(lambda each: f"{each[0]:04d}-{each[1]:02d}-{each[2]:02d}")


@st.composite
def _integers(draw: st.DrawFn) -> Typed:
    tp = draw(st.sampled_from(list(BITS)))
    half = 1 << BITS[tp] - 1
    if draw(st.booleans()):
        return FieldType(tp, FLAG_UNSIGNED), st.integers(0, 2 * half - 1)
    return FieldType(tp), st.integers(-half, half - 1)


@st.composite
def _numbers(draw: st.DrawFn) -> Typed:
    bits = draw(st.integers(1, 64))
    members = MEMBERS[: draw(st.integers(1, 64))]
    return draw(
        st.sampled_from(
            [
                (FieldType(Tp.BIT, FLAG_UNSIGNED, bits), st.integers(0, (1 << bits) - 1)),
                (FieldType(Tp.ENUM, elems=members), st.integers(0, len(members))),
                (FieldType(Tp.SET, elems=members), st.integers(0, (1 << len(members)) - 1)),
                (FieldType(Tp.YEAR, FLAG_UNSIGNED, 4), st.integers(1901, 2155) | st.just(0)),
                (FieldType(Tp.FLOAT), st.floats(allow_nan=False, allow_infinity=False, width=32)),
                (FieldType(Tp.DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
            ]
        )
    )


@st.composite
def _decimals(draw: st.DrawFn) -> Typed:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(precision, 30)))
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return FieldType(Tp.NEW_DECIMAL, 0, precision, scale), unscaled.map(
        lambda each: decimal_text(each, scale)
    )


def decimal_text(unscaled: int, scale: int) -> str:
    """An integer with its point moved `scale` digits to the left."""
    digits = str(abs(unscaled)).zfill(scale + 1)
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return "-" + text if unscaled < 0 else text


@st.composite
def _times(draw: st.DrawFn) -> Typed:
    fsp = draw(st.integers(0, 6))
    moments = st.tuples(_day(), _clock(23), _fraction(fsp)).map(lambda e: f"{e[0]} {e[1]}{e[2]}")
    signs = st.sampled_from(["", "-"])
    durations = st.tuples(signs, _clock(838), _fraction(fsp)).map("".join)
    zero = "00:00:00" + ("." + "0" * fsp if fsp else "")
    return draw(
        st.sampled_from(
            [
                (FieldType(Tp.DATE), _day()),
                (FieldType(Tp.DATETIME, decimal=fsp), moments),
                (FieldType(Tp.TIMESTAMP, decimal=fsp), moments),
                (
                    FieldType(Tp.DURATION, decimal=fsp),
                    durations.map(lambda each: zero if each == "-" + zero else each),
                ),
            ]
        )
    )


@st.composite
def _strings(draw: st.DrawFn) -> Typed:
    tp = draw(st.sampled_from([Tp.VARCHAR, Tp.STRING, Tp.VAR_STRING, *BLOBS]))
    if draw(st.booleans()):
        kind = FieldType(tp, 0, 200, charset="binary", collate="binary")
        return kind, st.binary(max_size=200)
    collate = draw(st.sampled_from(COLLATIONS))
    kind = FieldType(tp, 0, 200, charset="utf8mb4", collate=collate)
    return kind, st.text(max_size=100).map(lambda each: each.encode("utf-8", "replace"))


def json_texts() -> st.SearchStrategy[str]:
    """Documents in the text form of the codec: keys sorted by bytes, doubles with a point."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20)
    )
    values = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )
    return values.map(lambda each: json_text(json_bytes(json.dumps(each))))


def field_types() -> st.SearchStrategy[Typed]:
    """A type, and the strategy of its values (never NULL)."""
    documents: st.SearchStrategy[Typed] = st.just((FieldType(Tp.JSON), json_texts()))
    return st.one_of(_integers(), _numbers(), _decimals(), _times(), _strings(), documents)


class Sample:
    """A table and the strategy of its rows (values by column id, NULL where allowed)."""

    def __init__(self, table: Table, values: list[st.SearchStrategy[Value]]) -> None:
        self.table = table
        self._values = dict(zip((each.id for each in table.columns), values, strict=True))

    def rows(self) -> st.SearchStrategy[dict[int, Value]]:
        """Whole rows."""
        return st.fixed_dictionaries(self._values)

    def at(self) -> TableAt:
        """The table at a moment when nothing is in flight."""
        return TableAt("test", self.table, 1, None, {}, may_lack_columns=False)

    def __repr__(self) -> str:
        return f"Sample({self.table})"


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Tables of one to eight columns: without a key, with an integer handle, or clustered."""
    typed = draw(st.lists(field_types(), min_size=1, max_size=8))
    form = draw(st.sampled_from(["rowid", "handle", "clustered"]))
    if form == "handle":
        typed[0] = draw(_integers())
    key_length = draw(st.integers(1, min(3, len(typed)))) if form == "clustered" else 0
    columns: list[Column] = []
    values: list[st.SearchStrategy[Value]] = []
    ids = sorted(draw(st.sets(st.integers(1, 300), min_size=len(typed), max_size=len(typed))))
    for place, (column_id, (kind, value)) in enumerate(zip(ids, typed, strict=True)):
        is_key = place < key_length or (form == "handle" and place == 0)
        flag = FLAG_PRIMARY_KEY | FLAG_NOT_NULL if is_key else draw(_nullability())
        if is_key and kind.charset == "utf8mb4" and kind.tp in (Tp.STRING, *BLOBS):
            value = value.map(_without_spaces)
        columns.append(_column(column_id, place, kind, flag))
        values.append(value if flag & FLAG_NOT_NULL else st.none() | value)
    return Sample(
        Table(
            id=7,
            name="t",
            columns=tuple(columns),
            indexes=_primary(key_length),
            pk_is_handle=form == "handle",
            is_common_handle=form == "clustered",
        ),
        values,
    )


def _without_spaces(value: Value) -> Value:
    """No CHAR ends with a space, and no TEXT is a whole key: a VARCHAR alone differs from its."""
    assert isinstance(value, bytes)
    return value.rstrip(b" ")


def _nullability() -> st.SearchStrategy[int]:
    return st.sampled_from([0, FLAG_NOT_NULL])


def _column(column_id: int, place: int, kind: FieldType, flag: int) -> Column:
    changed = FieldType(
        kind.tp, kind.flag | flag, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems
    )
    return Column(column_id, f"c{column_id}", place, changed, SchemaState.PUBLIC)


def _primary(key_length: int) -> tuple[Index, ...]:
    if not key_length:
        return ()
    columns = tuple(IndexColumn("", place) for place in range(key_length))
    return (Index(1, "PRIMARY", columns, is_unique=True, is_primary=True),)


Mutilation = Callable[[bytes], bytes]


_FAR = [
    b"\xff" * 9 + b"\x01",  # as a varint 2^64 - 1 or -2^63
    b"\x80" * 9 + b"\x01",
    b"\xff" * 8 + b"\x7f",
    b"\xff" * 10,  # no varint at all
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\0" * 7,
    b"\xff" * 4,
]
"""Numbers and lengths at the ends of what 64 bits hold."""


def mutilations() -> st.SearchStrategy[Mutilation]:
    """What bad memory and bad disks do to bytes: flip, cut, insert, put twice, and the numbers
    that an attacker would write."""
    spots = st.floats(0, 1, exclude_max=True)

    def flip(spot: float, bit: int) -> Mutilation:
        def apply(data: bytes) -> bytes:
            at = int(spot * len(data))
            return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]

        return apply

    def splice(spot: float, filling: bytes) -> Mutilation:
        return lambda data: data[: (at := int(spot * len(data)))] + filling + data[at:]

    def overwrite(spot: float, filling: bytes) -> Mutilation:
        return lambda data: (
            data[: (at := int(spot * len(data)))] + filling + data[at + len(filling) :]
        )

    return st.one_of(
        st.builds(overwrite, spots, st.sampled_from(_FAR)),
        st.builds(splice, spots, st.sampled_from(_FAR)),
        st.builds(flip, spots, st.integers(0, 7)),
        st.builds(splice, spots, st.binary(max_size=12)),
        spots.map(lambda spot: lambda data: data[: int(spot * len(data))]),
        st.just(lambda data: data + data),
    )
