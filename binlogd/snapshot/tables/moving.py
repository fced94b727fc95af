"""What DDL of partitions did to rows, kept as moves that the reader of the log follows.

Told are DROP, TRUNCATE, REORGANIZE and EXCHANGE PARTITION, and another partitioning of a table with
a clustered key, where the partition of a row is certain from its values. What is not told has a
reason; the table is then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from binlogd.snapshot.log.moves import (
    Move,
    Moves,
    PartitionsEnded,
    PartitionsSpread,
    Swapped,
    Twice,
    ids_of,
)
from binlogd.snapshot.log.rowkey import Handle, HandleKind, handle_of
from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import Job, Table
from binlogd.tidb.moved_rows import Past
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.turns import Turn, step_version, turn_of

_PARTITION_GONE = "a partition was dropped or truncated: which rows went with it is in no binlog"
_EXCHANGED = "rows came or went with EXCHANGE PARTITION, without a binlog"
_REPARTITIONED = "its rows got a new table id when its partitioning changed, without a binlog"

_REASONS = {
    ActionType.DROP_TABLE_PARTITION: _PARTITION_GONE,
    ActionType.TRUNCATE_TABLE_PARTITION: _PARTITION_GONE,
    ActionType.EXCHANGE_TABLE_PARTITION: _EXCHANGED,
    ActionType.ALTER_TABLE_PARTITIONING: _REPARTITIONED,
    ActionType.REMOVE_PARTITIONING: _REPARTITIONED,
}
MOVING = (*_REASONS, ActionType.REORGANIZE_PARTITION)
_NEW_IDS = (ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING)

Seen = Callable[[int], int]
"""The highest schema version of rows whose transaction began before a time."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Tables whose rows a job moved; with `reason` nobody can tell which. `heirs` are new ids of
    tables, and the ids that they had."""

    table_ids: frozenset[int]
    reason: str = ""
    heirs: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Moving:
    """The moves of a history as it goes by; `jobs` is all of it.

    `seen` asks the log what the versions of its rows tell of jobs beside each other; None where it
    is not at hand. The keys of `placed` tables have a partition in them already.
    """

    jobs: Sequence[Job] = ()
    seen: Seen | None = None
    placed: frozenset[int] = frozenset()
    _moves: list[Move] = field(default_factory=list)
    _states: dict[int, list[tuple[int, Table]]] = field(default_factory=dict)
    _turns: dict[int, tuple[Turn, ...]] = field(default_factory=dict)
    _twice: list[Twice] = field(default_factory=list)

    def know(self, info: Table, version: int) -> None:
        """A table is like that from a schema version on."""
        self._states.setdefault(info.id, []).append((version, info))

    def knows(self, table_id: int) -> bool:
        """Whether anything was told of a table."""
        return table_id in self._states

    def begin(self, past: Past) -> None:
        """Rows that come may not have seen a job from before all that is known; before `know`."""
        job, before, plain, after = past.job, past.before, past.plain, past.job.table
        if past.gone is None or past.reason or after is None:
            return
        for each in (before, plain):
            if each is not None and not self.knows(each.id):
                self.know(each, 0)
        self.know(after, job.schema_version)
        self._take_turn(before.id, past.turn)
        if plain is not None:
            self.know(replace(plain, id=past.heir), job.schema_version)
            move: Move = Swapped(job.schema_version, before.id, past.heir, plain.id, after)
        elif job.type == ActionType.TRUNCATE_TABLE_PARTITION:
            move = PartitionsEnded(job.schema_version, before.id, past.gone.ids)
        else:
            self._note_twice(job, before, past.gone.ids)
            move = PartitionsSpread(job.schema_version, before.id, past.gone.ids, after)
        self._moves.append(move)

    def take(
        self, job: Job, after: Table, is_rewritten: Mapping[int, object], commit_ts: int
    ) -> Touched:
        """What a job of `MOVING` that is in force did, whose binlog has this commit_ts; before
        `know` of its table. Tables with `is_rewritten` have rows of older columns."""
        if job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            return self._exchange(job, after, is_rewritten, commit_ts)
        before = self._now(job.table_id)
        try:
            move, turn = self._moved(job, before, after), self._turn(job, commit_ts)
        except Unplaceable as error:
            reason = f"{_REASONS[ActionType(job.type)]}, and {error}"
            return Touched(frozenset({after.id}), reason, _heirs(job, after))
        if move is None:
            return Touched(frozenset())
        if isinstance(move, PartitionsEnded) and job.type == ActionType.DROP_TABLE_PARTITION:
            move = move._replace(began_ts=job.began_ts, hidden_version=turn.version)
            self.know(after, turn.version)
        self._moves.append(move)
        self._take_turn(after.id, turn)
        is_spread_only = job.type == ActionType.REORGANIZE_PARTITION
        touched = frozenset[int]() if is_spread_only else frozenset({after.id})
        return Touched(touched, heirs=_heirs(job, after))

    def reaching(self, living: Iterable[int]) -> Moves:
        """The moves that reach tables which are there at the end."""
        there = set(living)
        ids = {each for move in self._moves for each in ids_of(move)} | (self.placed & there)
        if not (ids & there):
            return Moves()
        known = {each: tuple(self._states[each]) for each in ids if each in self._states}
        handles = {each: self.handle(states[-1][1]) for each, states in known.items()}
        twice = tuple(self._twice)
        return Moves(tuple(self._moves), known, handles, dict(self._turns), twice)

    def handle(self, info: Table) -> Handle:
        """What tells the rows of a table apart."""
        handle = handle_of(info)
        is_swapped = info.id in self.placed or any(
            isinstance(move, Swapped) and move.table_id == info.id for move in self._moves
        )
        if handle.kind is HandleKind.HIDDEN and is_swapped:
            return Handle(HandleKind.PLACED, handle.column_ids)
        return handle

    def are_elsewhere(self, table_id: int, version: int) -> bool:
        """Whether rows of a table came to other partitions behind a schema version."""
        behind = (move for move in self._moves if move.version > version)
        return any(
            not isinstance(each, PartitionsEnded) and table_id in ids_of(each) for each in behind
        )

    def ended_in(self, table_id: int, version: int) -> Moves | None:
        """The moves behind a schema version, if they took rows of a table away and brought it none
        of others."""
        behind = [move for move in self._moves if move.version > version]
        if any(isinstance(move, Swapped) and table_id in ids_of(move) for move in behind):
            return None
        return self.reaching([table_id])

    def _now(self, table_id: int) -> Table | None:
        states = self._states.get(table_id)
        return states[-1][1] if states else None

    def _moved(self, job: Job, before: Table | None, after: Table) -> Move | None:
        if before is None:
            raise Unplaceable("nobody knows what it was like before")
        if job.type in _NEW_IDS:
            if handle_of(before).kind is HandleKind.HIDDEN:
                raise Unplaceable("its rows have no key to be followed by")
            if after.partitioning is not None:
                PartitionLookup(after)
            return PartitionsSpread(job.schema_version, before.id, None, after)
        gone = frozenset(before.partition_ids) - frozenset(after.partition_ids)
        is_spread = job.type == ActionType.REORGANIZE_PARTITION
        try:
            PartitionLookup(before)
            PartitionLookup(after)
        except Unplaceable:
            if is_spread:
                return None  # wherever rows lie, they stay in their table
            raise
        if is_spread:
            self._note_twice(job, before, gone)
            return PartitionsSpread(job.schema_version, before.id, gone, after)
        return PartitionsEnded(job.schema_version, before.id, gone)

    def _turn(self, job: Job, commit_ts: int) -> Turn:
        """The log is asked only where jobs beside it leave more than one version."""
        others = {each.schema_version for each in self.jobs if each.id != job.id}
        over = [each.schema_version for each in self.jobs if each.finished_ts <= job.began_ts]
        known = max(over, default=0)
        turn = turn_of(job, commit_ts, others, known)
        is_certain = known > 0 and turn.version == turn.sure_version
        if is_certain or self.seen is None:
            return turn
        return turn_of(job, commit_ts, others, max(self.seen(job.began_ts), known))

    def _take_turn(self, table_id: int, turn: Turn) -> None:
        self._turns[table_id] = (*self._turns.get(table_id, ()), turn)

    def _note_twice(self, job: Job, before: Table, gone: frozenset[int]) -> None:
        if handle_of(before).kind is HandleKind.HIDDEN and job.snapshot_ts:
            others = {each.schema_version for each in self.jobs if each.id != job.id}
            switched = step_version(job, 1, others)
            twice = Twice(job.schema_version, switched, before.id, gone, job.snapshot_ts)
            self._twice.append(twice)

    def _exchange(
        self, job: Job, after: Table, is_rewritten: Mapping[int, object], commit_ts: int
    ) -> Touched:
        before, plain = self._now(after.id), self._now(job.table_id)
        gone = set(before.partition_ids) - set(after.partition_ids) if before else set()
        if before is None or plain is None or len(gone) != 1:
            ids = {after.id, job.table_id, *after.partition_ids, *gone}
            return Touched(frozenset(ids), f"{_EXCHANGED}, of a table that nobody knows")
        (freed,) = gone
        reason = ""
        if "WITHOUT VALIDATION" in job.query.upper():
            reason = "and WITHOUT VALIDATION lets rows lie in any partition"
        elif before.id in is_rewritten or plain.id in is_rewritten:
            reason = "and MODIFY COLUMN had rewritten one of the two tables before"
        try:
            PartitionLookup(before)
            PartitionLookup(after)
        except Unplaceable as error:
            reason = f"and {error}"
        self.know(replace(plain, id=freed), job.schema_version)
        if not reason:
            self._take_turn(after.id, self._turn(job, commit_ts))
            self._moves.append(Swapped(job.schema_version, after.id, freed, plain.id, after))
        reason = f"{_EXCHANGED}, {reason}" if reason else ""
        return Touched(frozenset({after.id, freed}), reason, heirs=((freed, plain.id),))


def _heirs(job: Job, after: Table) -> tuple[tuple[int, int], ...]:
    return ((after.id, job.table_id),) if after.id != job.table_id else ()
