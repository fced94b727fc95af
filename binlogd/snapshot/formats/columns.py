"""How each MySQL type reads in Arrow, Parquet and Spark, and what that costs.

| MySQL | Arrow | Spark |
|---|---|---|
| TINYINT | int8 | TINYINT |
| TINYINT UNSIGNED, SMALLINT | int16 | SMALLINT |
| SMALLINT UNSIGNED, MEDIUMINT, INT, YEAR | int32 | INT |
| INT UNSIGNED, BIGINT | int64 | BIGINT |
| BIGINT UNSIGNED | decimal(20,0) | DECIMAL(20,0) |
| DECIMAL(p,s), p up to 38 | decimal(p,s) | DECIMAL(p,s) |
| DECIMAL(p,s), p above 38 | string | STRING: Spark's decimals end at 38 digits |
| FLOAT, DOUBLE | float, double | FLOAT, DOUBLE |
| CHAR, VARCHAR, TEXT, JSON | string | STRING |
| ENUM, SET | string | STRING: the label, the labels joined by commas |
| BINARY, VARBINARY, BLOB | binary | BINARY |
| BIT(1), BIT(2) to (63), BIT(64) | bool, int64, decimal(20,0) | BOOLEAN, BIGINT, DECIMAL(20,0) |
| DATE | date32 | DATE |
| DATETIME | timestamp[us] | TIMESTAMP_NTZ: the wall clock as it was written |
| TIMESTAMP | timestamp[us, UTC] | TIMESTAMP: an instant |
| TIME | int64 | BIGINT: microseconds; 838 hours do not fit a time of day |

Every column is nullable, whatever MySQL says. A number of an ENUM or SET that no label stands for
becomes '' and is counted in the manifest. `TypeOptions` chooses among readings:

| option | |
|---|---|
| `invalid-text` | text that is no UTF-8: `error` ends the export, `replace` puts U+FFFD and \
counts, `binary` makes every text column BINARY |
| `tinyint1` | `boolean`: what is neither 0 nor 1 is true, and counted |
| `bigint-unsigned` | `bigint`: above 2^63-1 the export ends |
| `decimal38` | `cast`: a DECIMAL with more than 38 digits is DECIMAL(38,s); a value that does not \
fit ends the export |
| `zero-dates` | a date that no calendar holds (zero year, month or day, 30 February): `null` and \
counted, `error` ends the export, `string` makes every DATE, DATETIME and TIMESTAMP a STRING |
| `set` | `array`: ARRAY<STRING> |
| `time` | `string`: [-]HH:MM:SS with its fraction; `interval`: INTERVAL DAY TO SECOND; `time`: \
Spark's TIME, and the export ends at a value outside a day |
| `json` | `variant`: Spark's VARIANT, in Parquet |
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow
from binlogd.snapshot.spec import ColumnEntry, TypeOptions
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tidb.times import duration_us

DECIMAL_DIGITS_MAX = 38
"""Of Arrow's decimal128 and of Spark."""

VARIANT = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")])
"""Spark's VARIANT, as Parquet keeps it."""

Losses = Counter[str]
"""How many values of a column lost something, by what."""

Build = Callable[[Sequence[Value], Losses], pa.Array]
"""Values of a column, as the row decoder gives them, into an Arrow array."""


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """A column on its way out: its name, its Arrow type and how values get there."""

    column: Column
    type: pa.DataType
    build: Build

    def entry(self) -> ColumnEntry:
        """How the manifest describes it."""
        return ColumnEntry(
            self.column.id,
            self.column.name,
            mysql_type(self.column),
            str(self.type),
            spark_type(self.type),
        )


def arrow_column(column: Column, options: TypeOptions) -> ArrowColumn:
    """The way out for a column."""
    type_, build = _way_out(column, options)
    return ArrowColumn(column, type_, build)


def spark_type(type_: pa.DataType) -> str:
    """Spark's name of an Arrow type, as its DDL has it."""
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"ARRAY<{spark_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return "VARIANT"
    return _SPARK_TYPES[type_]


