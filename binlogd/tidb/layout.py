"""What TiDB writes for the rows of a table, as data, and the walk along a row.

| row    | in front                       | then                                                |
|--------|--------------------------------|-----------------------------------------------------|
| insert | the handle, datums without ids | the columns that the handle does not tell           |
| update |                                | all columns, the hidden id; both a second time      |
| delete |                                | all columns, generated ones too, the hidden id      |

A column is a varint datum of its id, then its datum. The form of a type says which datum that is: a
new type is a line in `_FORMS`, and where a reader wants more of it than `RowDecoder` gives, a step.

Invariant. A row that is walked to its end has the columns of the layout in their order and nothing
else. Why it holds. Each id and each flag are compared before a value is taken; anything else raises
UnexpectedLayout, or IndexError where the row ends too early, and the row is left to `RowDecoder`.

Source: pingcap/tidb table/tables/tables.go (addInsertBinlog and its kin, CanSkip), util/codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import Flag, skip_datum, text_end
from binlogd.tidb.kinds import STRING_TYPES, SchemaState, Tp, UnexpectedLayout
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.varint import skip_varint, varint

if TYPE_CHECKING:
    from mypy_extensions import i64

UNEXPECTED_LAYOUT = (UnexpectedLayout, IndexError)
"""What a walk raises at a row of another layout; IndexError where the row ends too early."""
ROWID = -1
"""The column id of `_tidb_rowid`, the hidden handle, where rows that are not inserted carry it."""
WRITABLE_STATES = frozenset[int](
    {SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORGANIZATION}
)
"""States in which TiDB writes a column into insert and update rows."""
INTEGER_TYPES = frozenset[int]({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR})
NUMBER_TYPES = frozenset[int]({Tp.ENUM, Tp.SET, Tp.BIT})
"""Stored as unsigned numbers, whatever the flag of the column says."""
DATETIME_TYPES = frozenset[int]({Tp.DATETIME, Tp.TIMESTAMP, Tp.NEWDATE})


class Form(IntEnum):
    """What the datum of a column is, by its type."""

    SIGNED = 0
    UNSIGNED = 1
    BYTES = 2
    FLOAT = 3
    DECIMAL = 4
    DATE = 5
    DATETIME = 6
    DURATION = 7
    JSON = 8


FLAG_OF: dict[Form, Flag] = {
    Form.SIGNED: Flag.VARINT,
    Form.UNSIGNED: Flag.UVARINT,
    Form.BYTES: Flag.COMPACT_BYTES,
    Form.FLOAT: Flag.FLOAT,
    Form.DECIMAL: Flag.DECIMAL,
    Form.DATE: Flag.UVARINT,
    Form.DATETIME: Flag.UVARINT,
    Form.DURATION: Flag.VARINT,
    Form.JSON: Flag.JSON,
}
"""The flag that TiDB writes before a value of a form."""
_FORMS: dict[int, Form] = (
    dict.fromkeys(INTEGER_TYPES, Form.SIGNED)
    | dict.fromkeys(NUMBER_TYPES, Form.UNSIGNED)
    | dict.fromkeys(DATETIME_TYPES, Form.DATETIME)
    | dict.fromkeys(STRING_TYPES, Form.BYTES)
    | {
        Tp.FLOAT: Form.FLOAT,
        Tp.DOUBLE: Form.FLOAT,
        Tp.NEW_DECIMAL: Form.DECIMAL,
        Tp.DATE: Form.DATE,
        Tp.DURATION: Form.DURATION,
        Tp.JSON: Form.JSON,
    }
)


def form_of(column: Column) -> Form | None:
    """The form of a column's datums; None for a type that no binlog has."""
    tp = column.field_type.tp
    if column.field_type.is_array:
        return Form.JSON
    if column.is_unsigned and tp in INTEGER_TYPES and tp != Tp.YEAR:  # a YEAR is always signed
        return Form.UNSIGNED
    return _FORMS.get(tp)


class DatumPlace(NamedTuple):
    """A datum in the rows of a table. `column` is None for the hidden handle."""

    column: Column | None
    form: Form
    flag: int
    """Another one than FLAG_OF where the handle keeps the value in another way."""
    name: bytes
    """The column's id, as it stands before the datum; nothing in the handle."""
    may_lack: bool = False
    """Whether a row without the column is whole: it is NULL then, or the handle has told it."""
    is_prefix: bool = False
    """In the handle: whether it is only the beginning of the value."""


class RowLayout(NamedTuple):
    """The datums of each kind of row, in the order in which they stand."""

    handle: Sequence[DatumPlace]
    inserted: Sequence[DatumPlace]
    updated: Sequence[DatumPlace]
    deleted: Sequence[DatumPlace]


