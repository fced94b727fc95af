"""Dropped and truncated tables are put aside, so that RECOVER and FLASHBACK find them.

No binlog holds the rows that these bring back. A table is called in the trash by the start_ts of
the job that dropped it and by its id: the job that brings it back names both (`SnapshotTS`, the
table's id), and the first tells how old it is. The steps, and what is not put aside:
docs/decisions/0019.

Source: pingcap/tidb ddl/table.go (onRecoverTable), ddl/schema.go (onRecoverSchema), ddl_api.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from binlogd.drainer.ddl.edits import Dialect, edited, quoted
from binlogd.tidb.ddl_text import escaped
from binlogd.tidb.known_tables import Effect, Named, recovered_tables
from binlogd.tidb.model import ActionType, Job, Table
from binlogd.tso import NO_TS, Tso

_NAME = re.compile(r"([0-9]{1,19})_[0-9]{1,19}")


class Replay(msgspec.Struct, frozen=True):
    """What of a DDL is executed, in order. `targets` names the table that each of the statements
    makes, changes or takes away, where that is not the table of the DDL."""

    statements: tuple[str, ...]
    targets: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class TrashStatistics:
    """What is in the trash as of the last look, and what was dropped out of it since the start."""

    tables: int = 0
    oldest_ts: Tso = NO_TS
    """start_ts of the job that dropped the oldest; 0 when it is empty."""
    dropped: int = 0
    last_error: str = ""


class Trash:
    """The schema downstream that holds what was dropped."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def put_aside(
        self, job: Job, tables: Sequence[tuple[Named, Table]], then: Sequence[str] = ()
    ) -> Replay | None:
        """What to do instead of a DROP or TRUNCATE of these tables; None where it is done as ever.
        `then` drops what is left of a database."""
        pairs = [(name, self._place(job.start_ts, table.id)) for name, table in tables]
        renames = [f"RENAME TABLE {quoted(name)} TO {quoted(place)}" for name, place in pairs]
        names = tuple(name for name, _ in pairs)
        if not pairs:
            return None
        if job.type == ActionType.TRUNCATE_TABLE:
            ((name, place),) = pairs
            again = f"CREATE TABLE {quoted(name)} LIKE {quoted(place)}"
            return Replay((*renames, again), (name, name))
        return Replay((*renames, *then), (*names, *(Named("") for _ in then)))

    def taken_back(
        self, job: Job, effect: Effect, wanted: Sequence[Named], called: Callable[[Named], Named]
    ) -> Replay | str:
        """What brings back the tables of a RECOVER or FLASHBACK; or why that cannot be told.
        `called` is what an upstream's name is downstream."""
        found = recovered_tables(job)
        if not found:
            return "its job does not name what it brings back"
        moves: list[tuple[str, Named]] = []
        views: list[tuple[str, Named]] = []
        databases: dict[str, None] = {}
        if job.type == ActionType.RECOVER_SCHEMA:
            databases[called(Named(effect.name.database)).database] = None
        for each in found:
            name = Named(effect.name.database, each.table.name)
            if each.table.is_sequence or name not in wanted:
                continue
            name = called(name)
            databases[name.database] = None
            if each.table.is_view:
                views.append((_view(name, each.raw), name))
                continue
            place = self._place(each.dropped_by_ts, each.table.id)
            moves.append((f"RENAME TABLE {quoted(place)} TO {quoted(name)}", name))
        charset = ""
        if job.database is not None:
            charset = f" CHARACTER SET = {job.database.charset} COLLATE = {job.database.collate}"
        create = "CREATE DATABASE IF NOT EXISTS"
        creates = [(f"{create} {quoted(each)}{charset}", Named(each)) for each in databases]
        done = [*creates, *moves, *views]
        return Replay(tuple(text for text, _ in done), tuple(name for _, name in done))

    def _place(self, start_ts: int, table_id: int) -> Named:
        return Named(self._schema, f"{start_ts}_{table_id}")


def dropped_by(name: str) -> Tso | None:
    """The start_ts of the job that dropped a table, by its name in the trash; None: it is not one
    of ours."""
    found = _NAME.fullmatch(name)
    return Tso(int(found[1])) if found else None


def _view(name: Named, raw: dict[str, Any]) -> str:
    columns = ", ".join(quoted(each["name"]["O"]) for each in raw.get("cols") or [])
    select = escaped(raw["view"]["view_select"])  # as TiDB prints it
    text = f"CREATE OR REPLACE VIEW {quoted(name)} ({columns}) AS {select}"
    return edited(text, Dialect.MYSQL)
