"""INSERT, REPLACE, UPDATE and DELETE, and how many rows they affect (with CLIENT.FOUND_ROWS).

An UPDATE affects the rows that it found. A REPLACE affects 1 for a new row, and 1 more for each
that it took away, but for one that is replaced by what it was. An INSERT ... ON DUPLICATE KEY
UPDATE affects 1 for a new row, 2 for one that it changed, 1 for one that was so. `tests/contract`
holds this against a MariaDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.mysqld import partitions
from tests.sim.mysqld import values as types
from tests.sim.mysqld.errors import ServerError, unknown_column
from tests.sim.mysqld.expressions import Evaluator, bound, list_of
from tests.sim.mysqld.lexing import Literal, NotSimulated
from tests.sim.mysqld.parsing import Arg, Call, Delete, Insert, Update
from tests.sim.mysqld.paths import Path, candidates, path_of
from tests.sim.mysqld.tables import NO_DEFAULT, Column, Definition, Record, Table, Values

if TYPE_CHECKING:
    from tests.sim.mysqld.session import Session

_SAID = {
    types.OUT_OF_RANGE: "Out of range value for column '{name}' at row {row}",
    types.TOO_LONG: "Data too long for column '{name}' at row {row}",
    types.TRUNCATED: "Data truncated for column '{name}' at row {row}",
    types.INCORRECT: "Incorrect string value for column `{name}` at row {row}",
    1048: "Column '{name}' cannot be null",
    1364: "Field '{name}' doesn't have a default value",
}


def stored(session: Session, column: Column, value: Literal, row: int, *, is_single: bool) -> Any:
    """A value as the column holds it. Raises ServerError.

    NULL in a column that takes none is an error where a single row is written, and else only in a
    strict session.
    """
    if value is None:
        if column.is_nullable:
            return None
        if session.is_strict or is_single:
            raise ServerError(1048, _SAID[1048].format(name=column.name))
        session.warn(1048, _SAID[1048].format(name=column.name))
        return column.type.implicit
    found = column.type.fitted(value)
    if found.code:
        said = _SAID[found.code].format(name=column.name, row=row)
        if session.is_strict:
            raise ServerError(found.code, said)
        is_cut = found.code == types.TOO_LONG  # a warning has another number than the error
        code = types.TRUNCATED if is_cut else found.code
        session.warn(code, _SAID[code].format(name=column.name, row=row))
    return found.value


# --- INSERT and REPLACE ------------------------------------------------------------------------


async def insert(session: Session, plan: Insert, args: Sequence[Literal]) -> int:
    """The rows affected. Raises ServerError."""
    table = await session.opened(plan.table)
    definition = table.definition
    given = _given(plan, definition)
    rows = _rows(session, plan, definition, args)
    updates = _changes(plan.updates, definition) if plan.updates else None
    affected = 0
    for number, row in enumerate(rows, start=1):
        if len(row) != len(given):
            raise ServerError(1136, f"Column count doesn't match value count at row {number}")
        values = _completed(session, definition, given, row, number, is_single=len(rows) == 1)
        if plan.is_replace:
            affected += await _replace(session, table, values)
        elif updates is not None:
            affected += await _upsert(session, table, values, updates, args)
        else:
            await _insert(session, table, values)
            affected += 1
    return affected


def _given(plan: Insert, definition: Definition) -> list[int]:
    found: list[int] = []
    for name in plan.columns:
        at = definition.position(name)
        if at is None:
            raise unknown_column(name, "field list")
        if at in found:
            raise ServerError(1110, f"Column '{name}' specified twice")
        found.append(at)
    return found or list(range(len(definition.columns)))


def _rows(
    session: Session, plan: Insert, definition: Definition, args: Sequence[Literal]
) -> list[tuple[Any, ...]]:
    if plan.many is not None:
        return list_of(plan.many, args)
    return [tuple(bound(each, definition)((), args, session) for each in row) for row in plan.rows]


def _completed(
    session: Session,
    definition: Definition,
    given: Sequence[int],
    row: Sequence[Literal],
    number: int,
    *,
    is_single: bool,
) -> Values:
    made: list[Any] = [NO_DEFAULT] * len(definition.columns)
    for at, value in zip(given, row, strict=True):
        column = definition.columns[at]
        made[at] = stored(session, column, value, number, is_single=is_single)
    for at, column in enumerate(definition.columns):
        if made[at] is NO_DEFAULT:
            made[at] = _default(session, column)
    partitions.check(definition, tuple(made))
    return tuple(made)


def _default(session: Session, column: Column) -> Any:
    if "auto_increment" in column.extra:
        raise NotSimulated(f"a number for {column.name}, which counts by itself")
    if column.default is not NO_DEFAULT:
        return column.default
    if column.is_nullable:
        return None
    said = _SAID[1364].format(name=column.name)
    if session.is_strict:
        raise ServerError(1364, said)
    session.warn(1364, said)
    return column.type.implicit


async def _in_the_way(
    session: Session, table: Table, values: Values, but: Record | None = None
) -> tuple[int, Record] | None:
    """The first unique key that is taken, and the row that has it, locked."""
    for number, unique in enumerate(table.definition.unique):
        key = unique.of(values)
        if key is None:
            continue
        for record in table.of_key(number, key):
            if record is but:
                continue
            await session.lock(record)
            if unique.of(record.newest) == key:
                return number, record
    return None


async def _insert(session: Session, table: Table, values: Values) -> None:
    found = await _in_the_way(session, table, values)
    if found is not None:
        raise _duplicate(table, found[0], values)
    await _add(session, table, values)


def _duplicate(table: Table, number: int, values: Values) -> ServerError:
    unique = table.definition.unique[number]
    shown = "-".join(str(values[at]) for at in unique.at)
    return ServerError(1062, f"Duplicate entry '{shown}' for key '{unique.name}'")


async def _add(session: Session, table: Table, values: Values) -> None:
    record = table.made()
    await session.lock(record)  # nobody else knows it
    session.begun().put(table, record, values)


async def _replace(session: Session, table: Table, values: Values) -> int:
    last = len(table.definition.unique) - 1
    affected = 1
    while True:  # until no row is in the way; each round takes one away
        found = await _in_the_way(session, table, values)
        if found is None:
            await _add(session, table, values)
            return affected
        number, record = found
        if number == last:  # the row is changed in its place
            if record.newest == values:
                return affected
            session.begun().put(table, record, values)
            return affected + 1
        session.begun().put(table, record, None)
        affected += 1


async def _upsert(
    session: Session,
    table: Table,
    values: Values,
    updates: Sequence[tuple[int, Evaluator]],
    args: Sequence[Literal],
) -> int:
    found = await _in_the_way(session, table, values)
    if found is None:
        await _add(session, table, values)
        return 1
    _, record = found
    assert record.newest is not None
    session.new_row = values
    changed = _changed(session, table, record.newest, updates, args)
    if changed == record.newest:
        return 1
    await _check(session, table, record, changed)
    session.begun().put(table, record, changed)
    return 2


# --- UPDATE and DELETE -------------------------------------------------------------------------


def _changes(
    pairs: Sequence[tuple[str, Any]], definition: Definition
) -> list[tuple[int, Evaluator]]:
    found = []
    for name, expression in pairs:
        at = definition.position(name)
        if at is None:
            raise unknown_column(name, "field list")
        if isinstance(expression, Call) and expression.name == "DEFAULT":
            raise NotSimulated("DEFAULT as a value")
        found.append((at, bound(expression, definition, "field list")))
    return found


def _changed(
    session: Session,
    table: Table,
    row: Values,
    updates: Sequence[tuple[int, Evaluator]],
    args: Sequence[Literal],
) -> Values:
    made = list(row)
    for at, value in updates:  # from left to right, each seeing those before it
        column = table.definition.columns[at]
        given = value(tuple(made), args, session)
        made[at] = stored(session, column, given, 1, is_single=session.is_strict)
    partitions.check(table.definition, tuple(made))
    return tuple(made)


async def _check(session: Session, table: Table, record: Record, values: Values) -> None:
    found = await _in_the_way(session, table, values, but=record)
    if found is not None:
        raise _duplicate(table, found[0], values)


async def update(session: Session, plan: Update, args: Sequence[Literal]) -> int:
    """The rows found. Raises ServerError."""
    table = await session.opened(plan.table)
    updates = _changes(plan.changes, table.definition)
    path = path_of(plan.where, table.definition)
    found = 0
    for record in candidates(path, table, args, session):
        row = await _locked_row(session, path, record, args, is_update=True)
        if row is None:
            continue
        found += 1
        values = _changed(session, table, row, updates, args)
        if values != row:
            await _check(session, table, record, values)
            session.begun().put(table, record, values)
        if _is_enough(plan.limit, args, found):
            break
    return found


async def delete(session: Session, plan: Delete, args: Sequence[Literal]) -> int:
    """The rows deleted. Raises ServerError."""
    table = await session.opened(plan.table)
    path = path_of(plan.where, table.definition)
    found = 0
    for record in candidates(path, table, args, session):
        if await _locked_row(session, path, record, args) is None:
            continue
        found += 1
        session.begun().put(table, record, None)
        if _is_enough(plan.limit, args, found):
            break
    return found


def _is_enough(limit: Arg | None, args: Sequence[Literal], found: int) -> bool:
    return limit is not None and found >= int(args[limit.number] or 0)


async def _locked_row(
    session: Session,
    path: Path,
    record: Record,
    args: Sequence[Literal],
    *,
    is_update: bool = False,
) -> Values | None:
    """The row, if it matches once it is locked.

    One that does not match is not kept locked. An UPDATE that looks at every row does not wait for
    one whose committed version does not match (InnoDB's semi-consistent read).
    """
    transaction = session.begun()
    is_mine = record.lock is not None and transaction in record.lock.holders
    if is_update and path.unique is None and not is_mine and path.matches is not None:
        seen = record.committed
        if seen is None or not path.matches(seen, args, session):
            return None
    await session.lock(record)
    row = record.newest
    if row is not None and (path.matches is None or path.matches(row, args, session)):
        return row
    if not is_mine and record.lock is not None and path.unique is None:
        transaction.held.pop(record.lock, None)
        record.lock.release(transaction)
    return None
