"""Row bytes to events of `pb_binlog`, by code that is generated for each table.

Invariant. Generated code gives the bytes that `RowDecoder` and `TableEncoder` give, or refuses the
row, which then goes to them. Why it holds. The code knows one layout: the ids, the order and the
flags that TiDB writes for this table. It compares each id and each flag before it takes a value,
and the end of the row must be reached. A property test holds both ways to the same bytes.

What makes it quick: integers, text and floats stand in the file as they stand in the row, flag and
all, so they are cut out and never decoded. Only decimals, times and JSON become text.

Source: pingcap/tidb table/tables/tables.go (addInsertBinlog and its kin); tidb-binlog
drainer/translator/pb.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb import NULL_DATUM
from binlogd.drainer.messages.pb_write import (
    EntryHeads,
    PairHeads,
    TableEncoder,
    changed_head,
    column_head,
    datum_of,
    event_heads,
    uvarint,
)
from binlogd.errors import CorruptRow
from binlogd.tidb.columns import INTEGER_TYPES, NUMBER_TYPES, reader_of
from binlogd.tidb.datum import varint
from binlogd.tidb.kinds import STRING_TYPES, OddRow, SchemaState, Tp
from binlogd.tidb.model import Column, TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.wire.peek import Mutation

COMPILE_AFTER_ROWS = 64
_INSERT, _UPDATE = 0, 1  # of Mutation.sequence
_SMALL = 4096


Compiled = Callable[[bytes], bytes]


class ChangeEncoder:
    """What a transaction did to one table, from row bytes to events. Keep it, like a RowDecoder."""

    def __init__(self, table: TableAt) -> None:
        self._decoder = RowDecoder(table)
        # an insert shows columns on their way in or out too, as the original does
        columns = tuple(replace(each, state=SchemaState.PUBLIC) for each in table.info.columns)
        self._insert_decoder = RowDecoder(replace(table, info=replace(table.info, columns=columns)))
        self._encoder = TableEncoder(table.database, table.info)
        self._table = table
        self._quick_insert: Compiled = _refuse
        self._quick_update: Compiled = _refuse
        self._quick_delete: Compiled = _refuse
        self._rows_seen = 0

    def _compile(self) -> None:
        """Costs some milliseconds: a table that changes as often as its rows never gets here."""
        code = compiled(self._table)
        if code is not None:
            self._quick_insert, self._quick_update, self._quick_delete = code

    def events(self, mutation: Mutation) -> Iterator[bytes]:
        """One event a row, in the order in which the rows changed. Raises CorruptRow."""
        if self._rows_seen < COMPILE_AFTER_ROWS:
            self._rows_seen += len(mutation.sequence)
            if self._rows_seen >= COMPILE_AFTER_ROWS:
                self._compile()
        inserted, updated = iter(mutation.inserted), iter(mutation.updated)
        deleted = iter(mutation.deleted)
        for kind in mutation.sequence:
            if kind == _INSERT:
                yield self.insert(next(inserted))
            elif kind == _UPDATE:
                yield self.update(next(updated))
            else:
                yield self.delete(next(deleted))

    def insert(self, row: bytes) -> bytes:
        """The event of an inserted row. Raises CorruptRow."""
        try:
            return self._quick_insert(row)
        except (OddRow, CorruptRow, IndexError):
            return self._encoder.insert(self._insert_decoder.insert(row))

    def update(self, row: bytes) -> bytes:
        """The event of an updated row. Raises CorruptRow."""
        try:
            return self._quick_update(row)
        except (OddRow, CorruptRow, IndexError):
            return self._encoder.update(*self._decoder.update(row))

    def delete(self, row: bytes) -> bytes:
        """The event of a deleted row. Raises CorruptRow."""
        try:
            return self._quick_delete(row)
        except (OddRow, CorruptRow, IndexError):
            return self._encoder.delete(self._decoder.delete(row))


def _refuse(_row: bytes) -> bytes:
    raise OddRow


# --- the code of a table -------------------------------------------------------------------

# `b` is the row, `i` where the next datum stands; each piece leaves the datum's bytes in {v}.
_TOO_LONG = "if j - i > 10 and (j - i > 11 or b[j - 1] > 1): raise OddRow\n"  # above 64 bits
_WALK = "j = i + 1\n    while b[j] > 127: j += 1\n    j += 1\n    " + _TOO_LONG
_VARINT = (
    "    f = b[i]\n    if f == {flag}:\n"
    "        j = i + 1\n        while b[j] > 127: j += 1\n        j += 1\n"
    "        " + _TOO_LONG + "        {v} = b[i:j]; i = j\n"
    "    elif f == 0: {v} = N; i += 1\n    else: raise OddRow\n"
)
_BYTES = (
    "    f = b[i]\n    if f == 2:\n"
    "        x = b[i + 1]; j = i + 2\n"
    "        if x > 127:\n"
    "            y = b[j]; j += 1\n"
    "            if y > 127: raise OddRow\n"
    "            x = x & 127 | y << 7\n"
    "        if x & 1: raise OddRow\n"
    "        j += x >> 1\n        {v} = b[i:j]; i = j\n"
    "    elif f == 0: {v} = N; i += 1\n    else: raise OddRow\n"
)
_FLOAT = (
    "    f = b[i]\n    if f == 5: {v} = b[i:i + 9]; i += 9\n"
    "    elif f == 0: {v} = N; i += 1\n    else: raise OddRow\n"
)
_READER = "    x, i = R{n}(b, i); {v} = D{n}(x)\n"


def _read_code(column: Column, number: int, variable: str) -> str:
    tp = column.field_type.tp
    piece = _READER
    if column.field_type.is_array:
        piece = _READER
    elif tp in NUMBER_TYPES or (tp in INTEGER_TYPES and column.is_unsigned and tp != Tp.YEAR):
        piece = _VARINT.replace("{flag}", "9")
    elif tp in INTEGER_TYPES:
        piece = _VARINT.replace("{flag}", "8")
    elif tp in STRING_TYPES:
        piece = _BYTES
    elif tp in (Tp.FLOAT, Tp.DOUBLE):
        piece = _FLOAT
    return piece.replace("{v}", variable).replace("{n}", str(number))


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


def _pair_code(column: Column, number: int, variable: str, otherwise: str) -> str:
    """Column id and datum, where the column's id stands here."""
    size = 1 + len(varint(column.id))
    return (
        f"    if b[i:i + {size}] == I{number}:\n        i += {size}\n"
        f"{_indented(_read_code(column, number, variable))}"
        f"    else:\n        {otherwise}\n"
    )


