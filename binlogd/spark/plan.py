"""What a batch of the pipeline does to the tables, told by its DDL.

The schema at the begin of a batch is that of the end of the batch before, which the lake keeps.
Only for the first batch of all the history has to tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from binlogd.snapshot.spec import LeftOut, TypeOptions
from binlogd.snapshot.tables.built_on import Base
from binlogd.snapshot.tables.catalog import MAKES, Catalog, DdlBinlog, Origin, TablePlan, catalog
from binlogd.spark.lake.book import Batch, PipelineStopped
from binlogd.spark.request import HIDDEN_DATABASES, Request
from binlogd.tidb.model import Job
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

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


def planned(
    jobs: Sequence[Job],
    ddl: Sequence[DdlBinlog],
    tracker: bytes,
    asked: Request,
    *,
    start: Tso,
    end: Tso,
) -> Batch:
    """The tables before and after. Raises PipelineStopped where the log cannot tell a table,
    MissingDdlJob, Refused."""
    before = _catalog(jobs, (), tracker, start, asked.types)
    after = _catalog(jobs, ddl, tracker, start, asked.types)
    lost = [each for each in after.left_out if asked.wants(each.database, each.table)]
    made = _made(jobs, ddl)
    lost += [
        LeftOut(plan.database, plan.info.name, _CAME_BACK)
        for table_id, plan in after.tables.items()
        if table_id not in before.tables and table_id not in made
        if asked.wants(plan.database, plan.info.name)
    ]
    if lost:
        raise PipelineStopped(
            f"between commit_ts {start} and {end} {'; '.join(map(str, lost))}. Leave the table out"
            " (--except), or begin another lake with a later snapshot of `binlogd export` (--base)"
        )
    return Batch(
        end=end,
        before=before.tables,
        after=_wanted(after.tables, asked),
        tracker=after.tracker,
        types=asked.types,
    )


def _made(jobs: Sequence[Job], ddl: Sequence[DdlBinlog]) -> set[int]:
    """Tables that begin empty in this batch."""
    ids = {each.job_id for each in ddl}
    own = [job for job in jobs if job.id in ids and job.type in MAKES]
    return {info.id for job in own for info in (job.table, *job.tables) if info is not None}


def _catalog(
    jobs: Sequence[Job], ddl: Sequence[DdlBinlog], tracker: bytes, start: Tso, types: TypeOptions
) -> Catalog:
    base = Base("", start, types, {}, tracker)
    origin = Origin(base, is_headless=True, changes_from=Tso(max(1, start)))
    return catalog(jobs, ddl, log_begins=start, ignore_schemas=HIDDEN_DATABASES, origin=origin)


def _wanted(tables: Mapping[int, TablePlan], asked: Request) -> dict[int, TablePlan]:
    return {
        table_id: plan
        for table_id, plan in tables.items()
        if asked.wants(plan.database, plan.info.name)
    }
