"""How a statement finds its rows: by unique keys, by the beginning of the primary key, or by a look
at every row. What it looks at it locks, so this decides who waits for whom.

Nothing is locked between rows (READ COMMITTED); the gap locks that InnoDB takes where a key is
already there are not simulated: what they lead to, a deadlock of two that write neighbours, is one
of the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.sim.mysqld.expressions import (
    Evaluator,
    Surroundings,
    bound,
    comparable,
    keys_of,
    type_in,
)
from tests.sim.mysqld.lexing import Literal
from tests.sim.mysqld.parsing import Arg, Call, Name, Rest
from tests.sim.mysqld.tables import Definition, Record, Table, UniqueKey, Values

Condition = Callable[[Values, Sequence[Literal], Surroundings], bool]


class Path(NamedTuple):
    """`keys` are looked up in the unique key of that number; without it all rows are looked at
    of which `touches` is true before they are locked."""

    unique: int | None
    keys: Callable[[Sequence[Literal]], list[Any]] | None
    touches: Evaluator | None
    matches: Evaluator | None


def path_of(where: Any, definition: Definition) -> Path:
    """The way to the rows of a WHERE. Raises ServerError, NotSimulated."""
    found = definition.bound.get(("path", where))
    if found is None:
        found = definition.bound["path", where] = _path(where, definition)
    return found


def _path(where: Any, definition: Definition) -> Path:
    if where is None:
        return Path(None, None, None, None)
    matches = bound(where, definition)
    parts = where.operands if isinstance(where, Call) and where.name == "AND" else (where,)
    equal = dict(_equalities(parts, definition))
    for number, unique in enumerate(definition.unique):
        names = [definition.columns[at].name.lower() for at in unique.at]
        if all(name in equal for name in names):
            return Path(number, _single(unique, [equal[name] for name in names]), None, matches)
        rest = _listed(parts, names)
        if rest is not None:
            return Path(number, _many(unique, rest), None, matches)
    return Path(None, None, _beginning(parts, definition), matches)


def _equalities(parts: Sequence[Any], definition: Definition) -> Iterator[tuple[str, Arg]]:
    for part in parts:
        if isinstance(part, Call) and part.name == "=":
            left, right = part.operands
            if isinstance(left, Name) and isinstance(right, Arg):
                yield left.text.lower(), right


def _single(unique: UniqueKey, given: Sequence[Arg]) -> Callable[[Sequence[Literal]], list[Any]]:
    def keys(args: Sequence[Literal]) -> list[Any]:
        pairs = zip(unique.types, given, strict=True)
        return [tuple(comparable(kind, args[each.number]) for kind, each in pairs)]

    return keys


def _listed(parts: Sequence[Any], names: Sequence[str]) -> Rest | None:
    for part in parts:
        if isinstance(part, Call) and part.name == "IN":
            left, rest = part.operands
            columns = left.operands if isinstance(left, Call) else (left,)
            if [each.text.lower() for each in columns] == list(names):
                assert isinstance(rest, Rest)
                return rest
    return None


def _many(unique: UniqueKey, rest: Rest) -> Callable[[Sequence[Literal]], list[Any]]:
    return lambda args: list(dict.fromkeys(keys_of(unique.types, rest, args)))


def _beginning(parts: Sequence[Any], definition: Definition) -> Evaluator | None:
    """Conditions on the first columns of the primary key: rows outside are not looked at."""
    unique = definition.unique
    if not unique or unique[0].has_null:
        return None
    used: list[Any] = []
    for at in unique[0].at:
        name = definition.columns[at].name.lower()
        mine = [
            part
            for part in parts
            if isinstance(part, Call)
            and part.name in ("=", "<", "<=", ">", ">=")
            and isinstance(part.operands[0], Name)
            and part.operands[0].text.lower() == name
            and type_in(part.operands[0], definition) is not None
        ]
        used += mine
        if not any(part.name == "=" for part in mine):
            break
    if not used:
        return None
    return bound(used[0] if len(used) == 1 else Call("AND", tuple(used)), definition)


def candidates(
    path: Path, table: Table, args: Sequence[Literal], around: Surroundings
) -> Iterator[Record]:
    """The records that may match, in the order in which they are met; looked up when asked for."""
    if path.unique is not None and path.keys is not None:
        for key in sorted(path.keys(args), key=_orderly):
            yield from table.of_key(path.unique, key)
        return
    for record in table.in_order():
        versions = (record.newest, record.committed)
        if path.touches is None or any(
            each is not None and path.touches(each, args, around) for each in versions
        ):
            yield record


def _orderly(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys are looked up in their order, as a range of an index is; NULL is equal to nothing."""
    return tuple((each is None, "" if each is None else each) for each in key)