def compiled(table: TableAt) -> tuple[Compiled, Compiled, Compiled] | None:
    """insert, update and delete, each from a row to its event; None for a table in the middle of
    a schema change. They raise OddRow, CorruptRow or IndexError where the layout is another."""
    info = table.info
    if table.aliases or not all(column.is_public for column in info.columns):
        return None
    return _Code(table).compiled()


class _Code:
    """Source and constants of the three functions of one table."""

    def __init__(self, table: TableAt) -> None:
        self._table, self._columns = table, table.info.columns
        self._scope: dict[str, Any] = {
            "OddRow": OddRow,
            "N": NULL_DATUM,
            "S": tuple(map(uvarint, range(_SMALL))),
            "U": uvarint,
            "C": changed_head,
            "H": event_heads(table.database, table.info),
        }
        for number, column in enumerate(self._columns):
            head = column_head(column)
            self._scope |= {
                f"I{number}": b"\x08" + varint(column.id),
                f"E{number}": EntryHeads(head),
                f"P{number}": PairHeads(head),
                f"R{number}": reader_of(column),
                f"D{number}": datum_of(column),
            }

    def compiled(self) -> tuple[Compiled, Compiled, Compiled]:
        source = self._insert() + self._update() + self._delete()
        name = f"<rows of {self._table.database}.{self._table.info.name}>"
        exec(compile(source, name, "exec"), self._scope)
        insert, update, delete = (self._scope[each] for each in ("insert", "update", "delete"))
        return insert, update, delete

    def _insert(self) -> str:
        """The handle, then the columns that it does not tell, NULLs of default NULL left out."""
        lines, given = self._handle()
        # a row without columns is one byte; a row of no byte is cut
        lines += "    if i >= len(b): raise OddRow\n    if b[i:] == N: i += 1\n"
        for number, column in enumerate(self._columns):
            variable = f"v{number}"
            is_optional = not column.not_null and column.origin_default is None
            if column.is_virtual:
                lines += f"    {variable} = N\n"
            elif given.get(number) == "handle":
                continue
            elif number in given:
                lines += _pair_code(column, number, variable, f"{variable} = {given[number]}")
            else:
                is_optional = is_optional and column.origin_default_bit is None
                otherwise = f"{variable} = N" if is_optional else "raise OddRow"
                lines += _pair_code(column, number, variable, otherwise)
        return f"def insert(b):\n{lines}{self._end()}{self._one(RowKind.INSERT)}"

    def _handle(self) -> tuple[str, dict[int, str]]:
        """Reads the handle; the variables with what it tells, by column, or "handle" if it is all
        that a row has of the column."""
        info = self._table.info
        if info.pk_is_handle:
            for number, column in enumerate(self._columns):
                if column.is_primary_key:
                    # an unsigned handle is written signed
                    code = _READER if column.is_unsigned else _read_code(column, number, "{v}")
                    code = code.replace("{v}", f"v{number}").replace("{n}", str(number))
                    return f"    i = 0\n{code}", {number: "handle"}
        index = info.primary_index() if info.is_common_handle else None
        if index is None:
            return f"    i = 0\n    if b[0] != 8: raise OddRow\n    {_WALK}    i = j\n", {}
        lines, given = "    i = 0\n", {}
        for place, part in enumerate(index.columns):
            number = part.offset
            lines += _read_code(self._columns[number], number, f"h{place}")
            if part.length < 0:
                given[number] = f"h{place}"
        return lines, given

    def _update(self) -> str:
        held = [
            (number, column) for number, column in enumerate(self._columns) if not column.is_virtual
        ]
        lines = "    i = 0\n"
        for prefix in ("v", "w"):
            for number, column in held:
                lines += _pair_code(column, number, f"{prefix}{number}", "raise OddRow")
            lines += self._row_id()
        parts = "".join(
            f"P{n}[len(v{n}) << 30 | len(w{n})], v{n}, C(len(w{n})), w{n}, "
            for n, column in held
            if not column.is_generated
        )
        return f"def update(b):\n{lines}{self._end()}{_event_code(RowKind.UPDATE, parts)}"

    def _delete(self) -> str:
        lines = "    i = 0\n"
        for number, column in enumerate(self._columns):
            lines += _pair_code(column, number, f"v{number}", "raise OddRow")
        return f"def delete(b):\n{lines}{self._row_id()}{self._end()}{self._one(RowKind.DELETE)}"

    def _row_id(self) -> str:
        """The hidden handle behind the columns, which nobody wants."""
        if self._table.info.pk_is_handle or self._table.info.is_common_handle:
            return ""
        walk = _indented(f"    {_WALK}    i = j\n")
        return f"    if b[i:i + 3] == b'\\x08\\x01\\x08':\n        i += 2\n{walk}"

    def _one(self, kind: RowKind) -> str:
        numbers = range(len(self._columns))
        return _event_code(kind, "".join(f"E{n}[len(v{n})], v{n}, " for n in numbers))

    def _end(self) -> str:
        return "    if i != len(b): raise OddRow\n"


def _event_code(kind: RowKind, parts: str) -> str:
    return (
        f"    e = b''.join((H[{kind:d}], {parts}))\n    n = len(e)\n"
        f"    return b'\\x0a' + (S[n] if n < {_SMALL} else U(n)) + e\n"
    )
