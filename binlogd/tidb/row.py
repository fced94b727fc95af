"""Rows of a binlog: bytes to values by column id, and back.

Invariant. A decoder gives exactly the columns its docstring names, or raises CorruptRow; nothing
else escapes it, whatever the bytes are. Columns are matched by id alone.
Why it holds. Every read is bounded by the row. An id that the table does not know is stepped over,
one that only a coming schema knows is looked up in `TableAt.aliases`, and a column that the row
lacks is filled by TiDB's own rule or refused.
Source: pingcap/tidb sessionctx/binloginfo, table/tables/tables.go (addInsertBinlog,
addUpdateBinlog, addDeleteBinlog), tablecodec/tablecodec.go; tidb-binlog drainer/translator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from binlogd.errors import CorruptRow
from binlogd.tidb.columns import Converter, Reader, converter_of, reader_of
from binlogd.tidb.columns import Value as Value
from binlogd.tidb.datum import Flag, Natural, read_datum, skip_datum
from binlogd.tidb.defaults import in_form_of, missing_value
from binlogd.tidb.encode import encode_delete as encode_delete
from binlogd.tidb.encode import encode_insert as encode_insert
from binlogd.tidb.encode import encode_update as encode_update
from binlogd.tidb.jsonb import json_text
from binlogd.tidb.layout import WRITABLE_STATES, handle_places
from binlogd.tidb.model import Column, TableAt

_ID_FLAG = int(Flag.VARINT)
_ID_FLAGS = frozenset[int]({Flag.INT, Flag.UINT, Flag.VARINT, Flag.UVARINT})
T = TypeVar("T")


class RowDecoder:
    """The rows of one table at one moment. Cheap to keep, a little dear to make: keep it."""

    def __init__(self, table: TableAt) -> None:
        self._table = table
        info = table.info
        public = [column for column in info.columns if column.is_public]
        self._columns = {column.id: column for column in public}
        self._wanted = tuple(column.id for column in public if not column.is_virtual)
        self._all_readers: dict[int, Reader] = {each.id: reader_of(each) for each in public}
        self._readers = {each: self._all_readers[each] for each in self._wanted}
        self._converters: dict[int, Converter] = {each.id: converter_of(each) for each in public}
        self.aliases = table.aliases
        """The ids that columns have in a coming schema."""
        self._defaults: dict[int, Value] = {}
        known = table.defaults_from
        self._known = {column.id: column for column in known.columns} if known else {}
        handle = info.handle_column()
        self._handle_id = handle.id if handle else None
        self._handle_ids = self._common_handle() if info.is_common_handle else None

    def insert(self, row: bytes) -> dict[int, Value]:
        """Every public column that is not virtual. Raises CorruptRow."""
        return _guarded("an insert", self._insert, row)

    def update(self, row: bytes) -> tuple[dict[int, Value], dict[int, Value]]:
        """Every public column that is not virtual, before and after. Raises CorruptRow.

        Columns that the row lacks, where the table may lack some, have the same filled-in value
        on both sides; `columns_held` tells which are not of that kind.
        """
        return _guarded("an update", self._update, row)

    def delete(self, row: bytes) -> dict[int, Value]:
        """The public columns that the row has, virtual ones too, and those that are newer than
        the row. A column on its way out may be missing. Raises CorruptRow."""
        return _guarded("a delete", self._delete, row)

    def columns_held(self, update: bytes) -> frozenset[int]:
        """The ids of the columns whose values an update row itself has. Raises CorruptRow."""
        return _guarded("an update", lambda row: frozenset(self._halves(row)[0]), update)

    def defaults(self, columns: Iterable[int]) -> dict[int, Value]:
        """What it means that a row lacks these columns."""
        return {each: self._default(each) for each in columns}

    # --- the three kinds ----------------------------------------------------------------

    def _insert(self, row: bytes) -> dict[int, Value]:
        values: dict[int, Value] = {}
        if self._handle_ids is not None:
            at, starts = self._skip_handle(row)
            self._whole(self._readers, row, at, values)
            for column_id, start in starts.items():
                if column_id not in values:
                    values[column_id] = self._readers[column_id](row, start)[0]
        elif self._handle_id is not None:
            handle, at = self._readers[self._handle_id](row, 0)
            self._whole(self._readers, row, at, values)
            values.setdefault(self._handle_id, handle)
        else:
            self._whole(self._readers, row, skip_datum(row, 0), values)
        if len(values) < len(self._wanted):
            for column_id in self._wanted:
                if column_id not in values:
                    values[column_id] = self._default(column_id)
        return values

    def _update(self, row: bytes) -> tuple[dict[int, Value], dict[int, Value]]:
        old, new = self._halves(row)
        if len(old) < len(self._wanted):
            lacking = [each for each in self._wanted if each not in old]
            if not self._table.may_lack_columns:
                names = ", ".join(self._columns[each].name for each in lacking)
                raise CorruptRow(f"no value for {names}")
            for column_id in lacking:
                old[column_id] = new[column_id] = self._default(column_id)
        return old, new

    def _halves(self, row: bytes) -> tuple[dict[int, Value], dict[int, Value]]:
        old: dict[int, Value] = {}
        new: dict[int, Value] = {}
        at = self._part(self._readers, row, 0, old)
        at = self._part(self._readers, row, at, new)
        if at != len(row):
            raise CorruptRow(f"a third value of a column at offset {at} of {len(row)}")
        if old.keys() != new.keys():
            names = ", ".join(self._columns[each].name for each in sorted(old.keys() ^ new.keys()))
            raise CorruptRow(f"one value only of {names}")
        return old, new

    def _delete(self, row: bytes) -> dict[int, Value]:
        values: dict[int, Value] = {}
        self._whole(self._all_readers, row, 0, values)
        if self._known and len(values) < len(self._columns):
            for column_id in self._wanted:
                if column_id not in values and column_id not in self._known:
                    values[column_id] = self._default(column_id)
        return values

    # --- parts of a row -----------------------------------------------------------------

    def _common_handle(self) -> dict[int, int] | None:
        """Column id to place in the handle, of the key columns that the row may leave out."""
        places = handle_places(self._table.info)
        self._handle_length = len(places)
        return {
            each.column.id: place
            for place, each in enumerate(places)
            if each.column and not each.is_prefix and each.column.id in self._readers
        }

    def _skip_handle(self, row: bytes) -> tuple[int, dict[int, int]]:
        """The offset behind a clustered key, and where the datums of whole columns start."""
        starts = [0]
        for _ in range(self._handle_length):
            starts.append(skip_datum(row, starts[-1]))
        assert self._handle_ids is not None
        return starts[-1], {each: starts[place] for each, place in self._handle_ids.items()}

    def _whole(
        self, readers: dict[int, Reader], row: bytes, at: int, values: dict[int, Value]
    ) -> None:
        """One part, up to the end of the row."""
        end = self._part(readers, row, at, values)
        if end != len(row):
            raise CorruptRow(f"a second value of a column at offset {end} of {len(row)}")

    def _part(
        self, readers: dict[int, Reader], row: bytes, at: int, values: dict[int, Value]
    ) -> int:
        """Pairs of column id and datum, up to the first id that comes again, or the end."""
        if row[at] == Flag.NIL:  # a part without columns
            return at + 1
        end = len(row)
        spare: dict[int, tuple[int, Natural]] = {}
        while at < end:
            byte = row[at + 1]
            if row[at] == _ID_FLAG and byte < 0x80:
                column_id, start = (byte >> 1) ^ -(byte & 1), at + 2
            else:
                column_id, start = _column_id(row, at)
            reader = readers.get(column_id)
            if reader is None:
                if column_id in spare:
                    break
                at = self._set_aside(column_id, row, start, spare)
            elif column_id in values:
                break
            else:
                values[column_id], at = reader(row, start)
        if spare:
            self._take_aliased(readers, spare, values)
        return at

    def _set_aside(
        self, column_id: int, row: bytes, at: int, spare: dict[int, tuple[int, Natural]]
    ) -> int:
        """Keep the datum of a column that only the coming schema knows; step over any other."""
        if column_id not in self.aliases:
            return skip_datum(row, at)
        flag, natural, at = read_datum(row, at)
        spare[column_id] = flag, natural
        return at

    def _take_aliased(
        self,
        readers: dict[int, Reader],
        spare: dict[int, tuple[int, Natural]],
        values: dict[int, Value],
    ) -> None:
        """Values under an id of a coming schema, where the row does not have today's id too."""
        for coming_id, (flag, natural) in spare.items():
            column_id = self.aliases[coming_id]
            if column_id in readers and column_id not in values:
                values[column_id] = self._as_of_today(column_id, flag, natural)

    def _as_of_today(self, column_id: int, flag: int, natural: Natural) -> Value:
        """A datum of the coming type of a column in the form of its present type."""
        if natural is None:
            return None
        try:
            return self._converters[column_id](flag, natural)
        except CorruptRow:
            column = replace(self._columns[column_id], origin_default_bit=None)
            if isinstance(natural, bytes):
                text = (
                    json_text(natural) if flag == Flag.JSON else natural.decode("utf-8", "replace")
                )
            else:
                text = str(natural)
            return in_form_of(column, text)

    # --- missing columns ----------------------------------------------------------------

    def _default(self, column_id: int) -> Value:
        if column_id not in self._defaults:
            self._defaults[column_id] = self._missing(self._columns[column_id])
        return self._defaults[column_id]

    def _missing(self, column: Column) -> Value:
        """What it means that a row lacks the column, by the table as the row's writer saw it.

        TiDB leaves out a NULL where the default is NULL. Up to 4.0.7 it did not look at the origin
        default: in a column that the writer could write, a missing value is NULL all the same.
        """
        known = self._known.get(column.id)
        if known is None:
            return missing_value(column)
        is_written = known.state in WRITABLE_STATES and not self._table.may_lack_columns
        if is_written and not known.not_null:
            return None
        return missing_value(
            replace(
                column,
                origin_default=known.origin_default,
                origin_default_bit=known.origin_default_bit,
                field_type=replace(column.field_type, flag=known.field_type.flag),
            )
        )


def _column_id(row: bytes, at: int) -> tuple[int, int]:
    """A column id, an integer in any form, and the offset behind it."""
    flag, value, end = read_datum(row, at)
    if flag not in _ID_FLAGS or not isinstance(value, int):
        raise CorruptRow(f"a datum with flag {flag} stands for a column id at offset {at}")
    return value, end


def _guarded(kind: str, decode: Callable[[bytes], T], row: bytes) -> T:
    try:
        return decode(row)
    except CorruptRow as error:
        raise CorruptRow(f"{kind} row of {len(row)} bytes: {error}") from error
    except IndexError as error:
        raise CorruptRow(f"{kind} row of {len(row)} bytes is cut") from error
