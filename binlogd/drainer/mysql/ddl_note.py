"""Whether a DDL that was interrupted was done: what is noted before it, and read out of that after.

Most statements may be run again: what they made is refused as being there, and that is forgiven. So
one counts as done only where its table is what the job says, and was not before; that the text of a
table differs alone may come from an upgrade of the server, or from an operator. Two kinds undo
themselves when they are run again: names of tables that go round, and EXCHANGE PARTITION. There the
numbers of the tables tell, which go along; where no number is told, nobody can know.

A note is `3 server text connection numbers`, each a checksum; the last only for the two kinds. One
word more, `lax`, says that it is executed without strictness: who did so reads from the warnings
what was cut, and takes the note away behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from binlogd.drainer import sql
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.txn import Ddl
from binlogd.tidb.ddl_text import Word, renamed_tables, words
from binlogd.tidb.kinds import ActionType, SchemaState
from binlogd.tidb.model import Table

UNKNOWN = "?"
NOTE_MAX = 255
_VERSION = "3"
_LAX = " lax"
REPEATED = frozenset(
    {
        ActionType.ADD_COLUMN,
        ActionType.ADD_COLUMNS,
        ActionType.DROP_COLUMN,
        ActionType.DROP_COLUMNS,
        ActionType.MODIFY_COLUMN,
        ActionType.SET_DEFAULT_VALUE,
        ActionType.MODIFY_TABLE_COMMENT,
        ActionType.MODIFY_TABLE_CHARSET,
        ActionType.MULTI_SCHEMA_CHANGE,
        ActionType.RENAME_INDEX,
        ActionType.DROP_INDEX,
        ActionType.DROP_INDEXES,
        ActionType.DROP_PRIMARY_KEY,
        ActionType.TRUNCATE_TABLE,
    }
)
"""Once more changes nothing, or is refused in words that are forgiven."""


class TableOrPartition(NamedTuple):
    """A table, or one partition of it."""

    database: str
    table: str
    partition: str = ""


class Round(NamedTuple):
    """What undoes itself: afterwards `places[n]` holds what `places[sources[n]]` held."""

    places: tuple[TableOrPartition, ...]
    sources: tuple[int, ...]


class Outcome(Enum):
    """Of a DDL that was begun."""

    NOT_DONE, DONE, UNKNOWN = range(3)


class Note(NamedTuple):
    """See the module."""

    server: str
    text: str
    connection: str
    numbers: tuple[str, ...] = ()
    is_lax: bool = False

    def __str__(self) -> str:
        """As it is stored."""
        numbers = ",".join(self.numbers) or "-"
        stored = f"{_VERSION} {self.server} {self.text or '-'} {self.connection} {numbers}"
        stored += _LAX if self.is_lax else ""
        return stored if len(stored) <= NOTE_MAX else stored.replace(numbers, UNKNOWN)

    @classmethod
    def of(cls, stored: str) -> Note | None:
        """None for the note of an earlier version, which told less."""
        parts = stored.removesuffix(_LAX).split(" ")
        if len(parts) != 5 or parts[0] != _VERSION:
            return None
        numbers = () if parts[4] == "-" else tuple(parts[4].split(","))
        text, is_lax = "" if parts[2] == "-" else parts[2], stored.endswith(_LAX)
        return cls(parts[1], text, parts[3], numbers, is_lax)


def was_lax(stored: str) -> bool:
    """Whether values may have been cut without a word; an earlier version was never strict."""
    note = Note.of(stored)
    return note is None or note.is_lax


async def taken(session: SqlSession, database: str, table: str, turn: Round | None) -> Note:
    """How things stand now. Raises DownstreamUnavailable."""
    return Note(
        sql.checksum(str((await session.rows(b"SELECT @@version"))[0][0]).encode()),
        await catalog.fingerprint(session, database, table),
        await catalog.connection_of(session, session.thread_id),
        tuple([await catalog.number(session, *each) for each in turn.places]) if turn else (),
    )


async def outcome(
    session: SqlSession,
    ddl: Ddl,
    place: TableOrPartition,
    turn: Round | None,
    before: Note | None,
    now: Note,
) -> Outcome:
    """What became of a statement that was begun at `before`. Raises as `taken`."""
    if turn is not None:
        return went_round(turn, before.numbers if before is not None else (), now.numbers)
    if before is None or not before.text or before.text == now.text or before.server != now.server:
        return Outcome.NOT_DONE
    if ddl.job.table is None:
        return Outcome.DONE
    if ddl.job.type in REPEATED:
        return Outcome.NOT_DONE
    is_so = await _is_as_the_job_says(session, place, ddl.job.table)
    return Outcome.DONE if is_so else Outcome.NOT_DONE


def went_round(turn: Round, before: Sequence[str], now: Sequence[str]) -> Outcome:
    """A table that was rebuilt meanwhile has a number that nobody knew; any other tells."""
    if len(before) != len(turn.places):
        return Outcome.UNKNOWN
    found = set()
    for at, source in enumerate(turn.sources):
        if now[at] == UNKNOWN or source == at:
            continue
        if now[at] == before[source]:
            found.add(Outcome.DONE)
        elif now[at] == before[at]:
            found.add(Outcome.NOT_DONE)
    return found.pop() if len(found) == 1 else Outcome.UNKNOWN


async def _is_as_the_job_says(session: SqlSession, place: TableOrPartition, info: Table) -> bool:
    columns, indexes = await catalog.names(session, place.database, place.table)
    shown = info.shown_columns()
    hidden = {each.name for each in info.columns if each.hidden}
    wanted = {
        each.name.lower()
        for each in info.indexes
        if each.state == SchemaState.PUBLIC and not hidden & {part.name for part in each.columns}
    }
    return columns == {each.name.lower() for each in shown} and wanted <= indexes


def goes_round(text: str, database: str) -> Round | None:
    """What a statement would undo when it is run again; None for most."""
    found = words(text)
    if found and found[0].says("RENAME"):
        return _renamed(text, database)
    for at, word in enumerate(found[:-2]):
        if word.says("EXCHANGE") and found[at + 1].says("PARTITION"):
            table = _name(found, 2, database)
            other = next(
                (n + 2 for n in range(at, len(found) - 2) if found[n].says("WITH")), len(found) - 1
            )
            part = TableOrPartition(*table, found[at + 2].text)
            return Round((part, TableOrPartition(*_name(found, other, database))), (1, 0))
    return None


def _renamed(text: str, database: str) -> Round | None:
    held: dict[TableOrPartition, TableOrPartition] = {}
    for each in renamed_tables(text):
        old = TableOrPartition(each.old_database or database, each.old_table)
        new = TableOrPartition(each.new_database or database, each.new_table)
        held[new] = held.pop(old, old)
    places = tuple(sorted(held))
    if set(held.values()) != set(places) or all(held[each] == each for each in places):
        return None
    return Round(places, tuple(places.index(held[each]) for each in places))


def _name(found: Sequence[Word], at: int, database: str) -> tuple[str, str]:
    if at + 2 < len(found) and found[at + 1].text == ".":
        return found[at].text, found[at + 2].text
    return database, found[at].text
