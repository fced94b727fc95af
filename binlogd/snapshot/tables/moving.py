"""What DDL of partitions did to rows, kept as moves that the reader of the log follows.

Told are DROP, TRUNCATE, REORGANIZE and EXCHANGE PARTITION, and another partitioning of a table with
a clustered key, where the partition of a row is certain from its values. What is not told has a
reason; the table is then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from binlogd.snapshot.log.moves import Ended, Move, Moves, Spread, Swapped, Twice, ids_of
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

_DROP_STEPS = 2
"""Schema versions before its last one from which DROP PARTITION hides its partitions (`turns`)."""

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

    With `seen` the log is at hand: what the versions of its rows tell of jobs beside each other is
    known, and rows of a table can be told apart by their partition.
    """

    jobs: Sequence[Job] = ()
    seen: Seen | None = None
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
        """Rows that come may not have seen a job from before all that is known; before `know`.

        Of exchanges nothing is taken: rows of the other table are not to be had any more.
        """
        job, before, after = past.job, past.before, past.job.table
        if past.gone is None or after is None or past.heir:
            return
        if not self.knows(before.id):
            self.know(before, 0)
        self.know(after, job.schema_version)
        self._turns[before.id] = (*self._turns.get(before.id, ()), past.turn)
        if job.type == ActionType.TRUNCATE_TABLE_PARTITION:
            self._moves.append(Ended(job.schema_version, before.id, past.gone.ids))
        else:
            self._moves.append(Spread(job.schema_version, before.id, past.gone.ids, after))

    def take(
        self, job: Job, after: Table, is_rewritten: Mapping[int, object], commit_ts: int
    ) -> Touched:
        """What a job of `MOVING` that is in force did, whose binlog has this commit_ts; before
        `know` of its table. Tables with `is_rewritten` have rows of older columns."""
        if job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            return self._exchange(job, after, is_rewritten, commit_ts)
        before = self._now(job.table_id)
        try:
            move = self._moved(job, before, after)
            turn = self._turn(job, commit_ts)
        except Unplaceable as error:
            reason = f"{_REASONS[ActionType(job.type)]}, and {error}"
            return Touched(frozenset({after.id}), reason, _heirs(job, after))
        if move is None:
            return Touched(frozenset())
        self._moves.append(move)
        if job.type == ActionType.DROP_TABLE_PARTITION:
            self.know(after, turn.version)
        self._turns[after.id] = (*self._turns.get(after.id, ()), turn)
        is_spread_only = job.type == ActionType.REORGANIZE_PARTITION
        touched = frozenset[int]() if is_spread_only else frozenset({after.id})
        return Touched(touched, heirs=_heirs(job, after))

    def told(self, living: Iterable[int]) -> Moves:
        """The moves that reach tables which are there at the end."""
        ids = {each for move in self._moves for each in ids_of(move)}
        if not ids:
            return Moves()
        known = {each: tuple(self._states[each]) for each in ids if each in self._states}
        if not (ids & set(living)):
            return Moves()
        handles = {each: self.handle(states[-1][1]) for each, states in known.items()}
        twice = tuple(self._twice)
        return Moves(tuple(self._moves), known, handles, dict(self._turns), twice)

    def handle(self, info: Table) -> Handle:
        """What tells the rows of a table apart."""
        handle = handle_of(info)
        is_swapped = any(
            isinstance(move, Swapped) and move.table_id == info.id for move in self._moves
        )
        if handle.kind is HandleKind.HIDDEN and is_swapped:
            return Handle(HandleKind.PLACED, handle.column_ids)
        return handle

    def ended_in(self, table_id: int, version: int) -> Moves | None:
        """The moves behind a schema version, if they took rows of a table away and brought it none
        of others."""
        behind = [move for move in self._moves if move.version > version]
        if any(isinstance(move, Swapped) and table_id in ids_of(move) for move in behind):
            return None
        return self.told([table_id])

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
            return Spread(job.schema_version, before.id, None, after)
        gone = frozenset(before.partition_ids) - frozenset(after.partition_ids)
        if job.type == ActionType.REORGANIZE_PARTITION:
            return self._reorganized(job, before, after, gone)
        PartitionLookup(before)
        PartitionLookup(after)
        if job.type == ActionType.TRUNCATE_TABLE_PARTITION:
            return Ended(job.schema_version, before.id, gone)
        return Ended(job.schema_version, before.id, gone, job.start_ts)

    def _turn(self, job: Job, commit_ts: int) -> Turn:
        """Raises Unplaceable."""
        others = {each.schema_version for each in self.jobs if each.id != job.id}
        known = 0
        if job.type == ActionType.DROP_TABLE_PARTITION and self.seen is None:
            self._check_alone(job)
        elif job.type == ActionType.DROP_TABLE_PARTITION and self.seen is not None:
            over = (each.schema_version for each in self.jobs if each.finished_ts <= job.began_ts)
            known = max(self.seen(job.began_ts), *over)
        return turn_of(job, commit_ts, others, known)

    def _reorganized(
        self, job: Job, before: Table, after: Table, gone: frozenset[int]
    ) -> Move | None:
        """Where nobody can tell the partitions, rows stay in their table all the same."""
        try:
            PartitionLookup(before)
            PartitionLookup(after)
        except Unplaceable:
            return None
        if handle_of(before).kind is HandleKind.HIDDEN and job.snapshot_ts:
            others = {each.schema_version for each in self.jobs if each.id != job.id}
            switched = step_version(job, 1, others)
            twice = Twice(job.schema_version, switched, before.id, gone, job.snapshot_ts)
            self._twice.append(twice)
        return Spread(job.schema_version, before.id, gone, after)

    def _check_alone(self, job: Job) -> None:
        """Of a job that ran beside others nobody knows at which versions its steps were."""
        for other in self.jobs:
            if (
                other.id != job.id
                and other.schema_version > 0
                and other.start_ts < job.finished_ts
                and other.finished_ts > job.start_ts
                and abs(other.schema_version - job.schema_version) <= _DROP_STEPS + 1
            ):
                raise Unplaceable(f"DDL job {other.id} ran at the same time")

    def _exchange(
        self, job: Job, after: Table, is_rewritten: Mapping[int, object], commit_ts: int
    ) -> Touched:
        before, plain = self._now(after.id), self._now(job.table_id)
        gone = set(before.partition_ids) - set(after.partition_ids) if before else set()
        if before is None or plain is None or len(gone) != 1:
            ids = {after.id, job.table_id, *after.partition_ids, *gone}
            return Touched(frozenset(ids), f"{_EXCHANGED}, of a table that nobody knows")
        (freed,) = gone
        heirs = ((freed, plain.id),)
        touched = frozenset({after.id, freed})
        reason = ""
        if handle_of(before).kind is HandleKind.HIDDEN and self.seen is None:
            reason = "and have no key to be told apart by"
        elif "WITHOUT VALIDATION" in job.query.upper():
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
            turn = self._turn(job, commit_ts)
            self._turns[after.id] = (*self._turns.get(after.id, ()), turn)
            self._moves.append(Swapped(job.schema_version, after.id, freed, plain.id, after))
        return Touched(touched, f"{_EXCHANGED}, {reason}" if reason else "", heirs)


def _heirs(job: Job, after: Table) -> tuple[tuple[int, int], ...]:
    return ((after.id, job.table_id),) if after.id != job.table_id else ()
