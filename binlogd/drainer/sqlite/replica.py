"""How an upstream's table looks in a replica that is one SQLite file, and how it changes its shape.

A table `shop.orders` is the SQLite table `shop.orders`; each column is stored so that its value can
be compared with the upstream's bit by bit (docs/FORMAT.md, "SQLite replica"). Virtual generated
columns are left out: no binlog holds them. Indexes are made without UNIQUE but for the clustered
key: equality here is that of bytes, and the upstream has checked its own.

A DDL never reaches SQLite as text. The job's TableInfo says what the table is now; columns are
matched by id (a column that was rewritten has a new id and its old name), and the rows are copied
into the new shape, row by row in SQLite. Values of another type are converted as TiDB does it
(`binlogd.tidb.rewrite`); what is not certain to come out as there is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from binlogd.errors import BinlogdError
from binlogd.tidb.columns import Value
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.families import family_of
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.layout import DATETIME_TYPES, INTEGER_TYPES
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tidb.rewrite import Unconvertible, converter

Stored = int | float | str | bytes | None
"""What SQLite is given."""

INTEGERS_END = 1 << 63
LABELS_KEPT_MAX = 4096


class NotStorable(Exception):
    """A change of shape that would need values that no binlog holds; the text says which."""


class Function:
    """What SQLite is given to call while it runs the statements of a DDL. SQLite tells of an error
    in it only that there was one: `refusal` is what it was."""

    def __init__(self, name: str, arguments: int, call: Callable[..., Stored]) -> None:
        self.name, self.arguments, self._call = name, arguments, call
        self.refusal = ""

    def __call__(self, *stored: Stored) -> Stored:
        """Raises BinlogdError, ValueError."""
        try:
            return self._call(*stored)
        except (BinlogdError, ValueError) as error:
            self.refusal = str(error)
            raise


class ReplicaChanges(NamedTuple):
    """Statements to execute, with their values, and the functions that they call."""

    statements: list[tuple[str, tuple[Stored, ...]]]
    functions: tuple[Function, ...] = ()


def stored_columns(info: Table) -> tuple[Column, ...]:
    """The columns that the replica has, in their order."""
    return tuple(each for each in info.columns if each.is_public and not each.is_virtual)


def key_columns(info: Table) -> tuple[Column, ...]:
    """The clustered key, by which TiDB itself knows a row; () where a row is known as a whole."""
    return () if info.has_hidden_id else info.primary_key()


def quoted(name: str) -> str:
    """A name of SQLite."""
    return '"' + name.replace('"', '""') + '"'


def storer_of(column: Column) -> Callable[[Value], Stored]:
    """From a value of the column to what SQLite holds."""
    kind = column.field_type
    if kind.tp == Tp.ENUM:
        return _enum(kind.elems)
    if kind.tp == Tp.SET:
        return _set(kind)
    if kind.tp in STRING_TYPES and not column.is_binary:
        return _text
    if kind.tp in INTEGER_TYPES or kind.tp == Tp.BIT:
        return _integer
    return _same


def reader_of(column: Column) -> Callable[[Stored], Value]:
    """From what SQLite holds to a value of the column: the other way round.

    It raises ValueError for a label that the column has not. Where an ENUM has an empty label, the
    empty text is that one and no number 0.
    """
    kind = column.field_type
    if kind.tp in (Tp.ENUM, Tp.SET):
        return _number_of(kind.elems, is_set=kind.tp == Tp.SET)
    if kind.tp in INTEGER_TYPES or kind.tp == Tp.BIT:
        return lambda stored: None if stored is None else int(stored)
    if kind.tp in STRING_TYPES:
        return lambda stored: stored.encode() if isinstance(stored, str) else stored
    return lambda stored: stored


def renamed(old_name: str, new_name: str, info: Table) -> list[str]:
    """Another name, for the indexes too: whoever takes the old one next makes indexes as well."""
    drops = [f"DROP INDEX {quoted(name)}" for name, _ in _indexes(old_name, info)]
    rename = f"ALTER TABLE {quoted(old_name)} RENAME TO {quoted(new_name)}"
    return [*drops, rename, *(text for _, text in _indexes(new_name, info))]


def create(name: str, info: Table) -> list[str]:
    """CREATE TABLE and its indexes."""
    columns = ", ".join(
        f"{quoted(each.name)} {_declared(each)}".rstrip() for each in stored_columns(info)
    )
    made = f"CREATE TABLE {quoted(name)} ({columns})"
    return [made, *(text for _, text in _indexes(name, info))]


def _indexes(name: str, info: Table) -> Iterator[tuple[str, str]]:
    """The name and the statement of each index."""
    held = {each.name.lower() for each in stored_columns(info)}
    keys: dict[tuple[str, ...], bool] = {}
    if key := key_columns(info):
        keys[tuple(each.name for each in key)] = True
    for index in info.indexes:
        names = tuple(each.name for each in index.columns)
        if all(each.lower() in held for each in names):
            keys.setdefault(names, False)
    for number, (names, is_unique) in enumerate(keys.items()):
        unique = "UNIQUE " if is_unique else ""
        of = ", ".join(quoted(each) for each in names)
        label = f".{name}#{number}"  # no table's name begins so: there is a database before its dot
        yield label, f"CREATE {unique}INDEX {quoted(label)} ON {quoted(name)} ({of})"


def reshape(name: str, old: Table, new: Table, changed: Mapping[str, str]) -> ReplicaChanges:
    """What brings a table with its rows from one TableInfo to the next.

    `changed` gives the old name to the new one, both in lower case, of columns that the DDL's text
    renames: one that is rewritten as well has a new id. Raises NotStorable.
    """
    before, after = stored_columns(old), stored_columns(new)
    is_same = create(name, old) == create(name, new) and all(map(_is_kept, before, after))
    if is_same and [each.id for each in before] == [each.id for each in after]:
        return ReplicaChanges([])
    fresh = f"..{name}"
    sources: list[str] = []
    functions: list[Function] = []
    given: list[Stored] = []
    for column in after:
        source = _source(column, before, changed)
        if source is None:
            sources.append("?")
            given.append(storer_of(column)(missing_value(column)))
        elif _is_kept(source, column):
            sources.append(quoted(source.name))
        else:
            function = Function(f"binlogd_cast_{len(functions)}", 1, _cast(source, column))
            functions.append(function)
            sources.append(f"{function.name}({quoted(source.name)})")
    names = ", ".join(quoted(each.name) for each in after)
    copy = f"INSERT INTO {quoted(fresh)} ({names}) SELECT {', '.join(sources)} FROM {quoted(name)}"
    creates = create(name, new)
    statements: list[tuple[str, tuple[Stored, ...]]] = [
        (creates[0].replace(quoted(name), quoted(fresh), 1), ()),
        (copy, tuple(given)),
        (f"DROP TABLE {quoted(name)}", ()),
        (f"ALTER TABLE {quoted(fresh)} RENAME TO {quoted(name)}", ()),
        *((text, ()) for text in creates[1:]),
    ]
    return ReplicaChanges(statements, tuple(functions))


# --- one column ------------------------------------------------------------------------------


def _source(
    column: Column, before: tuple[Column, ...], changed: Mapping[str, str]
) -> Column | None:
    """The column whose values it has; a rewritten one has a new id."""
    for was in before:
        if was.id == column.id:
            return was
    name = column.name.lower()
    old_name = changed.get(name, name)
    return next((was for was in before if was.name.lower() == old_name), None)


def _cast(was: Column, column: Column) -> Callable[[Stored], Stored]:
    """From what is stored of a column to what its new type has. Raises NotStorable."""
    try:
        convert = converter(was, column)
    except Unconvertible as error:
        raise NotStorable(str(error)) from error
    read, store = reader_of(was), storer_of(column)
    return lambda stored: store(convert(read(stored)))


def _is_kept(was: Column, column: Column) -> bool:
    """Whether every stored value stays as it is."""
    before, after = was.field_type, column.field_type
    if family_of(was) is not family_of(column):
        return False
    if before.tp == Tp.ENUM:
        return set(before.elems) <= set(after.elems)
    if before.tp == Tp.SET:  # labels are joined in their order
        return after.elems[: len(before.elems)] == before.elems
    if before.tp in _OF_A_SCALE:
        is_same = was.id == column.id and before.tp in (Tp.FLOAT, Tp.DOUBLE)  # no byte was touched
        return is_same or before.decimal == after.decimal
    if after.tp == Tp.STRING:  # CHAR loses spaces at the end, BINARY is filled up
        return before.tp == Tp.STRING and (not column.is_binary or before.flen == after.flen)
    return True


_OF_A_SCALE = frozenset[int]({Tp.NEW_DECIMAL, Tp.DURATION, Tp.FLOAT, Tp.DOUBLE, *DATETIME_TYPES})


def _declared(column: Column) -> str:
    tp = column.field_type.tp
    if tp in INTEGER_TYPES or tp == Tp.BIT:
        wide = (column.is_unsigned and tp == Tp.LONGLONG) or tp == Tp.BIT
        return "" if wide else "INTEGER"  # an affinity would round digits that are text
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        return "REAL"
    return "BLOB" if column.is_binary else "TEXT"


def _same(value: Value) -> Stored:
    return value


def _integer(value: Value) -> Stored:
    assert value is None or isinstance(value, int)
    return str(value) if value is not None and value >= INTEGERS_END else value


def _text(value: Value) -> Stored:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _enum(elems: tuple[str, ...]) -> Callable[[Value], Stored]:
    labels: dict[Value, Stored] = {None: None, 0: "", **dict(enumerate(elems, 1))}
    return lambda value: labels.get(value, value)


def _set(kind: FieldType) -> Callable[[Value], Stored]:
    @lru_cache(maxsize=LABELS_KEPT_MAX)
    def joined(value: Value) -> Stored:
        return kind.label(value) if isinstance(value, int) else value

    return joined


def _number_of(elems: tuple[str, ...], *, is_set: bool) -> Callable[[Stored], Value]:
    numbers = {"": 0, **{label: number for number, label in enumerate(elems, 1)}}
    if is_set:
        numbers = {label: 1 << place for place, label in enumerate(elems)}

    def number(stored: Stored) -> Value:
        if stored is None:
            return None
        if is_set and stored == "":
            return 0
        labels = str(stored).split(",") if is_set else [str(stored)]
        try:
            return sum(numbers[each] for each in labels)
        except KeyError as error:
            raise ValueError(f"the column has no label {error}") from None

    return number