def layout_of(table: TableAt) -> RowLayout | None:
    """What the rows of a table have while no column is on its way in or out. None if a column has
    no form."""
    info = table.info
    public = [column for column in info.columns if column.is_public]
    if any(form_of(column) is None for column in public):
        return None
    handle = handle_places(info)
    keyed = {each.column.id for each in handle if each.column is not None and not each.is_prefix}
    omitted = keyed | (_null_if_lacking(table) - keyed)
    integer = info.handle_column()
    stored = [column for column in public if not column.is_virtual]
    hidden = []
    if info.has_hidden_id:
        hidden.append(DatumPlace(None, Form.SIGNED, Flag.VARINT, _name(ROWID)))
    return RowLayout(
        handle,
        [_place(each, may_lack=each.id in omitted) for each in stored if each is not integer],
        [*(_place(each) for each in stored), *hidden],
        [*(_place(each) for each in public), *hidden],
    )


def _place(column: Column, *, may_lack: bool = False) -> DatumPlace:
    form = _form(column)
    return DatumPlace(column, form, FLAG_OF[form], _name(column.id), may_lack)


def _name(column_id: int) -> bytes:
    return bytes((Flag.VARINT,)) + varint(column_id)


def _form(column: Column) -> Form:
    form = form_of(column)
    assert form is not None, "a column of a type that rows have"
    return form


def handle_places(info: Table) -> list[DatumPlace]:
    """What an inserted row begins with: an integer is signed, a TIME is as a key has it. Raises
    CorruptRow."""
    if not info.is_common_handle:
        column = info.handle_column()
        form = Form.SIGNED if column is None else _form(column)
        return [DatumPlace(column, form, Flag.VARINT, b"")]
    index = info.primary_index()
    if index is None:
        raise CorruptRow(f"table {info.name} has no index for its clustered key")
    places = []
    for part in index.columns:
        column = info.columns[part.offset]
        form = _form(column)
        flag = Flag.DURATION if form is Form.DURATION else FLAG_OF[form]
        places.append(DatumPlace(column, form, flag, b"", is_prefix=part.length >= 0))
    return places


def _null_if_lacking(table: TableAt) -> set[int]:
    """Columns that an inserted row lacks when they are NULL: their default is NULL."""
    older = {column.id: column for column in (table.defaults_from or table.info).columns}
    found = set()
    for column in table.info.columns:
        source = older.get(column.id, column)
        has_default = source.origin_default is not None or source.origin_default_bit is not None
        if not source.not_null and not column.not_null and not has_default:
            found.add(column.id)
    return found


# --- along a row ---------------------------------------------------------------------------


class DatumStep:
    """What is done with a datum: nothing, but that its end is found."""

    def __init__(self, place: DatumPlace) -> None:
        is_nullable = place.column is not None and not place.column.not_null
        self.name = place.name
        self.null = place.name + b"\0" if is_nullable else b""
        self.may_lack = place.may_lack

    def take(self, row: bytes, at: i64, _out: list[Any]) -> i64:
        """Takes the body that begins at `at`, behind its flag, and gives its end. Raises
        UNEXPECTED_LAYOUT, CorruptRow."""
        return skip_datum(row, at - 1)

    def lack(self, row: bytes, at: i64, _out: list[Any]) -> i64:
        """Where the next column begins, if what stands at `at` is NULL, or another one that may
        follow. Raises UnexpectedLayout."""
        end: i64 = at + len(self.null)
        if self.null and row[at:end] == self.null:
            return end
        end = at + len(self.name)
        if not self.may_lack or row[at:end] == self.name:
            raise UnexpectedLayout
        return at


class _SkippedNumber(DatumStep):
    def take(self, row: bytes, at: i64, _out: list[Any]) -> i64:
        return skip_varint(row, at)


class _SkippedText(DatumStep):
    def take(self, row: bytes, at: i64, _out: list[Any]) -> i64:
        size: i64 = row[at]
        return text_end(row, at) if size > 0x7F or size & 1 else at + 1 + (size >> 1)


_SKIPPED: dict[int, type[DatumStep]] = {
    Flag.VARINT: _SkippedNumber,
    Flag.UVARINT: _SkippedNumber,
    Flag.COMPACT_BYTES: _SkippedText,
}


def skipped(place: DatumPlace) -> DatumStep:
    """The step over what nobody wants."""
    return _SKIPPED.get(place.flag, DatumStep)(place)


Walk = list[tuple[bytes, int, DatumStep]]
"""Of each datum what stands before its body, the size of that, and the step to take."""


def walk_of(places: Sequence[DatumPlace], step_of: Callable[[DatumPlace], DatumStep]) -> Walk:
    """Along these datums; `step_of` gives what is done with each."""
    heads = [each.name + bytes((each.flag,)) for each in places]
    return [(head, len(head), step_of(each)) for head, each in zip(heads, places, strict=True)]


def walk(steps: Walk, row: bytes, at: i64, out: list[Any]) -> i64:
    """Takes a row at `at`, gives the last datum's end. Raises UNEXPECTED_LAYOUT, CorruptRow."""
    for head, size, step in steps:
        body: i64 = at + size
        at = step.take(row, body, out) if row[at:body] == head else step.lack(row, at, out)
    return at


def end_of_insert(row: bytes, begin: i64, at: i64) -> None:
    """Whether an inserted row, columns from `begin` to `at`, is whole. Raises UnexpectedLayout."""
    if at == begin:  # a row in which no column stands is a single NULL
        if row[at:] != b"\0":
            raise UnexpectedLayout
    elif at != len(row):
        raise UnexpectedLayout