def is_widened(old: str, new: str) -> bool:
    """Whether MySQL's rules let one Arrow type become another without a row being rewritten, and
    every value of it stays what it was."""
    numbers = ("int8", "int16", "int32", "int64", "decimal128(20, 0)")
    if old in numbers and new in numbers:
        return numbers.index(old) < numbers.index(new)
    if (old, new) in (("float", "double"), ("bool", "int64"), ("bool", "decimal128(20, 0)")):
        return True
    was, now = DECIMAL128.fullmatch(old), DECIMAL128.fullmatch(new)
    if was is None or now is None:
        return False
    return was[2] == now[2] and int(was[1]) < int(now[1])


DECIMAL128 = re.compile(r"decimal128\((\d+), (\d+)\)")
_INT64, _STRING, _BINARY = pa.int64(), pa.string(), pa.binary()
_NAIVE, _INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
_UINT64_AS_DECIMAL = pa.decimal128(20, 0)
_SPARK_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    _INT64: "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    _STRING: "STRING",
    _BINARY: "BINARY",
    pa.date32(): "DATE",
    _NAIVE: "TIMESTAMP_NTZ",
    _INSTANT: "TIMESTAMP",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
    pa.time64("us"): "TIME(6)",
}
ARROW_TYPES = (*_SPARK_TYPES, pa.list_(_STRING))
"""Of all columns, but for decimals and VARIANT."""
_SIGNED: dict[int, pa.DataType] = {
    Tp.TINY: pa.int8(),
    Tp.SHORT: pa.int16(),
    Tp.INT24: pa.int32(),
    Tp.LONG: pa.int32(),
    Tp.LONGLONG: _INT64,
    Tp.YEAR: pa.int32(),
}
_UNSIGNED: dict[int, pa.DataType] = {
    Tp.TINY: pa.int16(),
    Tp.SHORT: pa.int32(),
    Tp.INT24: pa.int32(),
    Tp.LONG: _INT64,
    Tp.YEAR: pa.int32(),
}


