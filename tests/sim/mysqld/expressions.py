"""Expressions over a row, as functions. NULL is None; what is compared must be of one kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from tests.sim.mysqld.errors import unknown_column
from tests.sim.mysqld.lexing import Literal, NotSimulated
from tests.sim.mysqld.parsing import Arg, Call, Name, Rest, Select, Variable
from tests.sim.mysqld.tables import Definition, Values
from tests.sim.mysqld.values import ColumnType


class Surroundings(Protocol):
    """What an expression may ask for beside the row."""

    new_row: Values
    """What an INSERT would have written, for VALUES(c)."""

    def variable(self, name: str) -> Any:
        """A session variable, or the server's. Raises ServerError."""
        ...

    def exists(self, select: Select, args: Sequence[Literal]) -> bool:
        """Whether a query has a row. Raises ServerError."""
        ...


Evaluator = Callable[[Values, Sequence[Literal], Surroundings], Any]
NOTHING = Definition((), ())


def bound(expression: Any, definition: Definition = NOTHING, where: str = "WHERE") -> Evaluator:
    """A function of row, literals and surroundings. Raises ServerError for an unknown column."""
    if isinstance(expression, Arg):
        number = expression.number
        return lambda row, args, around: args[number]
    if isinstance(expression, Variable):
        name = expression.text
        return lambda row, args, around: around.variable(name)
    if isinstance(expression, Name):
        at = _position(expression, definition, where)
        return lambda row, args, around: row[at]
    assert isinstance(expression, Call)
    if expression.name in _COMPARED:
        return _comparison(expression, definition, where)
    made = _MADE.get(expression.name)
    if made is not None:
        return made(expression, definition, where)
    function = _FUNCTIONS.get(expression.name)
    if function is None:
        raise NotSimulated(f"{expression.name} in an expression")
    operands = [bound(each, definition, where) for each in expression.operands]
    return lambda row, args, around: function(*[each(row, args, around) for each in operands])


def _position(name: Name, definition: Definition, where: str) -> int:
    at = definition.position(name.text)
    if at is None:
        raise unknown_column(name.text, where)
    return at


def type_in(expression: Any, definition: Definition) -> ColumnType | None:
    """The type of a column; None of anything else."""
    if not isinstance(expression, Name):
        return None
    at = definition.position(expression.text)
    return None if at is None else definition.columns[at].type


def list_of(rest: Rest, args: Sequence[Literal]) -> list[tuple[Literal, ...]]:
    """The rows of a list of any length."""
    found = args[rest.first : len(args) - rest.behind] if rest.behind else args[rest.first :]
    width = rest.width
    return [tuple(found[n : n + width]) for n in range(0, len(found), width)]


def comparable(kind: ColumnType, value: Literal) -> Any:
    """A literal as it compares with what a column of this type holds."""
    if value is None:
        return None
    if isinstance(value, str | bytes) is not kind.is_quoted:
        raise NotSimulated(f"a {kind.text} compared with {value!r}")
    fitted = kind.fitted(value)
    return value if fitted.code else kind.key(fitted.value)


# --- operators ---------------------------------------------------------------------------------

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


def _comparison(call: Call, definition: Definition, where: str) -> Evaluator:
    left, right = (bound(each, definition, where) for each in call.operands)
    kind = type_in(call.operands[0], definition)
    compare = _COMPARED[call.name]
    if kind is not None and isinstance(call.operands[1], Arg):
        known = kind

        def with_column(row: Values, args: Sequence[Literal], around: Surroundings) -> Any:
            held, given = left(row, args, around), comparable(known, right(row, args, around))
            return None if held is None or given is None else compare(known.key(held), given)

        return with_column

    def of_one_kind(row: Values, args: Sequence[Literal], around: Surroundings) -> Any:
        a, b = left(row, args, around), right(row, args, around)
        if a is None or b is None:
            return None
        if _kind(a) != _kind(b):
            raise NotSimulated(f"{a!r} {call.name} {b!r}")
        return compare(a, b)

    return of_one_kind


def _kind(value: Any) -> str:
    if isinstance(value, int | float | Decimal):
        return "number"
    return type(value).__name__


def _and(call: Call, definition: Definition, where: str) -> Evaluator:
    parts = [bound(each, definition, where) for each in call.operands]
    return lambda row, args, around: all(each(row, args, around) for each in parts)


def _in(call: Call, definition: Definition, where: str) -> Evaluator:
    left, rest = call.operands
    columns = left.operands if isinstance(left, Call) and left.name == "ROW" else (left,)
    getters = [bound(each, definition, where) for each in columns]
    kinds = [type_in(each, definition) for each in columns]
    if None in kinds:
        raise NotSimulated("IN of anything but columns")

    def found(row: Values, args: Sequence[Literal], around: Surroundings) -> bool:
        held = tuple(
            kind.key(value)
            for kind, each in zip(kinds, getters, strict=True)
            if kind is not None and (value := each(row, args, around)) is not None
        )
        return held in keys_of(kinds, rest, args)

    return found


def keys_of(
    kinds: Sequence[ColumnType | None], rest: Rest, args: Sequence[Literal]
) -> list[tuple[Any, ...]]:
    """The keys of a list, as the columns compare them."""
    return [
        tuple(
            comparable(kind, value)
            for kind, value in zip(kinds, row, strict=True)
            if kind is not None
        )
        for row in list_of(rest, args)
    ]


def _exists(call: Call, definition: Definition, where: str) -> Evaluator:
    (select,) = call.operands
    return lambda row, args, around: int(around.exists(select, args))


def _new_value(call: Call, definition: Definition, where: str) -> Evaluator:
    at = _position(call.operands[0], definition, where)
    return lambda row, args, around: around.new_row[at]


def _version(call: Call, definition: Definition, where: str) -> Evaluator:
    return lambda row, args, around: around.variable("version")


def _connection_id(call: Call, definition: Definition, where: str) -> Evaluator:
    return lambda row, args, around: around.variable("pseudo_thread_id")


_MADE = {
    "AND": _and,
    "IN": _in,
    "EXISTS": _exists,
    "VALUES": _new_value,
    "VERSION": _version,
    "CONNECTION_ID": _connection_id,
}


# --- functions ---------------------------------------------------------------------------------


def _printed(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def _concat(*parts: Any) -> Any:
    return None if None in parts else "".join(map(_printed, parts))


def _as_binary(value: Any) -> Any:
    return None if value is None else _printed(value).encode("utf-8", "surrogateescape")


def _plus(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b


def _or_bits(a: Any, b: Any) -> Any:
    return None if a is None or b is None else int(a) | int(b)


def _like(value: Any, pattern: Any) -> Any:
    if value is None or pattern is None:
        return None
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    regex = "".join(
        re.escape(part[1])
        if part.startswith("\\") and len(part) > 1
        else wild.get(part, re.escape(part))
        for part in parts
    )
    return re.fullmatch(regex, value, re.DOTALL) is not None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "IS NULL": lambda value: value is None,
    "IS NOT NULL": lambda value: value is not None,
    "CONCAT": _concat,
    "CONVERT": lambda value: None if value is None else _printed(value),
    "CAST AS BINARY": _as_binary,
    "+": _plus,
    "|": _or_bits,
    "LIKE": _like,
    "TRUE": lambda: 1,
    "OFF": lambda: "OFF",
}
