"""The grammar of what a sink sends beside DDL. What is not in it is refused, never guessed.

A shape becomes a plan once; `Arg` stands for the literal of that number. Expressions are trees of
`Call`, whose names are SQL's own words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.sim.mysqld.cursor import Cursor
from tests.sim.mysqld.lexing import NotSimulated, tokens

TableName = tuple[str, str]
"""Database ("" for the one in use) and table."""


@dataclass(frozen=True)
class Arg:
    """The literal of this number."""

    number: int


@dataclass(frozen=True)
class Rest:
    """All literals from this number on but for so many at the end: a list of any length."""

    first: int
    width: int
    behind: int = 0


@dataclass(frozen=True)
class Name:
    """A column."""

    text: str


@dataclass(frozen=True)
class Variable:
    """`@@name`."""

    text: str


@dataclass(frozen=True)
class Call:
    """An operator or a function."""

    name: str
    operands: tuple[Any, ...]


@dataclass(frozen=True)
class Insert:
    """INSERT or REPLACE; without `columns` all. `rows` are expressions, or there are
    `many` in their place."""

    table: TableName
    is_replace: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = ()
    many: Rest | None = None
    updates: tuple[tuple[str, Any], ...] = ()
    alias: str = ""


@dataclass(frozen=True)
class Update:
    table: TableName
    changes: tuple[tuple[str, Any], ...]
    where: Any
    limit: Arg | None


@dataclass(frozen=True)
class Delete:
    table: TableName
    where: Any
    limit: Arg | None


@dataclass(frozen=True)
class Select:
    """`table` None: of nothing."""

    shown: tuple[Any, ...]
    table: TableName | None = None
    where: Any = None
    order: tuple[Any, ...] = ()
    limit: Arg | None = None
    is_locking: bool = False


@dataclass(frozen=True)
class Assign:
    """SET: names of session variables (without @@), and what they become; None is DEFAULT."""

    pairs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Simple:
    """START TRANSACTION, COMMIT, ROLLBACK, SAVEPOINT, ROLLBACK TO, USE, SHOW WARNINGS, ..."""

    kind: str
    names: tuple[str, ...] = field(default=())


Plan = Insert | Update | Delete | Select | Assign | Simple


@lru_cache(4096)
def plan_of(shape: bytes) -> Plan:
    """What a shape asks for. Raises NotSimulated."""
    parser = _Parser(shape)
    plan = parser.statement()
    parser.cursor.end()
    return plan


class _Parser:
    def __init__(self, shape: bytes) -> None:
        self.cursor = Cursor(tokens(shape))
        self._count = shape.count(b"?")
        self._is_behind = False
        """Behind a list of any length: literals are counted from the end."""

    def statement(self) -> Plan:
        cursor = self.cursor
        word = cursor.word()
        verbs: dict[str, Callable[[], Plan]] = {
            "INSERT": self._insert,
            "REPLACE": self._replace,
            "UPDATE": self._update,
            "DELETE": self._delete,
            "SELECT": self._select,
            "SET": self._set,
            "SHOW": self._show,
            "ROLLBACK": self._rollback,
        }
        made = verbs.get(word)
        if made is not None:
            return made()
        if word == "START":
            cursor.must("TRANSACTION")
            return Simple("BEGIN")
        if word in ("BEGIN", "COMMIT"):
            return Simple(word)
        if word in ("SAVEPOINT", "USE"):
            return Simple(word, (cursor.identifier(),))
        raise NotSimulated(f"a statement that begins with {word}")

    # --- writing -------------------------------------------------------------------------------

    def _insert(self) -> Insert:
        return self._written(is_replace=False)

    def _replace(self) -> Insert:
        return self._written(is_replace=True)

    def _written(self, *, is_replace: bool) -> Insert:
        cursor = self.cursor
        cursor.must("INTO")
        table = cursor.qualified()
        columns: tuple[str, ...] = ()
        if cursor.takes("("):
            columns = tuple(cursor.listed(cursor.identifier))
            cursor.must(")")
        cursor.must("VALUES")
        rows, many = self._rows()
        alias = ""
        if cursor.takes("AS"):
            alias = cursor.identifier()
        updates: tuple[tuple[str, Any], ...] = ()
        if cursor.takes("ON", "DUPLICATE", "KEY", "UPDATE"):
            updates = tuple(cursor.listed(self._assignment))
        return Insert(table, is_replace, columns, rows, many, updates, alias)

    def _rows(self) -> tuple[tuple[tuple[Any, ...], ...], Rest | None]:
        rows = tuple(self.cursor.listed(self._row))
        if not self.cursor.takes("*"):
            return rows, None
        self._is_behind = True
        return (), Rest(0, len(rows[0]), self._count - len(rows[0]))

    def _row(self) -> tuple[Any, ...]:
        self.cursor.must("(")
        found = tuple(self.cursor.listed(self.expression))
        self.cursor.must(")")
        return found

    def _assignment(self) -> tuple[str, Any]:
        name = self.cursor.identifier()
        self.cursor.must("=")
        return name, self.expression()

    def _update(self) -> Update:
        table = self.cursor.qualified()
        self.cursor.must("SET")
        changes = tuple(self.cursor.listed(self._assignment))
        return Update(table, changes, self._where(), self._limit())

    def _delete(self) -> Delete:
        self.cursor.must("FROM")
        return Delete(self.cursor.qualified(), self._where(), self._limit())

    def _where(self) -> Any:
        return self.expression() if self.cursor.takes("WHERE") else None

    def _limit(self) -> Arg | None:
        return self._arg() if self.cursor.takes("LIMIT") else None

    def _arg(self) -> Arg:
        number = self.cursor.arg()
        return Arg(number - self._count if self._is_behind else number)

    # --- reading -------------------------------------------------------------------------------

    def _select(self) -> Select:
        cursor = self.cursor
        shown = tuple(cursor.listed(self.expression))
        if not cursor.takes("FROM"):
            return Select(shown)
        table = cursor.qualified()
        where = self._where()
        order: tuple[Any, ...] = ()
        if cursor.takes("ORDER", "BY"):
            order = tuple(cursor.listed(self.expression))
        limit = self._limit()
        return Select(shown, table, where, order, limit, cursor.takes("FOR", "UPDATE"))

    def _show(self) -> Simple:
        cursor = self.cursor
        if cursor.takes("WARNINGS"):
            return Simple("SHOW WARNINGS")
        if cursor.takes("MASTER", "STATUS"):
            return Simple("SHOW MASTER STATUS")
        cursor.must("CREATE", "TABLE")
        return Simple("SHOW CREATE TABLE", cursor.qualified())

    # --- the session ---------------------------------------------------------------------------

    def _set(self) -> Plan:
        cursor = self.cursor
        if cursor.takes("NAMES"):
            return Simple("SET NAMES", (cursor.identifier(),))
        cursor.takes("SESSION")
        if cursor.takes("TRANSACTION", "ISOLATION", "LEVEL"):
            return Simple("SET ISOLATION", (f"{cursor.word()} {cursor.word()}",))
        return Assign(tuple(cursor.listed(self._variable)))

    def _variable(self) -> tuple[str, Any]:
        name = self.cursor.identifier().lower()
        self.cursor.must("=")
        if self.cursor.takes("DEFAULT"):
            return name, None
        if self.cursor.takes("OFF"):
            return name, Call("OFF", ())
        return name, self.expression()

    def _rollback(self) -> Simple:
        cursor = self.cursor
        if cursor.takes("TO"):
            cursor.takes("SAVEPOINT")
            return Simple("ROLLBACK TO", (cursor.identifier(),))
        return Simple("ROLLBACK")

    # --- expressions ---------------------------------------------------------------------------

    def expression(self) -> Any:
        parts = [self._comparison()]
        while self.cursor.takes("AND"):
            parts.append(self._comparison())
        return parts[0] if len(parts) == 1 else Call("AND", tuple(parts))

    def _comparison(self) -> Any:
        cursor = self.cursor
        left = self._sum()
        if cursor.takes("IS"):
            name = "IS NOT NULL" if cursor.takes("NOT") else "IS NULL"
            cursor.must("NULL")
            return Call(name, (left,))
        if cursor.takes("IN"):
            return self._list(left)
        for sign in ("=", "<>", "<=", ">=", "<", ">", "LIKE"):
            if cursor.takes(sign):
                return Call(sign, (left, self._sum()))
        return left

    def _list(self, left: Any) -> Call:
        """`IN (?*)` or `IN ((?,?)*)`."""
        cursor = self.cursor
        cursor.must("(")
        first, width = cursor.args, 1
        if cursor.takes("("):
            width = len(cursor.listed(cursor.arg))
            cursor.must(")")
        else:
            cursor.arg()
        cursor.must("*", ")")
        self._is_behind = True
        return Call("IN", (left, Rest(first, width, self._count - first - width)))

    def _sum(self) -> Any:
        left = self._primary()
        for sign in ("+", "|"):
            if self.cursor.takes(sign):
                return Call(sign, (left, self._primary()))
        return left

    def _primary(self) -> Any:
        cursor = self.cursor
        token = cursor.now
        if token.text == "?" and token.kind == "sign":
            return self._arg()
        if cursor.takes("("):
            parts = tuple(cursor.listed(self.expression))
            cursor.must(")")
            return parts[0] if len(parts) == 1 else Call("ROW", parts)
        if token.text.startswith("@@") and token.kind == "word":
            cursor.must(token.text.upper())
            name = token.text[2:].lower()
            if cursor.takes("."):
                name = cursor.identifier().lower()
            return Variable(name)
        if token.kind == "word" and token.text.upper() in _FUNCTIONS:
            return self._function(cursor.word())
        return self._column()

    def _column(self) -> Any:
        name = self.cursor.identifier()
        if self.cursor.takes("."):  # of the row that an INSERT names
            return Call("VALUES", (Name(self.cursor.identifier()),))
        return Name(name)

    def _function(self, word: str) -> Any:
        cursor = self.cursor
        if word in ("TRUE", "DEFAULT"):
            return Call(word, ())
        cursor.must("(")
        if word == "EXISTS":
            cursor.must("SELECT")
            found: Any = Call(word, (self._select(),))
        elif word == "COUNT":
            cursor.must("*")
            found = Call("COUNT", ())
        elif word == "CAST":
            operand = self.expression()
            cursor.must("AS")
            found = Call(f"CAST AS {cursor.word()}", (operand,))
        elif word == "CONVERT":
            operand = self.expression()
            cursor.must("USING", "UTF8MB4")
            found = Call("CONVERT", (operand,))
        else:
            found = Call(word, () if cursor.says(")") else tuple(cursor.listed(self.expression)))
        cursor.must(")")
        return found


_FUNCTIONS = frozenset(
    {
        "CAST",
        "CONCAT",
        "CONNECTION_ID",
        "CONVERT",
        "COUNT",
        "DEFAULT",
        "EXISTS",
        "TRUE",
        "UNIX_TIMESTAMP",
        "VALUES",
        "VERSION",
    }
)