def _way_out(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    kind = column.field_type
    special = _SPECIAL.get(kind.tp)
    if special is not None:
        return special(column, options)
    if kind.tp in STRING_TYPES:
        return _text_way_out(column, options)
    if kind.tp == Tp.TINY and kind.flen == 1 and options.tinyint1 == "boolean":
        return pa.bool_(), _truth
    if column.is_unsigned and kind.tp == Tp.LONGLONG:
        if options.bigint_unsigned == "bigint":
            return _INT64, _refusing(column, "bigint-unsigned=bigint", _plain(_INT64))
        return _UINT64_AS_DECIMAL, _uint64
    type_ = (_UNSIGNED if column.is_unsigned else _SIGNED).get(kind.tp)
    if type_ is None:
        raise CorruptRow(f"column {column.name} has the type {kind.tp}, which no row can hold")
    return type_, _plain(type_)


def _plain(type_: pa.DataType) -> Build:
    return lambda values, _: pa.array(values, type_)


def _refusing(column: Column, option: str, build: Build) -> Build:
    """Ends the export at a value that the type which an option asked for does not hold."""

    def guarded(values: Sequence[Value], losses: Losses) -> pa.Array:
        try:
            return build(values, losses)
        except (pa.ArrowInvalid, OverflowError):
            raise CorruptRow(
                f"column {column.name} holds a value that --type {option} has no place for;"
                " export without it"
            ) from None

    return guarded


def _truth(values: Sequence[Value], losses: Losses) -> pa.Array:
    losses["not_boolean"] += sum(value not in (None, 0, 1) for value in values)
    return pa.array([None if value is None else bool(value) for value in values], pa.bool_())


def _uint64(values: Sequence[Value], _: Losses) -> pa.Array:
    return pa.array(values, pa.uint64()).cast(_UINT64_AS_DECIMAL)


def _decimal(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    kind = column.field_type
    precision, scale = (kind.flen if kind.flen > 0 else 10), max(0, kind.decimal)
    if precision > DECIMAL_DIGITS_MAX:
        if options.decimal38 == "string":
            return _STRING, _plain(_STRING)
        type_ = pa.decimal128(DECIMAL_DIGITS_MAX, scale)
        return type_, _refusing(column, "decimal38=cast", _fitting(type_))
    type_ = pa.decimal128(precision, scale)
    return type_, lambda values, _: pa.array(values, _STRING).cast(type_)


def _fitting(type_: pa.DataType) -> Build:
    """For values that may be too large; out of text Arrow casts those without a word."""

    def build(values: Sequence[Value], _: Losses) -> pa.Array:
        return pa.array([None if each is None else Decimal(str(each)) for each in values], type_)

    return build


def _bits(column: Column, _: TypeOptions) -> tuple[pa.DataType, Build]:
    width = column.field_type.flen
    if width <= 1:
        return pa.bool_(), lambda values, _: pa.array(values, _INT64).cast(pa.bool_())
    if width < 64:
        return _INT64, _plain(_INT64)
    return _UINT64_AS_DECIMAL, _uint64


# --- text and labels -----------------------------------------------------------------------


def _text_way_out(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    if column.is_binary or options.invalid_text == "binary":
        return _BINARY, _plain(_BINARY)

    def build(values: Sequence[Value], losses: Losses) -> pa.Array:
        try:
            return pa.array(values, _BINARY).cast(_STRING)
        except pa.ArrowInvalid:
            if options.invalid_text == "error":
                raise CorruptRow(
                    f"column {column.name} holds bytes that are no UTF-8; to have U+FFFD in their"
                    " place, --type invalid-text=replace, for a pipeline --option"
                    " types=invalid-text=replace"
                ) from None
        texts = [None if value is None else _repaired(value, losses) for value in values]
        return pa.array(texts, _STRING)

    return _STRING, build


def _repaired(value: Value, losses: Losses) -> str:
    assert isinstance(value, bytes)
    text = value.decode(errors="replace")
    losses["invalid_text"] += text.encode() != value
    return text


def _enum(column: Column, _: TypeOptions) -> tuple[pa.DataType, Build]:
    elems = column.field_type.elems
    labels: dict[Value, str | None] = {None: None, 0: "", **dict(enumerate(elems, 1))}

    def build(values: Sequence[Value], losses: Losses) -> pa.Array:
        losses["unknown_label"] += sum(value not in labels for value in values)
        return pa.array([labels.get(value, "") for value in values], _STRING)

    return _STRING, build


def _set(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    bits = [(1 << index, label) for index, label in enumerate(column.field_type.elems)]
    known = (1 << len(bits)) - 1
    is_array = options.set == "array"
    type_ = pa.list_(_STRING) if is_array else _STRING

    def build(values: Sequence[Value], losses: Losses) -> pa.Array:
        found: list[list[str] | str | None] = []
        for mask in values:
            if mask is None:
                found.append(None)
                continue
            assert isinstance(mask, int)
            losses["unknown_label"] += bool(mask & ~known)
            labels = [label for bit, label in bits if mask & bit]
            found.append(labels if is_array else ",".join(labels))
        return pa.array(found, type_)

    return type_, build


# --- dates and times -----------------------------------------------------------------------


def _dates(
    column: Column, options: TypeOptions, *, type_: pa.DataType, naive: pa.DataType
) -> tuple[pa.DataType, Build]:
    if options.zero_dates == "string":
        return _STRING, _plain(_STRING)
    first = pa.scalar("0001-01-01").cast(naive)

    def build(values: Sequence[Value], losses: Losses) -> pa.Array:
        try:
            array = pa.array(values, _STRING).cast(naive)
        except pa.ArrowInvalid:
            array = None
        if array is None or pc.any(pc.less(array, first)).as_py():
            if options.zero_dates == "error":
                raise CorruptRow(f"column {column.name} holds a date that no calendar has")
            kept = [value if _is_of_the_calendar(value) else None for value in values]
            losses["impossible_date"] += kept.count(None) - list(values).count(None)
            array = pa.array(kept, _STRING).cast(naive)
        return array.cast(type_)

    return type_, build


def _is_of_the_calendar(value: Value) -> bool:
    if value is None:
        return False
    assert isinstance(value, str)
    year, month, day = int(value[:4]), int(value[5:7]), int(value[8:10])
    return year > 0 and month > 0 and 0 < day <= calendar.monthrange(year, month)[1]


def _times(values: Sequence[Value], _: Losses) -> pa.Array:
    micros = [duration_us(value) if isinstance(value, str) else None for value in values]
    return pa.array(micros, _INT64)


def _times_of_day(values: Sequence[Value], losses: Losses) -> pa.Array:
    micros = _times(values, losses)
    if pc.any(pc.or_(pc.less(micros, 0), pc.greater_equal(micros, _DAY_MICROS))).as_py():
        raise OverflowError("outside a day")
    return micros.cast(pa.time64("us"))


_DAY_MICROS = 86_400_000_000


def _time(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    if options.time == "interval":
        unit = pa.duration("us")
        return unit, lambda values, losses: _times(values, losses).cast(unit)
    if options.time == "time":
        return pa.time64("us"), _refusing(column, "time=time", _times_of_day)
    return (_STRING, _plain(_STRING)) if options.time == "string" else (_INT64, _times)


def _json(column: Column, options: TypeOptions) -> tuple[pa.DataType, Build]:
    if options.json == "string":
        return _STRING, _plain(_STRING)
    from binlogd.snapshot.formats import variant  # needs PySpark, which only the job has

    return VARIANT, _refusing(
        column, "json=variant", lambda values, _: variant.built(values, VARIANT)
    )


def _always(type_: pa.DataType) -> Callable[[Column, TypeOptions], tuple[pa.DataType, Build]]:
    return lambda _, __: (type_, _plain(type_))


_SPECIAL: dict[int, Callable[[Column, TypeOptions], tuple[pa.DataType, Build]]] = {
    Tp.FLOAT: _always(pa.float32()),
    Tp.DOUBLE: _always(pa.float64()),
    Tp.NEW_DECIMAL: _decimal,
    Tp.DATE: partial(_dates, type_=pa.date32(), naive=pa.date32()),
    Tp.DATETIME: partial(_dates, type_=_NAIVE, naive=_NAIVE),
    Tp.TIMESTAMP: partial(_dates, type_=_INSTANT, naive=_NAIVE),
    Tp.DURATION: _time,
    Tp.BIT: _bits,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: _json,
}


# --- the name of a type --------------------------------------------------------------------

_NAMES = {
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.INT24: "mediumint",
    Tp.LONG: "int",
    Tp.LONGLONG: "bigint",
    Tp.FLOAT: "float",
    Tp.DOUBLE: "double",
    Tp.YEAR: "year",
    Tp.DATE: "date",
    Tp.JSON: "json",
}
_FRACTIONAL = {Tp.DATETIME: "datetime", Tp.TIMESTAMP: "timestamp", Tp.DURATION: "time"}
_TEXTS = {
    Tp.TINY_BLOB: ("tinytext", "tinyblob"),
    Tp.BLOB: ("text", "blob"),
    Tp.MEDIUM_BLOB: ("mediumtext", "mediumblob"),
    Tp.LONG_BLOB: ("longtext", "longblob"),
}
_SIZED = {
    Tp.STRING: ("char", "binary"),
    Tp.VARCHAR: ("varchar", "varbinary"),
    Tp.VAR_STRING: ("varchar", "varbinary"),
}


def mysql_type(column: Column) -> str:
    """A column's type as MySQL writes it, without character set."""
    kind = column.field_type
    tp = Tp(kind.tp)
    if tp in _FRACTIONAL:
        return _FRACTIONAL[tp] + (f"({kind.decimal})" if kind.decimal > 0 else "")
    if tp in _TEXTS:
        return _TEXTS[tp][column.is_binary]
    name = _NAMES[tp] if tp in _NAMES else _sized_type(column, tp)
    return name + (" unsigned" if column.is_unsigned and tp not in (Tp.YEAR, Tp.BIT) else "")


def _sized_type(column: Column, tp: Tp) -> str:
    kind = column.field_type
    if tp in _SIZED:
        return f"{_SIZED[tp][column.is_binary]}({kind.flen})"
    if tp in (Tp.ENUM, Tp.SET):
        labels = ",".join("'" + label.replace("'", "''") + "'" for label in kind.elems)
        return f"{tp.name.lower()}({labels})"
    if tp == Tp.BIT:
        return f"bit({kind.flen})"
    return f"decimal({kind.flen},{max(0, kind.decimal)})"
