"""Row bytes to key and SQL literal, by code that is generated for each table.

Invariant. A plan gives the literal and the key that the generic decoder gives, or refuses the row.
Why it holds. The generated code knows one layout: the ids, order and flags that TiDB writes for
this table. Each column's id and flag are compared before its value is read, and the end of the row
must be reached; anything else raises OddRow (or IndexError at the end of the bytes), and the row
goes to `RowDecoder`, which knows every rule. A property test holds both to the same answers.

The old half of an update gives its key only; the rest is stepped over. So does a deleted row,
whose tail behind the key is not even looked at.

Beside `layout`, which does the same: compiled, that takes half of this one's time, as Python twice.
So this is for a process in which nothing is compiled, and for clustered keys of several columns,
which `layout` leaves out (docs/decisions/0052-compiled.md).

Source: pingcap/tidb table/tables/tables.go (addInsertBinlog and its kin), util/rowcodec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from binlogd.drainer.sql import NULL, escaped, float_literal, renderer, tuple_of
from binlogd.errors import CorruptRow
from binlogd.tidb.columns import INTEGER_TYPES, NUMBER_TYPES, Value
from binlogd.tidb.datum import read_float, read_uvarint, skip_datum, varint
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.jsonb import json_end, json_text
from binlogd.tidb.kinds import STRING_TYPES, OddRow, Tp
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.tidb.times import clock_text, datetime_text, day_text, duration_text

Key = int | bytes
"""The literal of a key: an integer for a key of one integer, so that keys sort as they lie."""


ODD = (OddRow, IndexError)
"""What generated code raises at such a row; IndexError where the row ends too early."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key by which rows are merged; never NULL.

    strips_spaces: trailing spaces do not count where the key is compared (PAD SPACE).
    """

    column: Column
    strips_spaces: bool = False

    def normal(self, value: Value) -> Value:
        """The value that stands for all that are the same key."""
        if self.strips_spaces and isinstance(value, bytes):
            return value.rstrip(b" ")
        return value


@dataclass(frozen=True, slots=True)
class Decoders:
    """Row bytes to key and row literal. A literal has its parentheses: `(1,'a')`.

    Raise ODD (compiled ones), or CorruptRow.
    """

    insert: Callable[[bytes], tuple[Key, bytes]]
    update: Callable[[bytes], tuple[Key, Key, bytes]]
    """Old key, new key, new row."""
    delete: Callable[[bytes], Key]


def generic(table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]) -> Decoders:
    """Decoders over RowDecoder: any row, at a third of the speed. They raise CorruptRow only."""
    decoder = RowDecoder(table)
    row_of = _row_literal(columns)
    key_of = _key_literal(key)

    def insert(row: bytes) -> tuple[Key, bytes]:
        values = decoder.insert(row)
        return key_of(values), row_of(values)

    def update(row: bytes) -> tuple[Key, Key, bytes]:
        old, new = decoder.update(row)
        return key_of(old), key_of(new), row_of(new)

    def delete(row: bytes) -> Key:
        return key_of(decoder.delete(row))

    return Decoders(insert, update, delete)


def _row_literal(columns: Sequence[Column]) -> Callable[[dict[int, Value]], bytes]:
    pairs = [(column.id, renderer(column)) for column in columns]

    def literal(values: dict[int, Value]) -> bytes:
        return b"(" + b",".join([render(values[each]) for each, render in pairs]) + b")"

    return literal


def _key_literal(key: Sequence[KeyColumn]) -> Callable[[dict[int, Value]], Key]:
    parts = [(each, each.column.id, renderer(each.column)) for each in key]

    def literal(values: dict[int, Value]) -> Key:
        if not parts:
            return 0
        found = [(each.normal(values.get(column_id)), render) for each, column_id, render in parts]
        if any(value is None for value, _ in found):
            raise CorruptRow("the key of the row is NULL or missing")
        first = found[0][0]
        if len(found) == 1 and isinstance(first, int):
            return first
        return tuple_of([render(value) for value, render in found])

    return literal


# --- generated code ------------------------------------------------------------------------

_BACKSLASH, _QUOTE = b"\\'"
# A DATETIME without fraction, from the year 79 on, takes nine bytes: 8 continuation bits, 24 bits
# of zero, 17 of the clock, then the day. Bits 0 to 26 and every eighth are compared at once.
_WHOLE_MASK = 0x80_80_80_80_80_87_FF_FF_FF
_WHOLE_BITS = 0x00_80_80_80_80_80_80_80_80
_DAY_MASK = 0x80_80_80_BF_FF_FF_FF_FF_FF
_DAY_BITS = 0x00_80_80_80_80_80_80_80_80
_LONG_MASK = 0x80_80_80_80_80_80_80_80_80
_CLOCK_BITS = (1 << 22) - 1


@lru_cache(maxsize=16384)
def _day(bits: int) -> bytes:
    """The day in bits 46 and up of a nine-byte varint."""
    low, middle, high = bits >> 2 & 0x7F, bits >> 10 & 0x7F, bits >> 18 & 0x7F
    return day_text(bits & 1 | low << 1 | middle << 8 | high << 15).encode()


@lru_cache(maxsize=86400)
def _clock(bits: int) -> bytes:
    """The clock in bits 24 to 45 of a nine-byte varint, with the blank before it."""
    hms = (bits >> 3 & 15) | (bits >> 8 & 0x7F) << 4 | (bits >> 16 & 0x3F) << 11
    return b" " + clock_text(hms).encode()


def _double(row: bytes, at: int) -> bytes:
    return float_literal(read_float(row, at)[0])


def _decimal(row: bytes, at: int) -> tuple[bytes, int]:
    digits, at = read_decimal(row, at)
    return digits.encode(), at


def _json(row: bytes, at: int) -> tuple[bytes, int]:
    end = json_end(row, at)
    return escaped(json_text(row[at:end]).encode("utf-8", "surrogatepass")), end


def _moment(packed: int, fsp: int) -> bytes:
    return datetime_text(packed, fsp).encode()


def _duration(nanoseconds: int, fsp: int) -> bytes:
    return duration_text(nanoseconds, fsp).encode()


_SCOPE: dict[str, Any] = {
    "OddRow": OddRow,
    "uvarint": read_uvarint,
    "skip": skip_datum,
    "double": _double,
    "decimal": _decimal,
    "json": _json,
    "json_end": json_end,
    "day": _day,
    "clock": _clock,
    "from_bytes": int.from_bytes,
    "NULL": NULL,
    "B": b"\\",
    "BB": b"\\\\",
    "Q": b"'",
    "QQ": b"''",
}

_VARINT = """\
x = b[i]; i += 1
if x > 127:
    y = b[i]; i += 1
    if y < 128: x = x & 127 | y << 7
    else:
        z = b[i]; i += 1
        if z < 128: x = x & 127 | (y & 127) << 7 | z << 14
        else: x, i = uvarint(b, i - 3)
