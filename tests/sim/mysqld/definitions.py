"""The grammar of DDL: what statements ask for, as data. `ddl` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.sim.mysqld.cursor import Cursor
from tests.sim.mysqld.lexing import Literal, Statement, tokens
from tests.sim.mysqld.parsing import TableName
from tests.sim.mysqld.tables import NO_DEFAULT, Column, Index, Partitioning
from tests.sim.mysqld.values import ColumnType, type_of

COLLATION = "utf8mb4_bin"
_PRIMARY = "PRIMARY"


@dataclass(frozen=True)
class CreateDatabase:
    name: str
    if_not_exists: bool


@dataclass(frozen=True)
class DropDatabase:
    name: str
    if_exists: bool


@dataclass(frozen=True)
class CreateTable:
    name: TableName
    if_not_exists: bool
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    partitioning: Partitioning | None = None
    like: TableName | None = None


@dataclass(frozen=True)
class DropTable:
    names: tuple[TableName, ...]
    if_exists: bool


@dataclass(frozen=True)
class Truncate:
    name: TableName


@dataclass(frozen=True)
class RenameTables:
    pairs: tuple[tuple[TableName, TableName], ...]


@dataclass(frozen=True)
class AddColumn:
    """`place`: None at the end, "" first, else behind this column."""

    column: Column
    indexes: tuple[Index, ...]
    place: str | None
    if_not_exists: bool


@dataclass(frozen=True)
class DropColumn:
    name: str
    if_exists: bool


@dataclass(frozen=True)
class ChangeColumn:
    """MODIFY (`name` is that of the column) or CHANGE."""

    name: str
    column: Column
    place: str | None


@dataclass(frozen=True)
class SetDefault:
    name: str
    value: Any


@dataclass(frozen=True)
class RenameColumn:
    name: str
    after: str


@dataclass(frozen=True)
class AddIndex:
    index: Index
    if_not_exists: bool


@dataclass(frozen=True)
class DropIndex:
    name: str
    if_exists: bool


@dataclass(frozen=True)
class RenameIndex:
    name: str
    after: str


@dataclass(frozen=True)
class RenameTo:
    name: TableName


@dataclass(frozen=True)
class Nothing:
    """An option of a table that changes no row: a comment, a number to count from."""

    text: str


@dataclass(frozen=True)
class AddPartitions:
    names: tuple[str, ...]
    bounds: tuple[Any, ...]


@dataclass(frozen=True)
class DropPartitions:
    names: tuple[str, ...]
    is_truncate: bool


Action = (
    AddColumn
    | DropColumn
    | ChangeColumn
    | SetDefault
    | RenameColumn
    | AddIndex
    | DropIndex
    | RenameIndex
    | RenameTo
    | Nothing
    | AddPartitions
    | DropPartitions
)


@dataclass(frozen=True)
class AlterTable:
    name: TableName
    actions: tuple[Action, ...]


Ddl = CreateDatabase | DropDatabase | CreateTable | DropTable | Truncate | RenameTables | AlterTable


def ddl_of(statement: Statement) -> Ddl:
    """Raises NotSimulated."""
    parser = _Parser(statement)
    found = parser.statement()
    parser.cursor.end()
    return found


class _Parser:
    def __init__(self, statement: Statement) -> None:
        self.cursor = Cursor(tokens(statement.shape))
        self._args = statement.args

    def statement(self) -> Ddl:
        cursor = self.cursor
        verb = cursor.word()
        if verb == "CREATE":
            return self._create()
        if verb == "DROP":
            return self._drop()
        if verb == "ALTER":
            cursor.takes("IGNORE")
            cursor.must("TABLE")
            return AlterTable(cursor.qualified(), self._actions())
        if verb == "RENAME":
            cursor.must("TABLE")
            return RenameTables(tuple(cursor.listed(self._renamed)))
        if verb == "TRUNCATE":
            cursor.takes("TABLE")
            return Truncate(cursor.qualified())
        raise cursor.unknown("a DDL")

    def _literal(self) -> Literal:
        return self._args[self.cursor.arg()]

    def _number(self) -> int:
        value = self._literal()
        if not isinstance(value, int):
            raise self.cursor.unknown("a number")
        return value

    # --- CREATE, DROP, RENAME ------------------------------------------------------------------

    def _create(self) -> Ddl:
        cursor = self.cursor
        if cursor.takes("DATABASE") or cursor.takes("SCHEMA"):
            there = cursor.takes("IF", "NOT", "EXISTS")
            name = cursor.identifier()
            self._options()
            return CreateDatabase(name, there)
        if cursor.takes("TABLE"):
            there = cursor.takes("IF", "NOT", "EXISTS")
            name_of_table = cursor.qualified()
            if cursor.takes("LIKE"):
                return CreateTable(name_of_table, there, like=cursor.qualified())
            return self._table(name_of_table, there)
        is_unique = cursor.takes("UNIQUE")
        cursor.must("INDEX")
        there = cursor.takes("IF", "NOT", "EXISTS")
        name = cursor.identifier()
        cursor.must("ON")
        table = cursor.qualified()
        return AlterTable(table, (AddIndex(self._index(name, is_unique=is_unique), there),))

    def _drop(self) -> Ddl:
        cursor = self.cursor
        if cursor.takes("DATABASE") or cursor.takes("SCHEMA"):
            there = cursor.takes("IF", "EXISTS")
            return DropDatabase(cursor.identifier(), there)
        if cursor.takes("TABLE"):
            there = cursor.takes("IF", "EXISTS")
            return DropTable(tuple(cursor.listed(cursor.qualified)), there)
        cursor.must("INDEX")
        there = cursor.takes("IF", "EXISTS")
        name = cursor.identifier()
        cursor.must("ON")
        return AlterTable(cursor.qualified(), (DropIndex(name, there),))

    def _renamed(self) -> tuple[TableName, TableName]:
        old = self.cursor.qualified()
        self.cursor.must("TO")
        return old, self.cursor.qualified()

    # --- a table -------------------------------------------------------------------------------

    def _table(self, name: TableName, if_not_exists: bool) -> CreateTable:  # noqa: FBT001
        cursor = self.cursor
        cursor.must("(")
        columns: list[Column] = []
        indexes: list[Index] = []
        for column, more in cursor.listed(self._member):
            columns += [column] if column is not None else []
            indexes += more
        cursor.must(")")
        self._options()
        partitioning = self._partitioning() if cursor.takes("PARTITION", "BY") else None
        named = _named(indexes)
        keys = {each.lower() for index in named if index.name == _PRIMARY for each in index.columns}
        held = tuple(_not_null(each) if each.name.lower() in keys else each for each in columns)
        return CreateTable(name, if_not_exists, held, named, partitioning)

    def _member(self) -> tuple[Column | None, Sequence[Index]]:
        index = self._maybe_index()
        if index is not None:
            return None, [index]
        return self._column()

    def _maybe_index(self) -> Index | None:
        cursor = self.cursor
        if cursor.takes("CONSTRAINT") and not cursor.says("PRIMARY") and not cursor.says("UNIQUE"):
            cursor.identifier()
        if cursor.takes("PRIMARY", "KEY"):
            return self._index(_PRIMARY, is_unique=True)
        if cursor.takes("UNIQUE"):
            cursor.takes("KEY") or cursor.takes("INDEX")
            return self._index(self._index_name(), is_unique=True)
        if cursor.takes("KEY") or cursor.takes("INDEX"):
            return self._index(self._index_name(), is_unique=False)
        return None

    def _index_name(self) -> str:
        return "" if self.cursor.says("(") else self.cursor.identifier()

    def _index(self, name: str, *, is_unique: bool) -> Index:
        cursor = self.cursor
        cursor.must("(")
        parts = cursor.listed(self._index_part)
        cursor.must(")")
        if cursor.takes("USING"):
            cursor.must("BTREE")
        if cursor.takes("COMMENT"):
            self._literal()
        columns, prefixes = zip(*parts, strict=True)
        if is_unique and any(prefixes):
            raise cursor.unknown("a unique key of whole columns")
        return Index(name, columns, is_unique, prefixes)

    def _index_part(self) -> tuple[str, int | None]:
        cursor = self.cursor
        name, length = cursor.identifier(), None
        if cursor.takes("("):
            length = self._number()
            cursor.must(")")
        cursor.takes("ASC")
        return name, length

    # --- a column ------------------------------------------------------------------------------

    def _column(self) -> tuple[Column, Sequence[Index]]:
        name = self.cursor.identifier()
        kind = self._type()
        is_nullable, default, extra = True, NO_DEFAULT, ""
        indexes: list[Index] = []
        while True:  # until something that says nothing about the column
            if self._takes_null():
                pass
            elif self.cursor.takes("NOT", "NULL"):
                is_nullable = False
            elif self.cursor.takes("DEFAULT"):
                default = self._default(kind)
            elif self.cursor.takes("AUTO_INCREMENT"):
                extra = "auto_increment"
            elif self.cursor.takes("COMMENT"):
                self._literal()
            elif not self._column_key(name, indexes):
                break
        if any(index.name == _PRIMARY for index in indexes):
            is_nullable = False
        if default is NO_DEFAULT and is_nullable:
            default = None
        return Column(name, kind, is_nullable, default, extra), indexes

    def _column_key(self, name: str, indexes: list[Index]) -> bool:
        if self.cursor.takes("PRIMARY", "KEY"):
            indexes.append(Index(_PRIMARY, (name,), is_unique=True, prefixes=(None,)))
        elif self.cursor.takes("UNIQUE"):
            self.cursor.takes("KEY")
            indexes.append(Index("", (name,), is_unique=True, prefixes=(None,)))
        else:
            return False
        return True

    def _takes_null(self) -> bool:
        """NULL stands as a literal, but for behind NOT and IS."""
        is_null = self.cursor.says("?") and self._args[self.cursor.args] is None
        if is_null:
            self._literal()
        return is_null

    def _default(self, kind: ColumnType) -> Any:
        self.cursor.takes("_UTF8MB4")  # the character set of the literal is that of the session
        if self.cursor.says("?"):
            value = self._literal()
            return None if value is None else kind.fitted(value).value
        raise self.cursor.unknown("a literal as DEFAULT")

    def _type(self) -> ColumnType:
        cursor = self.cursor
        word = cursor.word()
        sizes: list[Literal] = []
        if cursor.takes("("):
            sizes = cursor.listed(self._literal)
            cursor.must(")")
        is_unsigned = cursor.takes("UNSIGNED")
        cursor.takes("ZEROFILL")
        collation = COLLATION
        if cursor.takes("CHARACTER", "SET") or cursor.takes("CHARSET"):
            self._must_be_utf8()
        if cursor.takes("COLLATE"):
            collation = cursor.identifier().lower()
        return type_of(
            word,
            tuple(each for each in sizes if isinstance(each, int)),
            tuple(each for each in sizes if isinstance(each, str)),
            is_unsigned=is_unsigned,
            collation=collation,
        )

    def _must_be_utf8(self) -> None:
        if self.cursor.identifier().lower() not in ("utf8mb4", "utf8"):
            raise self.cursor.unknown("utf8mb4")

    # --- options and partitions ----------------------------------------------------------------

    def _options(self) -> None:
        """Of a schema or a table: they change no row."""
        while self._option() is not None:
            self.cursor.takes(",")

    def _option(self) -> Nothing | None:
        cursor = self.cursor
        is_default = cursor.takes("DEFAULT")
        if cursor.takes("CHARACTER", "SET") or cursor.takes("CHARSET"):
            cursor.takes("=")
            self._must_be_utf8()
            return Nothing("CHARSET")
        if cursor.takes("COLLATE"):
            cursor.takes("=")
            if not cursor.identifier().lower().endswith("_bin"):
                raise cursor.unknown("a binary collation")
            return Nothing("COLLATE")
        for word in ("ENGINE", "COMMENT", "AUTO_INCREMENT"):
            if cursor.takes(word):
                cursor.takes("=")
                if cursor.says("?"):
                    self._literal()
                else:
                    cursor.must("INNODB")
                return Nothing(word)
        if is_default:
            raise cursor.unknown("CHARACTER SET or COLLATE")
        return None

    def _partitioning(self) -> Partitioning:
        cursor = self.cursor
        kind = cursor.word()
        if kind not in ("RANGE", "LIST", "HASH"):
            raise cursor.unknown("RANGE, LIST or HASH")
        cursor.must("(")
        column = cursor.identifier()
        cursor.must(")")
        if kind == "HASH":
            cursor.must("PARTITIONS")
            return Partitioning(kind, column, tuple(f"p{n}" for n in range(self._number())))
        names, bounds = self._partitions()
        return Partitioning(kind, column, names, bounds)

    def _partitions(self) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        self.cursor.must("(")
        found = self.cursor.listed(self._partition)
        self.cursor.must(")")
        names, bounds = zip(*found, strict=True)
        return names, bounds

    def _partition(self) -> tuple[str, Any]:
        cursor = self.cursor
        cursor.must("PARTITION")
        name = cursor.identifier()
        cursor.must("VALUES")
        if cursor.takes("LESS", "THAN"):
            if cursor.takes("MAXVALUE") or cursor.takes("(", "MAXVALUE", ")"):
                return name, None
            cursor.must("(")
            bound: Any = self._number()
        else:
            cursor.must("IN", "(")
            bound = tuple(cursor.listed(self._literal))
        cursor.must(")")
        return name, bound

    # --- ALTER TABLE ---------------------------------------------------------------------------

    def _actions(self) -> tuple[Action, ...]:
        cursor = self.cursor
        found: list[Action] = []
        while True:  # until no comma follows
            if cursor.takes("ADD"):
                found += self._added()
            else:
                found.append(self._action())
            if not cursor.takes(","):
                return tuple(found)

    def _added(self) -> list[Action]:
        cursor = self.cursor
        if cursor.takes("PARTITION"):
            return [AddPartitions(*self._partitions())]
        index = self._maybe_index()
        if index is not None:
            return [AddIndex(index, if_not_exists=False)]
        cursor.takes("COLUMN")
        there = cursor.takes("IF", "NOT", "EXISTS")
        if cursor.takes("("):
            columns = cursor.listed(self._column)
            cursor.must(")")
            return [AddColumn(column, tuple(more), None, there) for column, more in columns]
        column, more = self._column()
        return [AddColumn(column, tuple(more), self._place(), there)]

    def _place(self) -> str | None:
        if self.cursor.takes("FIRST"):
            return ""
        return self.cursor.identifier() if self.cursor.takes("AFTER") else None

    def _action(self) -> Action:
        cursor = self.cursor
        if cursor.takes("DROP"):
            return self._dropped()
        if cursor.takes("MODIFY"):
            cursor.takes("COLUMN")
            column, _ = self._column()
            return ChangeColumn(column.name, column, self._place())
        if cursor.takes("CHANGE"):
            cursor.takes("COLUMN")
            name = cursor.identifier()
            column, _ = self._column()
            return ChangeColumn(name, column, self._place())
        if cursor.takes("RENAME"):
            return self._renaming()
        if cursor.takes("TRUNCATE", "PARTITION"):
            return DropPartitions(tuple(cursor.listed(cursor.identifier)), is_truncate=True)
        if cursor.takes("ALTER"):
            return self._defaulted()
        option = self._option()
        if option is None:
            raise cursor.unknown("an action of ALTER TABLE")
        return option

    def _dropped(self) -> Action:
        cursor = self.cursor
        if cursor.takes("PRIMARY", "KEY"):
            return DropIndex(_PRIMARY, if_exists=False)
        if cursor.takes("INDEX") or cursor.takes("KEY"):
            there = cursor.takes("IF", "EXISTS")
            return DropIndex(cursor.identifier(), there)
        if cursor.takes("PARTITION"):
            return DropPartitions(tuple(cursor.listed(cursor.identifier)), is_truncate=False)
        cursor.takes("COLUMN")
        there = cursor.takes("IF", "EXISTS")
        return DropColumn(cursor.identifier(), there)

    def _renaming(self) -> Action:
        cursor = self.cursor
        if cursor.takes("INDEX") or cursor.takes("KEY"):
            old = cursor.identifier()
            cursor.must("TO")
            return RenameIndex(old, cursor.identifier())
        if cursor.takes("COLUMN"):
            old = cursor.identifier()
            cursor.must("TO")
            return RenameColumn(old, cursor.identifier())
        cursor.takes("TO") or cursor.takes("AS")
        return RenameTo(cursor.qualified())

    def _defaulted(self) -> SetDefault:
        cursor = self.cursor
        cursor.takes("COLUMN")
        name = cursor.identifier()
        if cursor.takes("DROP", "DEFAULT"):
            return SetDefault(name, NO_DEFAULT)
        cursor.must("SET", "DEFAULT")
        return SetDefault(name, self._literal())


def _named(indexes: Sequence[Index]) -> tuple[Index, ...]:
    """An index without a name has that of its first column, with a number if that is taken."""
    taken = {index.name.lower() for index in indexes if index.name}
    made: list[Index] = []
    for index in indexes:
        name = index.name or free_name(index.columns[0], taken)
        taken.add(name.lower())
        made.append(Index(name, index.columns, index.is_unique, index.prefixes))
    return tuple(made)


def free_name(column: str, taken: set[str]) -> str:
    """The name that a server gives to an index that has none."""
    name, number = column, 2
    while name.lower() in taken:
        name, number = f"{column}_{number}", number + 1
    return name


def _not_null(column: Column) -> Column:
    default = NO_DEFAULT if column.default is None else column.default
    return Column(column.name, column.type, is_nullable=False, default=default, extra=column.extra)
