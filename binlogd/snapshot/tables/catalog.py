"""Which tables there are at one commit_ts, how their rows are told apart, and what nobody can tell.

Invariant. A table is in the catalog exactly if it is visible at the commit_ts, under the name and
with the columns it has then; everything is keyed by ids.
Why it holds. DDL binlogs with a commit_ts up to the moment are applied in that order, no others. A
truncated table has a new id, a dropped one none, a renamed one keeps its own.

Some DDL changes rows without a binlog: partitions that are dropped, truncated or exchanged, a table
that changes its partitioning. `moving` keeps what it did, for the reader of the log to follow. A
table of which that cannot be told, or whose older rows a log that begins late lacks, is left out
with the reason; never exported wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from binlogd.errors import MissingDdlJob, Refused, Unfit
from binlogd.snapshot.bases.choice import UnusableBase
from binlogd.snapshot.log.moves import Moves
from binlogd.snapshot.log.rowkey import Handle, HandleKind
from binlogd.snapshot.spec import LeftOut
from binlogd.snapshot.tables.built_on import Base, BaseReuse, BaseTable, carry
from binlogd.snapshot.tables.moving import MOVING, Moving, Seen
from binlogd.tidb.ddl_text import changed_columns
from binlogd.tidb.kinds import DROPS_COLUMNS, ActionType, SchemaState
from binlogd.tidb.model import Column, Job, Table
from binlogd.tidb.rewrite import Rewritten
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso


@dataclass(frozen=True, slots=True)
class DdlBinlog:
    """The Commit of a DDL, as it stands in the log."""

    commit_ts: Tso
    job_id: int
    schema_state: int
    query: str


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table that will be exported.

    `info` also has the columns that a MODIFY COLUMN replaced; `rewritten` tells by which. Changes
    with a commit_ts above `since_ts` make its rows, on top of what `carry` brings from a base.
    """

    database: str
    info: Table
    handle: Handle
    columns: tuple[Column, ...]
    left_out_columns: tuple[str, ...]
    rewritten: tuple[Rewritten, ...]
    since_ts: Tso = NO_TS
    carry: BaseReuse | None = None

    @property
    def label(self) -> str:
        """How people call it."""
        return f"{self.database}.{self.info.name}"

    def shows(self, column: Column) -> bool:
        """Whether users see it."""
        return column in self.columns or column.name in self.left_out_columns

    def shown_columns(self) -> list[Column]:
        """Every column that users see, those too that the files lack."""
        return list(filter(self.shows, self.info.columns))


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything at one moment: tables by id, tables left out, ids whose rows do not matter, and
    what DDL did to rows without a binlog."""

    tables: Mapping[int, TablePlan]
    left_out: tuple[LeftOut, ...]
    passed_over: frozenset[int]
    tracker: bytes
    moves: Moves = field(default_factory=Moves)
    base_version: int = 0
    """The schema version of the base, if there is one."""


def name_in(tables: Mapping[int, TablePlan], table_id: int) -> str:
    """How people call a table."""
    plan = tables.get(table_id)
    return plan.label if plan is not None else f"table id {table_id}"


@dataclass(frozen=True, slots=True)
class Origin:
    """What is behind the catalog besides the log.

    `is_headless`: the log is complete behind the base only, so that whatever is older must come
    from it. Where it is complete, a table that the base cannot give is read from the log instead.
    With `changes_from`, tables are wanted whose changes behind that the log tells, whatever was
    before; the base then says where a headless log begins. With `has_rows`, the rows of then are
    known to whoever asks, who takes the moves to them; the keys of `placed` tables have a partition
    in them there. `leaving` are columns that a DROP COLUMN has announced by then, by the ids of
    their tables and their own: the schema has them still, and nobody sees them any more.
    """

    base: Base | None = None
    is_headless: bool = False
    changes_from: Tso = NO_TS
    has_rows: bool = False
    placed: frozenset[int] = frozenset()
    leaving: Collection[tuple[int, int]] = ()


def catalog(
    jobs: Sequence[Job],
    ddl: Iterable[DdlBinlog],
    *,
    log_begins: Tso,
    ignore_schemas: Iterable[str],
    origin: Origin | None = None,
    seen: Seen | None = None,
) -> Catalog:
    """The catalog after these DDL binlogs (all of the log up to the moment, by commit_ts).

    `jobs` is the whole history. `seen` asks the log, where it is at hand. Raises MissingDdlJob, and
    Refused after a FLASHBACK CLUSTER.
    """
    origin = origin or Origin()
    walk = _Walk(base=origin.base, moving=Moving(jobs, seen, _placed(origin)))
    if origin.base is not None and origin.is_headless:
        walk.begin_at(jobs, origin.base)
        walk.hide(origin.leaving)
    else:
        walk.begin(jobs, log_begins)
    walk.replay({job.id: job for job in jobs}, ddl)
    ignored = {name.lower() for name in ignore_schemas}
    plans, left_out = {}, list(walk.lost_schemas)
    for named, info in walk.tracker.tables():
        if info.is_view or info.is_sequence or named.database.lower() in ignored:
            continue
        try:
            plans[info.id] = _sourced(_plan(named.database, info, walk), walk, origin)
        except _Lost as lost:
            left_out.append(LeftOut(named.database, named.table, str(lost)))
    passed_over, moves = _ids_of(jobs) - plans.keys(), walk.moving.reaching(plans)
    tracker, version = walk.tracker.snapshot(), walk.base_version
    return Catalog(plans, tuple(left_out), passed_over, tracker, moves, version)


def _placed(origin: Origin) -> frozenset[int]:
    held = origin.base.tables if origin.base is not None else {}
    placed = HandleKind.PLACED.name.lower()
    of_base = (table_id for table_id, each in held.items() if each.entry.handle == placed)
    return origin.placed.union(of_base)


class _Lost(Unfit):
    """Why neither the log nor the base can tell a table."""


def _sourced(plan: TablePlan, walk: _Walk, origin: Origin) -> TablePlan:
    """The plan with where its rows come from: the log, or the base and what is behind it."""
    base, tainted = origin.base, walk.reasons.get(plan.info.id)
    if origin.changes_from:
        _check_told(walk, plan.info.id, origin)
        return replace(plan, since_ts=origin.changes_from)
    try:
        carried = _carried(plan, walk, base)
    except UnusableBase as error:
        unusable = f"; the base does not help: {error}"
    else:
        if base is not None and carried is not None:
            return replace(plan, since_ts=base.commit_ts, carry=carried)
        unusable = ""
    if tainted is not None:
        raise _Lost(tainted.text + unusable)
    if base is None or not origin.is_headless:
        return plan
    if unusable:
        raise _Lost(f"the log holds its changes only{unusable}")
    if any(each.commit_ts > base.commit_ts for each in walk.moved.get(plan.info.id, ())):
        raise _Lost(f"the log holds its changes only; {_MOVED}")
    if plan.info.id not in walk.born:
        raise _Lost("it came back with rows from before the base, which has none of it")
    return replace(plan, since_ts=base.commit_ts)


def _check_told(walk: _Walk, table_id: int, origin: Origin) -> None:
    """Rows that came or went without a binlog are changes to whoever has the rows, if anybody."""
    from_ts, tainted = origin.changes_from, walk.reasons.get(table_id)
    if tainted is not None and tainted.commit_ts > from_ts:
        raise _Lost(tainted.text)
    moved = walk.moved.get(table_id, ())
    if not origin.has_rows and any(each.commit_ts > from_ts for each in moved):
        raise _Lost(_MOVED)


def _carried(plan: TablePlan, walk: _Walk, base: Base | None) -> BaseReuse | None:
    """What the base brings of a table, None where it has none of it. Raises UnusableBase."""
    entry = walk.base_tables.get(plan.info.id)
    if base is None or entry is None:
        return None
    moved, tainted = walk.moved.get(plan.info.id, ()), walk.reasons.get(plan.info.id)
    if tainted is not None and tainted.commit_ts > base.commit_ts:
        return None
    is_placed = plan.handle.kind is HandleKind.PLACED
    if is_placed and walk.moving.are_elsewhere(plan.info.id, walk.base_version):
        raise UnusableBase(_PLACED_ANEW)
    carried = carry(base, entry, plan.columns, plan.rewritten, plan.handle)
    behind = [each for each in moved if each.commit_ts > base.commit_ts]
    if not behind:
        return carried
    moves = walk.moving.ended_in(plan.info.id, walk.base_version)
    if moves is None or any(each.began_ts <= base.commit_ts for each in behind):
        raise UnusableBase(_MOVED)
    deciding = moves.followed().deciding(plan.info.id, walk.base_version)
    if any(entry.entry.losses.get(each.name) for each in plan.columns if each.id in deciding):
        raise UnusableBase(f"{_MOVED}, by values that are lost in the base")
    return replace(carried, moves=moves, at_version=walk.base_version)


def _ids_of(jobs: Sequence[Job]) -> frozenset[int]:
    """Every table and partition that the history names."""
    ids = {job.table_id for job in jobs}
    for info in (info for job in jobs for info in (job.table, *job.tables) if info is not None):
        ids |= {info.id, *info.partition_ids}
    return frozenset(ids)


# --- the walk through the DDL --------------------------------------------------------------

_MOVED = "partitions of it came or went meanwhile, and with them rows that no binlog names"
_PLACED_ANEW = "its rows are told apart by partitions that came and went meanwhile"
_OLDER_THAN_LOG = "it was there before the log begins: its older rows are in no file"
_SCHEMA_RECOVERED = "FLASHBACK DATABASE brought it back, and the history does not say with what"

MAKES = (ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, ActionType.TRUNCATE_TABLE)
"""Jobs whose tables begin empty."""
_REWRITES = (ActionType.MODIFY_COLUMN, ActionType.MULTI_SCHEMA_CHANGE)


class _Taint(NamedTuple):
    """From when on the log cannot tell a table, and why."""

    commit_ts: Tso
    text: str


class _Moved(NamedTuple):
    """When a DDL moved rows of a table, and when it began to."""

    commit_ts: Tso
    began_ts: int


@dataclass(slots=True)
class _Walk:
    """`begins_behind`: it began with the very schema of a base, which has older binlogs in it."""

    tracker: SchemaTracker = field(default_factory=SchemaTracker)
    reasons: dict[int, _Taint] = field(default_factory=dict)
    moved: dict[int, tuple[_Moved, ...]] = field(default_factory=dict)
    base_version: int = 0
    moving: Moving = field(default_factory=Moving)
    born: set[int] = field(default_factory=set)
    begins_behind: Tso = NO_TS
    base: Base | None = None
    base_tables: Mapping[int, BaseTable] = field(default_factory=dict)
    rewritten: dict[int, tuple[Rewritten, ...]] = field(default_factory=dict)
    lost_schemas: list[LeftOut] = field(default_factory=list)
    _infos: dict[int, Table] = field(default_factory=dict)
    _leaving: dict[int, Table] = field(default_factory=dict)

    def begin(self, jobs: Sequence[Job], log_begins: Tso) -> None:
        self.tracker.load(jobs)
        if any(0 < job.finished_ts <= log_begins for job in jobs):
            self.tracker.apply_finished_by(log_begins)
        self._know_older()

    def begin_at(self, jobs: Sequence[Job], base: Base) -> None:
        """Begins with the schema of a base. One that keeps none is asked for by its time: jobs end
        a little after their binlog, and what is still in the log is walked through once more."""
        if base.tracker:
            self.tracker = SchemaTracker.from_snapshot(base.tracker)
            self.begins_behind = base.commit_ts
        self.tracker.load(jobs)
        if not base.tracker:
            self.tracker.apply_finished_by(base.commit_ts)
        for past in self.tracker.moved.unsettled(base.commit_ts):
            self.moving.begin(past)
        self._know_older()
        for table_id, table in base.at(()).items():
            info = self._infos.get(table_id)
            if info is not None:
                self._leaving[table_id] = replace(info, columns=tuple(table.shown_of(info)))

    def hide(self, leaving: Collection[tuple[int, int]]) -> None:
        """These columns, by the ids of their tables and their own, are announced to go."""
        for table_id in {table_id for table_id, _ in leaving} & self._infos.keys():
            info = self._infos[table_id]
            left = [each for each in info.columns if (table_id, each.id) not in leaving]
            self._leaving[table_id] = replace(info, columns=tuple(left))

    def _know_older(self) -> None:
        for _, info in self.tracker.tables():
            self.reasons[info.id] = _Taint(NO_TS, _OLDER_THAN_LOG)
            self._infos[info.id] = info
            if not self.moving.knows(info.id):
                self.moving.know(info, 0)

    def replay(self, jobs: Mapping[int, Job], ddl: Iterable[DdlBinlog]) -> None:
        """Takes the binlogs one after the other. Raises MissingDdlJob, Refused."""
        base_ts = self.base.commit_ts if self.base is not None else NO_TS
        is_behind = False
        for binlog in ddl:
            if binlog.commit_ts <= self.begins_behind:
                continue
            if binlog.commit_ts > base_ts and not is_behind:
                is_behind = True
                self._meet_base()
            job = jobs.get(binlog.job_id)
            if job is None:
                if binlog.query.lstrip().lower().startswith("select setval"):
                    continue  # a sequence's next batch, which is in no history
                raise MissingDdlJob(binlog.job_id, binlog.commit_ts, binlog.query)
            self.step(job, binlog.schema_state, binlog.commit_ts)
        if not is_behind:
            self._meet_base()

    def _meet_base(self) -> None:
        """The schema is the one that the base was taken with."""
        if self.base is not None:
            self.base_tables = self.base.at(self.tracker.tables())
            self.base_version = self.tracker.version

    def step(self, job: Job, schema_state: int, commit_ts: Tso) -> None:
        """Moves the schema on by a DDL, and takes note of what it did to rows without a binlog.
        Raises Refused for one after which nobody can know the rows."""
        if job.type == ActionType.FLASHBACK_CLUSTER and job.is_done:
            raise Refused(
                f"DDL job {job.id} is a FLASHBACK CLUSTER: what it did to the rows is in no binlog;"
                " export a moment before it"
            )
        effect = self.tracker.apply(job, schema_state)
        is_announced = schema_state == SchemaState.DELETE_ONLY and job.type in DROPS_COLUMNS
        if is_announced and job.is_done and job.table is not None:
            self._leaving[job.table.id] = job.table
        if not effect.is_in_force:
            return
        made = [info for info in (job.table, *job.tables) if info is not None]
        if job.type in MAKES:
            self.born.update(info.id for info in made)
        if job.type == ActionType.RECOVER_SCHEMA and not effect.created[1:]:
            self.lost_schemas.append(LeftOut(effect.name.database, "*", _SCHEMA_RECOVERED))
        info = job.table
        if info is None:
            return
        self._leaving.pop(info.id, None)
        if job.type in MOVING:
            self._move(job, info, commit_ts)
        before = self._infos.get(info.id)
        if before is not None and job.type in _REWRITES:
            found = _rewritten(before, info, job)
            self.rewritten[info.id] = (*self.rewritten.get(info.id, ()), *found)
        for each in made:
            self._infos[each.id] = each
            self.moving.know(each, job.schema_version)

    def shown(self, info: Table) -> list[Column]:
        """The columns that users see. One that is announced to go is hidden from them already."""
        left = self._leaving.get(info.id, info)
        ids = {column.id for column in left.columns}
        return [column for column in info.shown_columns() if column.id in ids]

    def _move(self, job: Job, info: Table, commit_ts: Tso) -> None:
        touched = self.moving.take(job, info, self.rewritten, commit_ts)
        for heir, table_id in touched.heirs:
            if table_id in self.reasons:
                self.reasons[heir] = self.reasons[table_id]
            self.moved[heir] = self.moved.get(table_id, ())
            if table_id in self.rewritten:
                self.rewritten[heir] = self.rewritten[table_id]
            if table_id in self._infos:
                self._infos[heir] = replace(self._infos[table_id], id=heir)
        taints = [self.reasons[each] for each in touched.table_ids if each in self.reasons]
        for table_id in touched.table_ids:
            if touched.reason:
                self.reasons[table_id] = _Taint(commit_ts, touched.reason)
            else:
                known = self.moved.get(table_id, ())
                self.moved[table_id] = (*known, _Moved(commit_ts, job.start_ts))
                if taints:
                    self.reasons[table_id] = max(taints)


def _rewritten(before: Table, after: Table, job: Job) -> list[Rewritten]:
    """Columns that this job gave a new id, with the columns they replaced."""
    stayed = {column.id for column in after.columns if column.is_public}
    known = {column.id for column in before.columns if column.is_public}
    removed = {
        column.name.lower(): column
        for column in before.columns
        if column.is_public and column.id not in stayed
    }
    old_names = changed_columns(job.query)
    found = []
    for column in after.columns:
        if not column.is_public or column.id in known:
            continue
        name = column.name.lower()
        old = removed.get(old_names.get(name, name))
        if old is not None:
            found.append(Rewritten(old, column, job.schema_version))
    return found


# --- one table -------------------------------------------------------------------------------


def _plan(database: str, info: Table, walk: _Walk) -> TablePlan:
    shown, rewritten = walk.shown(info), walk.rewritten.get(info.id, ())
    present = {column.id for column in info.columns}
    # of columns that rows from before their rewriting still hold, or lack in their old way
    gone = (each.old for each in rewritten if each.old.id not in present)
    ghosts = [replace(column, name=f"_rewritten_{column.id}") for column in gone]
    return TablePlan(
        database=database,
        info=replace(info, columns=(*info.columns, *ghosts)),
        handle=walk.moving.handle(info),
        columns=tuple(column for column in shown if not column.is_virtual),
        left_out_columns=tuple(column.name for column in shown if column.is_virtual),
        rewritten=rewritten,
    )
