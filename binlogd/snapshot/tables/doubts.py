"""Rows beside a DDL of partitions of which nobody can know whether they saw it (see `tidb.turns`).

The version is taken for the answer; here the rows are counted, so that a snapshot can name them.
Only what was committed while a step was on its way is looked at, so one process reads it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.events import CommittedPrewrite, Reads, committed_prewrites
from binlogd.snapshot.log.moves import Move, Moves, PartitionsEnded, PartitionsSpread
from binlogd.snapshot.log.prewrites import LogHeads
from binlogd.snapshot.spec import DoubtfulRows
from binlogd.snapshot.tables.catalog import Catalog, TablePlan
from binlogd.tidb.model import Table
from binlogd.tidb.moved_rows import decoder_of
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.turns import UNKNOWN, Turn
from binlogd.wire.in_order import DELETE, changes_of
from binlogd.wire.mutation import Mutation

LOOKED_AT_MAX = 100_000
"""Transactions that were committed while a DDL of partitions was at work; no more are looked at."""
KEYS_SHOWN_MAX = 20


def in_doubt(
    log: LogHeads, known: Catalog, reads: Sequence[Reads], looked_at_max: int = LOOKED_AT_MAX
) -> tuple[DoubtfulRows, ...]:
    """What is in doubt of the tables of a snapshot, DDL by DDL; `reads` are its prewrites.

    Raises CorruptRecord, UnreadableRow.
    """
    since = {table_id: plan.since_ts for table_id, plan in known.tables.items()}
    found = waits(known.tables, known.moves, lambda step: since[step.table_id])
    if not found:
        return ()
    wanted = {each.table_id for each in found}
    for number, prewrite in enumerate(_prewrites(log, found, reads)):
        if number == looked_at_max:
            return tuple(each.report(looked_at_max) for each in found)
        version, tables = prewrite.mutations(wanted.__contains__)
        for change in tables:
            for each in found:
                each.take(change, version, prewrite.commit_ts)
    return tuple(each.report() for each in found if each.rows)


def _prewrites(
    log: LogHeads, waits: Sequence[DoubtWait], reads: Sequence[Reads]
) -> Iterator[CommittedPrewrite]:
    """Those that were committed while one of them was at work."""
    for part, (at, commit_ts) in zip(log.parts, reads, strict=True):
        is_wanted = at < 0  # none
        for each in waits:
            turn = each.turn
            is_wanted |= (commit_ts > turn.published_ts) & (commit_ts <= turn.settled_ts)
        yield from committed_prewrites(part, Reads(at[is_wanted], commit_ts[is_wanted]))


class DoubtStep(NamedTuple):
    """A move with its turn, and the table that it is about before and after."""

    move: Move
    turn: Turn
    before: Table
    after: Table

    @property
    def table_id(self) -> int:
        """The table."""
        return self.before.id


def _steps(moves: Moves) -> Iterator[DoubtStep]:
    """Each move with its turn: of one table both are kept in the order of schema versions."""
    for table_id, turns in moves.turns.items():
        of_table = (each for each in moves.moves if _owner(each) == table_id)
        for move, turn in zip(of_table, turns, strict=True):
            states = moves.known.get(table_id, ())
            begins = min(turn.version, move.version)
            before = [info for version, info in states if version < begins]
            after = [info for version, info in states if version >= begins]
            if before and after:
                yield DoubtStep(move, turn, before[-1], after[0])


def _owner(move: Move) -> int:
    return move.after.id if isinstance(move, PartitionsSpread) else move.table_id


def waits(
    tables: Mapping[int, TablePlan], moves: Moves, since_of: Callable[[DoubtStep], int]
) -> list[DoubtWait]:
    """The DDL that took rows of these tables, and for each behind which commit_ts rows count."""
    twice = {(each.table_id, each.version) for each in moves.twice}
    found = []
    for step in _steps(moves):
        move, plan = step.move, tables.get(step.table_id)
        if plan is None or step.turn.settled_ts <= since_of(step):
            continue
        if isinstance(move, PartitionsSpread) and (move.table_id, move.version) not in twice:
            continue  # rows are where they belong, whatever they saw
        with suppress(Unplaceable):  # such a table is left out, with the reason
            found.append(DoubtWait.of(step, plan, since_of(step)))
    return found


@dataclass(slots=True)
class DoubtWait:
    """A DDL whose steps rows may have seen or not."""

    turn: Turn
    plan: TablePlan
    table_id: int
    since_ts: int
    gone: frozenset[int]
    places: PartitionLookup
    next: PartitionLookup | None
    """Of a DROP, where rows lie that had seen it: such as fit no other partition had not."""
    decoder: RowDecoder
    rows: int = 0
    first_ts: int = 0
    last_ts: int = 0
    partitions: set[int] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, step: DoubtStep, plan: TablePlan, since_ts: int) -> DoubtWait:
        """Raises Unplaceable."""
        move, turn, before, after = step
        gone = frozenset(before.partition_ids) - frozenset(after.partition_ids)
        is_drop = isinstance(move, PartitionsEnded) and move.hidden_version > 0
        following = PartitionLookup(after) if is_drop else None
        places = PartitionLookup(before)
        decoder = decoder_of(before)
        return cls(turn, plan, before.id, since_ts, gone, places, following, decoder)

    def take(self, change: Mutation, version: int, commit_ts: int) -> None:
        """Counts the rows of a transaction that are in doubt. Raises UnreadableRow."""
        is_ours = change.table_id == self.table_id and commit_ts > self.since_ts
        if not is_ours or not self.turn.is_doubtful(version, commit_ts):
            return
        try:
            for kind, old, new in changes_of(change, self.decoder):
                values = old if kind == DELETE else new
                place = self.places.look(values)
                if place not in self.gone or place is None:
                    continue
                if self.next is not None and self.next.look(values) is None:
                    continue
                self._count(values, place, commit_ts)
        except (CorruptRow, Unplaceable) as error:
            label = self.plan.label
            raise UnreadableRow(label, commit_ts, str(error)) from error

    def _count(self, values: Mapping[int, Value], place: int, commit_ts: int) -> None:
        self.rows += 1
        self.first_ts = min(self.first_ts or commit_ts, commit_ts)
        self.last_ts = max(self.last_ts, commit_ts)
        self.partitions.add(place)
        ids = self.plan.handle.column_ids
        has_key = bool(ids) and values.keys() >= set(ids)  # a hidden row id is no column
        if has_key and len(self.keys) < KEYS_SHOWN_MAX:
            self.keys[", ".join(_shown(values[each]) for each in ids)] = None

    def report(self, looked_at_max: int | None = None) -> DoubtfulRows:
        """For a snapshot; with `looked_at_max`, there was more than that to look at."""
        cause = UNKNOWN
        if looked_at_max is not None:
            cause += f"; of its transactions the first {looked_at_max} alone were looked at"
        return DoubtfulRows(
            database=self.plan.database,
            table=self.plan.info.name,
            partitions=tuple(sorted(self.partitions)),
            rows=self.rows,
            first_ts=self.first_ts or self.turn.published_ts,
            last_ts=self.last_ts or self.turn.settled_ts,
            keys=tuple(self.keys),
            cause=cause,
        )


def _shown(value: Value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
