"""What a batch of the pipeline does to the tables, told by its DDL.

The schema at the begin of a batch is that of the end of the batch before, which the lake keeps.
Only for the first batch of all the history has to tell it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from binlogd.snapshot.log.moves import Move, PartitionsSpread, Swapped, ids_of
from binlogd.snapshot.spec import LeftOut
from binlogd.snapshot.tables.built_on import Base
from binlogd.snapshot.tables.catalog import MAKES, DdlBinlog, Origin, TablePlan, catalog
from binlogd.snapshot.tables.moving import Seen
from binlogd.spark.base_loader import wanted_of
from binlogd.spark.lake.manifest import WAY_PAST, LakeBatch, PipelineStopped
from binlogd.spark.request import HIDDEN_DATABASES, ReadRequest
from binlogd.tidb.model import Job
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

_FROM_OUTSIDE = "rows came to it by EXCHANGE PARTITION from a table that is left out,"
_CAME_BACK = "it came back (RECOVER, FLASHBACK) with rows that are in no binlog"


def schema_before(jobs: Sequence[Job], start: Tso, end: Tso, ddl: Sequence[DdlBinlog]) -> bytes:
    """The schema at the begin of the first batch, (start, end], which has these DDL binlogs.

    A job ends a little after its binlog: what was over by the end and is not in the batch was
    before. But a job that began behind the start was not, though it has no binlog (ALTER TABLE
    CACHE has none).
    """
    own = {each.job_id for each in ddl}
    begins = start or min((each.commit_ts for each in ddl), default=end)
    tracker = SchemaTracker()
    tracker.load(job for job in jobs if job.id not in own and job.start_ts <= begins)
    tracker.apply_finished_by(end)
    return tracker.snapshot()


class LakeState(NamedTuple):
    """What is there when a batch begins: the schema, which tables of the lake have keys with a
    partition in them, and which columns were on their way out; `seen` asks the log."""

    tracker: bytes
    placed: frozenset[int] = frozenset()
    leaving: Collection[tuple[int, int]] = ()
    seen: Seen | None = None


def planned(
    jobs: Sequence[Job],
    ddl: Sequence[DdlBinlog],
    held: LakeState,
    asked: ReadRequest,
    *,
    start: Tso,
    end: Tso,
) -> LakeBatch:
    """The tables before and after. Raises PipelineStopped where the log cannot tell a table,
    MissingDdlJob, Refused."""
    base, since = Base("", start, asked.types, {}, held.tracker), Tso(max(1, start))
    origin = Origin(
        base,
        is_headless=True,
        changes_from=since,
        has_rows=True,
        placed=held.placed,
        leaving=held.leaving,
    )
    made_of = partial(catalog, jobs, log_begins=start, ignore_schemas=HIDDEN_DATABASES)
    before = made_of(ddl=(), origin=origin)
    after = made_of(ddl=ddl, origin=origin, seen=held.seen)
    wanted = wanted_of(after.tables, asked.wants)
    lost = [each for each in after.left_out if asked.wants(each.database, each.table)]
    moves, known = after.moves.moves, {**before.tables, **after.tables}
    # rows that are there have seen what was done when the batch begins; changes may not have
    groups = _groups(each for each in moves if each.version > after.base_version)
    every = _groups(moves)
    made = _made(jobs, ddl) | _brought(moves)
    lost += [
        LeftOut(plan.database, plan.info.name, _CAME_BACK)
        for table_id, plan in wanted.items()
        if groups.get(table_id, {table_id}) - before.tables.keys() - made
    ]
    lost += [
        LeftOut(plan.database, plan.info.name, f"{_FROM_OUTSIDE} {stranger}")
        for table_id, plan in wanted.items()
        for stranger in _strangers(every.get(table_id, frozenset()), jobs, asked, known)
    ]
    if lost:
        reasons = "; ".join(map(str, lost))
        raise PipelineStopped(f"between commit_ts {start} and {end} {reasons}. {WAY_PAST}")
    return LakeBatch(
        end=end,
        before=before.tables,
        after=wanted,
        tracker=after.tracker,
        types=asked.types,
        moves=after.moves,
        version=after.base_version,
        origins={each: groups[each] & before.tables.keys() for each in wanted if each in groups},
        placed=held.placed,
    )


def _groups(moves: Iterable[Move]) -> dict[int, frozenset[int]]:
    """By table id, the ids of tables that rows may have moved between, itself among them."""
    groups: dict[int, frozenset[int]] = {}
    for move in moves:
        ids = frozenset(ids_of(move))
        whole = ids.union(*(groups.get(each, ids) for each in ids))
        groups |= dict.fromkeys(whole, whole)
    return groups


def _brought(moves: Sequence[Move]) -> set[int]:
    """New ids under which tables go on."""
    swapped = {each.partition_id for each in moves if isinstance(each, Swapped)}
    spread = (each for each in moves if isinstance(each, PartitionsSpread))
    return swapped | {each.after.id for each in spread if each.after.id != each.table_id}


def _strangers(
    ids: frozenset[int], jobs: Sequence[Job], asked: ReadRequest, known: Mapping[int, TablePlan]
) -> list[str]:
    """Tables that are not wanted, among some that rows moved between. `known` are those before and
    after; what came and went between is named by its jobs."""
    names = {(each.database, each.info.name) for each in map(known.get, ids) if each is not None}
    unnamed = ids - known.keys()
    for job in jobs:
        if job.table_id in unnamed:
            table = job.table_name or (job.table.name if job.table is not None else "")
            names.add((job.schema_name, table))
    return sorted(f"{name[0]}.{name[1]}" for name in names if not asked.wants(*name))


def _made(jobs: Sequence[Job], ddl: Sequence[DdlBinlog]) -> set[int]:
    """Tables that begin empty in this batch."""
    ids = {each.job_id for each in ddl}
    own = [job for job in jobs if job.id in ids and job.type in MAKES]
    return {info.id for job in own for info in (job.table, *job.tables) if info is not None}
