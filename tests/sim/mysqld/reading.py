"""SELECT: of what is committed or the session's own, or locked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.mysqld import catalog
from tests.sim.mysqld.expressions import bound
from tests.sim.mysqld.lexing import Literal
from tests.sim.mysqld.parsing import Call, Select
from tests.sim.mysqld.paths import candidates, path_of
from tests.sim.mysqld.tables import Definition, Values

if TYPE_CHECKING:
    from tests.sim.mysqld.session import Session


def rows_of(session: Session, plan: Select, args: Sequence[Literal]) -> list[Values]:
    """The rows of a query that locks nothing. Raises ServerError."""
    if plan.table is None:
        return [tuple(bound(each)((), args, session) for each in plan.shown)]
    definition, rows = _source(session, plan, args)
    matching = _matching(session, plan, definition, rows, args)
    return _shown(session, plan, definition, matching, args)


def has_rows(session: Session, plan: Select, args: Sequence[Literal]) -> bool:
    """Whether there is any. Raises ServerError."""
    definition, rows = _source(session, plan, args)
    return bool(_matching(session, plan, definition, rows, args))


async def locked_rows(session: Session, plan: Select, args: Sequence[Literal]) -> list[Values]:
    """The rows of SELECT ... FOR UPDATE, each locked until the transaction ends. Raises
    ServerError."""
    assert plan.table is not None
    table = await session.opened(plan.table)
    path = path_of(plan.where, table.definition)
    limit = None if plan.limit is None else int(args[plan.limit.number] or 0)
    rows: list[Values] = []
    for record in candidates(path, table, args, session):
        await session.lock(record)
        row = record.newest
        if row is not None and (path.matches is None or path.matches(row, args, session)):
            rows.append(row)
            if limit is not None and len(rows) >= limit:
                break
    return _shown(session, plan, table.definition, rows, args)


def _source(
    session: Session, plan: Select, args: Sequence[Literal]
) -> tuple[Definition, list[Values]]:
    assert plan.table is not None
    if catalog.is_system(plan.table):
        return catalog.system_table(session, plan.table[1])
    table = session.server.table(session.key(plan.table))
    path = path_of(plan.where, table.definition)
    seen = [each.seen_by(session.transaction) for each in candidates(path, table, args, session)]
    return table.definition, [row for row in seen if row is not None]


def _matching(
    session: Session,
    plan: Select,
    definition: Definition,
    rows: list[Values],
    args: Sequence[Literal],
) -> list[Values]:
    if plan.where is None:
        return rows
    matches = bound(plan.where, definition)
    return [row for row in rows if matches(row, args, session)]


def _shown(
    session: Session,
    plan: Select,
    definition: Definition,
    rows: list[Values],
    args: Sequence[Literal],
) -> list[Values]:
    if any(isinstance(each, Call) and each.name == "COUNT" for each in plan.shown):
        return [
            tuple(
                len(rows)
                if isinstance(each, Call) and each.name == "COUNT"
                else bound(each)((), args, session)
                for each in plan.shown
            )
        ]
    keys = [bound(each, definition, "ORDER BY") for each in plan.order]
    if keys:
        rows = sorted(rows, key=lambda row: [_orderly(key(row, args, session)) for key in keys])
    if plan.limit is not None:
        rows = rows[: int(args[plan.limit.number] or 0)]
    getters = [bound(each, definition, "SELECT") for each in plan.shown]
    return [tuple(each(row, args, session) for each in getters) for row in rows]


def _orderly(value: Any) -> tuple[bool, Any]:
    return value is not None, "" if value is None else value