"""
_SKIP_VARINT = """\
while b[i] > 127: i += 1
i += 1
"""
_SKIP_LONG = f"""\
if from_bytes(b[i:i+9], 'little') & {_LONG_MASK:#x} == {_WHOLE_BITS:#x}: i += 9
else:
    while b[i] > 127: i += 1
    i += 1
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How generated code treats a type. `{v}` is the variable that the value goes to."""

    flag: int
    form: str
    """The literal around the value, in the notation of bytes formatting."""
    read: str
    skip: str
    handle_flag: int = -1
    """In the handle of a clustered table, where it differs."""
    handle_read: str = ""


def _kind(column: Column) -> _Kind | None:
    """None: no code is generated for tables with this column."""
    tp, fsp = column.field_type.tp, max(0, column.field_type.decimal)
    if column.field_type.is_array:
        return None
    if tp in NUMBER_TYPES or (tp in INTEGER_TYPES and column.is_unsigned and tp != Tp.YEAR):
        return _Kind(9, "%d", _VARINT + "{v} = x\n", _SKIP_VARINT)
    if tp in INTEGER_TYPES:
        flag = 9 if column.is_unsigned else 8
        value = "x" if column.is_unsigned else "x >> 1 ^ -(x & 1)"
        return _Kind(flag, "%d", _VARINT + "{v} = " + value + "\n", _SKIP_VARINT)
    if tp in STRING_TYPES:
        length = _VARINT + "if x & 1: raise OddRow\nx >>= 1\n"
        read = length + "{v} = b[i:i+x]; i += x\nif e: {v} = {v}.replace(B, BB).replace(Q, QQ)\n"
        form = "_binary'%b'" if column.is_binary else "'%b'"
        return _Kind(2, form, read, length + "i += x\n")
    return _KINDS[tp](fsp) if tp in _KINDS else None


def _kind_of(column: Column) -> _Kind:
    kind = _kind(column)
    assert kind is not None, "no code is generated for such a table"
    return kind


def _date_kind(_fsp: int) -> _Kind:
    read = (
        "x = from_bytes(b[i:i+9], 'little')\n"
        f"if x & {_DAY_MASK:#x} == {_DAY_BITS:#x}: {{v}} = day(x >> 46); i += 9\n"
        "else: x, i = uvarint(b, i); {v} = moment(x, 0)[:10]\n"
    )
    return _Kind(9, "'%b'", read, _SKIP_LONG)


def _moment_kind(fsp: int) -> _Kind:
    read = f"x, i = uvarint(b, i); {{v}} = moment(x, {fsp})\n"
    if fsp == 0:
        read = (
            "x = from_bytes(b[i:i+9], 'little')\n"
            f"if x & {_WHOLE_MASK:#x} == {_WHOLE_BITS:#x}:\n"
            f"    {{v}} = day(x >> 46) + clock(x >> 24 & {_CLOCK_BITS}); i += 9\n"
            "else: x, i = uvarint(b, i); {v} = moment(x, 0)\n"
        )
    return _Kind(9, "'%b'", read, _SKIP_LONG)


def _duration_kind(fsp: int) -> _Kind:
    return _Kind(
        8,
        "'%b'",
        f"x, i = uvarint(b, i); {{v}} = duration(x >> 1 ^ -(x & 1), {fsp})\n",
        _SKIP_VARINT,
        handle_flag=7,
        handle_read=(
            "if i + 8 > len(b): raise OddRow\n"
            f"{{v}} = duration(from_bytes(b[i:i+8], 'big') - (1 << 63), {fsp}); i += 8\n"
        ),
    )


_KINDS: dict[int, Callable[[int], _Kind]] = {
    Tp.FLOAT: lambda _: _Kind(5, "%b", "{v} = double(b, i); i += 8\n", "i += 8\n"),
    Tp.DOUBLE: lambda _: _Kind(5, "%b", "{v} = double(b, i); i += 8\n", "i += 8\n"),
    Tp.NEW_DECIMAL: lambda _: _Kind(6, "%b", "{v}, i = decimal(b, i)\n", "i = skip(b, i - 1)\n"),
    Tp.DATE: _date_kind,
    Tp.DATETIME: _moment_kind,
    Tp.TIMESTAMP: _moment_kind,
    Tp.DURATION: _duration_kind,
    Tp.JSON: lambda _: _Kind(10, "'%b'", "{v}, i = json(b, i)\n", "i = json_end(b, i)\n"),
}
_SCOPE |= {"moment": _moment, "duration": _duration}


def compiled(
    table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]
) -> Decoders | None:
    """Decoders for rows that are laid out as TiDB does for this table; None for odd tables.

    Without a key the key of every row is 0.
    """
    assert all(each.column.not_null for each in key), "a key column may be NULL"
    if not has_code(table):
        return None
    code = _Code(table, columns, key)
    source = code.insert() + code.update() + code.delete()
    scope = dict(_SCOPE)
    exec(compile(source, f"<plan of {table.info.name}>", "exec"), scope)
    return Decoders(scope["insert"], scope["update"], scope["delete"])


def has_code(table: TableAt) -> bool:
    """Whether every column is of a kind that has one layout."""
    return all(_kind(column) is not None for column in table.info.columns)


class _Code:
    """Writes the three functions of one table. `b` is the row, `i` where the next datum begins."""

    def __init__(self, table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]) -> None:
        self._info = table.info
        self._written = {column.id for column in columns}
        self._columns = columns
        self._key = key
        self._key_ids = {each.column.id for each in key}
        self._needed = self._written | self._key_ids
        self._missing_is_null = omitted_when_null(table)
        self._in_rows = [column for column in table.info.columns if column.is_public]

    def insert(self) -> str:
        """Handle, then the columns that neither the handle has nor are NULL by default."""
        body, in_handle = self._handle()
        body = self._begin() + body + "s = i\n"
        for column in self._in_rows:
            if column.is_virtual or in_handle.get(column.id) == "":
                continue
            variable = f"v{column.id}" if column.id in self._needed else None
            otherwise = "raise OddRow\n"
            if column.id in in_handle:
                otherwise = in_handle[column.id]
            elif column.id in self._missing_is_null:
                otherwise = self._null(column, variable)
            body += self._present(column, variable, otherwise)
        # a row in which no column stands is a single NULL
        body += "if i == s:\n    if b[i:] != b'\\0': raise OddRow\n"
        body += "elif i != len(b): raise OddRow\n"
        body += self._return(self._key_code("v"))
        return _function("insert", body)

    def update(self) -> str:
        """Two rows of all columns; what has no handle of its own ends with the hidden one."""
        body = self._begin() + "i = 0\n"
        for prefix, needed in (("o", self._key_ids), ("v", self._needed)):
            for column in self._in_rows:
                if not column.is_virtual:
                    variable = f"{prefix}{column.id}" if column.id in needed else None
                    body += self._present(column, variable, "raise OddRow\n")
            if not (self._info.pk_is_handle or self._info.is_common_handle):
                body += _expect(b"\x08\x01\x08") + _SKIP_VARINT
        body += "if i != len(b): raise OddRow\n"
        body += self._return(f"{self._key_code('o')}, {self._key_code('v')}")
        return _function("update", body)

    def delete(self) -> str:
        """All public columns in order, generated ones too; read as far as the key goes."""
        body, wanted = "n = 0\ne = True\ni = 0\n", set(self._key_ids)
        for column in self._in_rows:
            if not wanted:
                break
            variable = f"v{column.id}" if column.id in wanted else None
            body += self._present(column, variable, "raise OddRow\n")
            wanted.discard(column.id)
        body += f"if i > len(b): raise OddRow\nreturn {self._key_code('v')}\n"
        return _function("delete", body)

    def _handle(self) -> tuple[str, dict[int, str]]:
        """Code for the datums before the row, and for each column in them how it is had from there.

        "" means that the value is read already and the row does not repeat it.
        """
        if not self._info.is_common_handle:
            column = self._info.handle_column()
            if column is None:
                return "if b[0] != 8: raise OddRow\ni = 1\n" + _SKIP_VARINT, {}
            mask = f" & {(1 << 64) - 1:#x}" if column.is_unsigned else ""
            value = f"v{column.id} = (x >> 1 ^ -(x & 1)){mask}\n"
            return "if b[0] != 8: raise OddRow\ni = 1\n" + _VARINT + value, {column.id: ""}
        body, had = "i = 0\n", {}
        index = self._info.primary_index()
        for part in index.columns if index else ():
            column = self._info.columns[part.offset]
            kind = _kind_of(column)
            body += f"h{column.id} = i; i = skip(b, i)\n"
            if part.length == -1 and column.id in self._needed:
                flag = kind.flag if kind.handle_flag < 0 else kind.handle_flag
                read = (kind.handle_read or kind.read).format(v=f"v{column.id}")
                had[column.id] = (
                    f"j = i; i = h{column.id}\nif b[i] != {flag}: raise OddRow\ni += 1\n"
                    f"{read}i = j\n"
                )
            elif part.length == -1:
                had[column.id] = "pass\n"
        return body, had

    def _present(self, column: Column, variable: str | None, otherwise: str) -> str:
        """Reads the column into the variable, or steps over it; `otherwise` when it is not next."""
        kind = _kind_of(column)
        name = b"\x08" + varint(column.id)
        size = len(name)
        value = kind.read.format(v=variable) if variable else kind.skip
        if column.not_null and otherwise.startswith("raise"):
            return _expect(name + bytes((kind.flag,))) + value
        null = self._null(column, variable) if not column.not_null else "raise OddRow\n"
        return (
            f"if b[i:i+{size + 1}] == {name + bytes((kind.flag,))!r}:\n"
            f"    i += {size + 1}\n{_indented(value, 1)}"
            f"elif b[i:i+{size}] == {name!r}:\n"
            f"    if b[i+{size}] != 0: raise OddRow\n"
            f"    i += {size + 1}\n{_indented(null, 1)}"
            f"else:\n{_indented(otherwise, 1)}"
        )

    def _begin(self) -> str:
        """`n`: some value is NULL; `e`: some byte of the row may be one that needs an escape."""
        return f"n = 0\ne = {_BACKSLASH} in b or {_QUOTE} in b\n"

    def _null(self, column: Column, variable: str | None) -> str:
        if variable is None:
            return "pass\n"
        return f"{variable} = NULL\n" if self._is_bare(column) else f"{variable} = None; n = 1\n"

    def _is_bare(self, column: Column) -> bool:
        """Whether what is read is the literal already."""
        return _kind_of(column).form == "%b"

    def _return(self, keys: str) -> str:
        """The row in one formatting, unless a NULL stands where quotes or digits would."""
        nullable = [
            column for column in self._columns if not column.not_null and not self._is_bare(column)
        ]
        plain = f"return {keys}, {self._row(())}\n"
        if not nullable:
            return plain
        return f"if n: return {keys}, {self._row(nullable)}\n{plain}"

    def _row(self, nullable: Sequence[Column]) -> str:
        forms, values = [], ""
        for column in self._columns:
            form, value = _kind_of(column).form, f"v{column.id}"
            if column in nullable:
                value, form = f"NULL if {value} is None else {form.encode()!r} % {value}", "%b"
            forms.append(form)
            values += value + ","
        return f"{('(' + ','.join(forms) + ')').encode()!r} % ({values})"

    def _key_code(self, prefix: str) -> str:
        if not self._key:
            return "0"
        forms, values = [], []
        for each in self._key:
            forms.append(_kind_of(each.column).form)
            strip = ".rstrip(b' ')" if each.strips_spaces else ""
            values.append(f"{prefix}{each.column.id}{strip}")
        if forms == ["%d"]:
            return values[0]
        form = forms[0] if len(forms) == 1 else "(" + ",".join(forms) + ")"
        return f"{form.encode()!r} % ({','.join(values)},)"


def omitted_when_null(table: TableAt) -> set[int]:
    """Columns that an inserted row lacks when they are NULL: their default is NULL."""
    older = {column.id: column for column in (table.defaults_from or table.info).columns}
    omitted = set()
    for column in table.info.columns:
        source = older.get(column.id, column)
        has_default = source.origin_default is not None or source.origin_default_bit is not None
        if not source.not_null and not column.not_null and not has_default:
            omitted.add(column.id)
    return omitted


def _expect(head: bytes) -> str:
    return f"if b[i:i+{len(head)}] != {head!r}: raise OddRow\ni += {len(head)}\n"


def _indented(code: str, depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in code.splitlines())


def _function(name: str, body: str) -> str:
    return f"def {name}(b):\n{_indented(body, 1)}"


def written_columns(table: Table) -> tuple[Column, ...]:
    """The columns that are written downstream: public, visible, not computed."""
    return tuple(
        column
        for column in table.columns
        if column.is_public and not column.is_generated and not column.hidden
    )
