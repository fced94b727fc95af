"""Walks along a layout give what the generic decoder gives, or refuse the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.rows.literals import laid_out
from binlogd.drainer.rows.plan import (
    Decoders,
    KeyColumn,
    generic,
    written_columns,
)
from binlogd.errors import CorruptRow
from binlogd.tidb.kinds import (
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    FLAG_UNSIGNED,
    STRING_TYPES,
    Tp,
    UnexpectedLayout,
)
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tidb.times import datetime_text, duration_text
from tests.support.row_strategies import Mutilation, mutilations

INTEGER_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
RAW = st.binary(max_size=200) | st.text(max_size=40).map(str.encode)
RAW |= st.text(alphabet="\\'\"a \n\0`%", max_size=12).map(str.encode)


@dataclass(frozen=True)
class Drawn:
    """A type and the values that it can hold."""

    kind: FieldType
    values: st.SearchStrategy[Value]


def _integers() -> list[Drawn]:
    drawn = []
    for tp, bits in INTEGER_BITS.items():
        top = (1 << bits) - 1
        small = st.integers(0, min(140, top)) | st.integers(0, min(40_000, top))
        unsigned = small | st.integers(0, top)
        drawn.append(Drawn(FieldType(tp, FLAG_UNSIGNED), unsigned))
        drawn.append(Drawn(FieldType(tp), unsigned.map(lambda n: n >> 1 ^ -(n & 1))))
    return drawn


def _packed(fsp: int) -> st.SearchStrategy[Value]:
    def packed(parts: tuple[int, int, int, int, int, int, int]) -> str:
        year, month, day, hour, minute, second, micro = parts
        number = ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
        cut = 10 ** (6 - fsp)
        return datetime_text(number << 24 | micro // cut * cut, fsp)

    year = st.sampled_from([0, 1, 78, 79, 80, 1970, 2024, 9999]) | st.integers(0, 9999)
    return st.tuples(
        year,
        st.integers(0, 12),
        st.integers(0, 31),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.just(0) | st.integers(0, 999_999),
    ).map(packed)


def _durations(fsp: int) -> st.SearchStrategy[Value]:
    unit = 10 ** (9 - fsp)
    limit = (838 * 3600 + 59 * 60 + 59) * 10**9
    return st.integers(-limit // unit, limit // unit).map(
        lambda count: duration_text(count * unit, fsp)
    )


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Value]:
    def text(unscaled: int) -> str:
        digits = str(abs(unscaled)).zfill(scale + 1)
        plain = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return ("-" if unscaled < 0 else "") + plain

    return st.integers(1 - 10**precision, 10**precision - 1).map(text)


JSON_TEXTS = ["null", "3.0", "-1", '"a\'b\\\\c"', '{"k": [1, 2.5, "x\'y"], "é": null}', "[]"]
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TYPES = [
    *_integers(),
    Drawn(FieldType(Tp.YEAR), st.sampled_from([0, 1901, 2155, 2024])),
    Drawn(FieldType(Tp.FLOAT), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    Drawn(FieldType(Tp.DOUBLE), FLOATS),
    *(Drawn(FieldType(Tp.NEW_DECIMAL, 0, p, s), _decimals(p, s)) for p, s in [(10, 0), (65, 30)]),
    Drawn(FieldType(Tp.NEW_DECIMAL, 0, 9, 9), _decimals(9, 9)),
    Drawn(FieldType(Tp.DATE), _packed(0).map(lambda text: str(text)[:10])),
    *(
        Drawn(FieldType(tp, decimal=fsp), _packed(fsp))
        for tp in (Tp.DATETIME, Tp.TIMESTAMP)
        for fsp in (0, 1, 3, 6)
    ),
    *(Drawn(FieldType(Tp.DURATION, decimal=fsp), _durations(fsp)) for fsp in (0, 2, 6)),
    *(
        Drawn(FieldType(tp, charset="utf8mb4", collate="utf8mb4_bin"), RAW)
        for tp in (Tp.VARCHAR, Tp.STRING, Tp.BLOB, Tp.LONG_BLOB)
    ),
    Drawn(FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_general_ci"), RAW),
    *(
        Drawn(FieldType(tp, charset="binary", collate="binary"), RAW)
        for tp in (Tp.VARCHAR, Tp.STRING, Tp.TINY_BLOB, Tp.MEDIUM_BLOB)
    ),
    Drawn(FieldType(Tp.ENUM, elems=("a", "b")), st.integers(0, 2)),
    Drawn(FieldType(Tp.SET, elems=("a", "b")), st.integers(0, 3)),
    Drawn(FieldType(Tp.BIT, flen=64), st.integers(0, 2**64 - 1)),
    Drawn(FieldType(Tp.JSON, charset="binary", collate="binary"), st.sampled_from(JSON_TEXTS)),
]
KEY_TYPES = [drawn for drawn in TYPES if drawn.kind.tp not in (Tp.JSON, Tp.FLOAT, Tp.DOUBLE)]


def _is_text(column: Column) -> bool:
    return column.field_type.tp in STRING_TYPES and not column.is_binary


@dataclass(frozen=True)
class Case:
    """A table with its key, and two rows of it."""

    table: TableAt
    key: tuple[KeyColumn, ...]
    old: Mapping[int, Value]
    new: Mapping[int, Value]
    handle: int

    @property
    def columns(self) -> Sequence[Column]:
        return written_columns(self.table.info)

    def decoders(self) -> tuple[Decoders, Decoders]:
        """The fast ones, and those that know every rule."""
        fast = laid_out(self.table, self.columns, self.key)
        assert fast is not None
        return fast, generic(self.table, self.columns, self.key)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layout = draw(st.sampled_from(["handle", "common", "hidden", "no key"]))
    key_size = {"handle": 1, "no key": 0}.get(layout, draw(st.integers(1, 3)))
    key_types = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=key_size, max_size=key_size))
    if layout == "handle":
        key_types = [draw(st.sampled_from(_integers()))]
    others = draw(st.lists(st.sampled_from(TYPES), min_size=1 - bool(key_types), max_size=6))
    first_id = draw(st.sampled_from([1, 60, 62, 8190]))
    columns, values = [], []
    places = draw(st.permutations([*key_types, *others]))
    for offset, drawn in enumerate(places):
        is_key = any(drawn is each for each in key_types)
        flag = drawn.kind.flag | (FLAG_NOT_NULL | FLAG_PRIMARY_KEY if is_key else 0)
        if not is_key and draw(st.booleans()):
            flag |= FLAG_NOT_NULL
        is_virtual = not is_key and offset > 0 and draw(st.integers(0, 9)) == 0
        columns.append(
            Column(
                first_id + offset,
                f"c{offset}",
                offset,
                replace(drawn.kind, flag=flag),
                generated_expr="1" if is_virtual else "",
                default=draw(st.sampled_from([None, None, "1"])) if not flag & 1 else None,
            )
        )
        one = drawn.values if flag & FLAG_NOT_NULL else st.none() | drawn.values
        values.append((draw(one), draw(one)))
    keys = [column for column in columns if column.field_type.flag & FLAG_PRIMARY_KEY]
    index = Index(1, "PRIMARY", tuple(IndexColumn(c.name, c.offset) for c in keys), is_primary=True)
    info = Table(
        7,
        "t",
        tuple(columns),
        indexes=(index,) if layout in ("common", "hidden") else (),
        pk_is_handle=layout == "handle",
        is_common_handle=layout == "common",
    )
    return Case(
        TableAt("db", info, 1, None, {}, may_lack_columns=False),
        tuple(KeyColumn(column, _is_text(column) and draw(st.booleans())) for column in keys),
        {column.id: old for column, (old, _) in zip(columns, values, strict=True)},
        {column.id: new for column, (_, new) in zip(columns, values, strict=True)},
        draw(st.integers(0, 2**40)),
    )


@given(cases())
def test_a_row_of_any_type_gives_the_same_key_and_literal_by_both_decoders(case: Case) -> None:
    fast, slow = case.decoders()
    info = case.table.info
    inserted = encode_insert(info, case.new, handle=case.handle)
    updated = encode_update(info, case.old, case.new, handle=case.handle)
    deleted = encode_delete(info, case.old, handle=case.handle)
    assert fast.update(updated) == slow.update(updated)
    assert fast.delete(deleted) == slow.delete(deleted)
    assert fast.insert(inserted) == slow.insert(inserted)


def _answers_alike(
    fast: Callable[[bytes], object], slow: Callable[[bytes], object], row: bytes
) -> None:
    try:
        answer = fast(row)
    except (UnexpectedLayout, IndexError, CorruptRow):
        return
    assert answer == slow(row)


@given(cases(), mutilations())
def test_a_damaged_row_never_gives_another_answer(case: Case, damage: Mutilation) -> None:
    fast, slow = case.decoders()
    info = case.table.info
    inserted = damage(encode_insert(info, case.new, handle=case.handle))
    updated = damage(encode_update(info, case.old, case.new, handle=case.handle))
    deleted = damage(encode_delete(info, case.old, handle=case.handle))
    _answers_alike(fast.insert, slow.insert, inserted)
    # what a row held besides its key is passed over, not judged
    with suppress(CorruptRow):
        _answers_alike(fast.update, slow.update, updated)
    with suppress(CorruptRow):
        _answers_alike(fast.delete, slow.delete, deleted)


def _table(*columns: Column, **options: bool) -> TableAt:
    return TableAt("db", Table(1, "t", columns, **options), 1, None, {}, may_lack_columns=False)  # type: ignore[arg-type]


ID = Column(1, "id", 0, FieldType(Tp.LONGLONG, FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
NAME = Column(2, "n", 1, FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin"))


def test_rows_in_another_order_or_with_other_columns_are_odd() -> None:
    table = _table(ID, NAME, pk_is_handle=True)
    fast = laid_out(table, [ID, NAME], [KeyColumn(ID)])
    assert fast is not None
    row = encode_insert(table.info, {1: 5, 2: b"x"}, handle=None)
    assert fast.insert(row) == (5, b"(5,'x')")
    later = replace(NAME, id=3)
    other = _table(ID, later, pk_is_handle=True)
    with pytest.raises(UnexpectedLayout):
        fast.insert(encode_insert(other.info, {1: 5, 3: b"x"}, handle=None))


def test_a_key_loses_its_trailing_spaces_and_only_quotes_and_backslashes_are_doubled() -> None:
    name = replace(NAME, field_type=replace(NAME.field_type, flag=FLAG_NOT_NULL))
    table, key = _table(ID, name, pk_is_handle=True), [KeyColumn(name, strips_spaces=True)]
    fast, slow = laid_out(table, [ID, name], key), generic(table, [ID, name], key)
    assert fast is not None
    row = encode_delete(table.info, {1: 1, 2: b"it's \\ \0\xff  "}, handle=None)
    assert fast.delete(row) == slow.delete(row) == b"'it''s \\\\ \0\xff'"


def test_a_table_with_an_array_column_is_walked_and_one_of_an_unknown_type_is_not() -> None:
    hidden = Column(2, "h", 1, FieldType(Tp.LONGLONG, is_array=True), generated_expr="x")
    table = _table(hidden, ID, pk_is_handle=True)
    fast = laid_out(table, [ID], [KeyColumn(ID)])
    assert fast is not None
    assert fast.delete(encode_delete(table.info, {1: 7, 2: "[1, 2]"}, handle=None)) == 7
    shape = replace(hidden, field_type=FieldType(Tp.GEOMETRY), generated_expr="")
    assert laid_out(_table(ID, shape, pk_is_handle=True), [ID], [KeyColumn(ID)]) is None
