"""A base as binlogs: what a log would hold that made it, for a downstream that has nothing.

First DDL that creates the databases and the tables as they were, then transactions that insert the
rows. A base does not change, so telling it again gives the same binlogs: the Drainer goes on with
them where its checkpoint is, like with any others. Their commit_ts are small numbers, far below
those of a TiDB; the last thing that is told is the commit_ts of the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa

from binlogd.archive.reading import gathered
from binlogd.errors import CorruptRow, Refused, UnreadableRow
from binlogd.snapshot.bases.read_back import values_of
from binlogd.snapshot.formats.create_table import create_database, create_table
from binlogd.snapshot.log.rowkey import NUMBER_BYTES, HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.base_loader import LoadedBase, rows_of
from binlogd.spark.request import HIDDEN_DATABASES
from binlogd.tidb.encode import encode_insert
from binlogd.tidb.kinds import ActionType, JobState, SchemaState
from binlogd.tidb.model import Database, Job, Table
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation, encode_mutations

BASE_TS_MAX = Tso(1 << 40)
"""Above every timestamp of a base but its commit_ts; a TSO of 1970 is above that already."""
TOGETHER_ROWS, TOGETHER_BYTES = 500, 1 << 20
_FIRST_JOB = 1 << 50

Told = tuple[int, int, bytes]
"""start_ts, commit_ts, payload."""


def jobs_of(begin: LoadedBase) -> list[Job]:
    """The DDL that makes the tables, in its order. Raises Refused for values that are lost."""
    lost = [name for name, columns in begin.losses.items() if columns]
    if lost:
        raise Refused(
            f"{begin.directory}: it lacks values of {', '.join(sorted(lost))} that had no place"
            " there (its manifest counts them); leave the table out by [syncer], or begin with a"
            " dump"
        )
    databases = SchemaTracker.from_snapshot(begin.tracker).databases()
    wanted = sorted(
        (each for each in databases if each.name.lower() not in HIDDEN_DATABASES),
        key=lambda each: each.id,
    )
    made = [_job(number, database, None, "") for number, database in enumerate(wanted, 1)]
    by_name = {each.name: each for each in wanted}
    for number, plan in enumerate(_ordered(begin), len(made) + 1):
        text = create_table(plan.info, plan.shown_columns())
        made.append(_job(number, by_name[plan.database], plan.info, text))
    return made


def binlogs_of_base(begin: LoadedBase, jobs: list[Job], after: Tso) -> Iterator[Told]:
    """Everything behind `after`. Raises CorruptRow, Corrupt, OSError, UnreadableRow."""
    for job in jobs:
        if job.finished_ts > after:
            query, state = job.query.encode("utf-8", "surrogateescape"), job.schema_state
            start, commit = Tso(job.start_ts), Tso(job.finished_ts)
            prewrite = prewrite_binlog(
                start, ddl_query=query, ddl_job_id=job.id, ddl_schema_state=state
            )
            done = commit_binlog(
                start, commit, ddl_query=query, ddl_job_id=job.id, ddl_schema_state=state
            )
            yield start, commit, join(prewrite, done)
    numbers = count(len(jobs) + 1)
    for plan in _ordered(begin):
        for rows in gathered(_rows(plan, begin), len, TOGETHER_ROWS, TOGETHER_BYTES):
            start, commit = _moments(next(numbers))
            if commit > after:
                table = Mutation(plan.info.id, rows, (), (), b"\x00" * len(rows))
                value = encode_mutations(len(jobs), [table])
                prewrite = prewrite_binlog(start, prewrite_value=value)
                yield start, commit, join(prewrite, commit_binlog(start, commit))


def _ordered(begin: LoadedBase) -> list[TablePlan]:
    return [begin.tables[table_id] for table_id in sorted(begin.tables)]


def _moments(number: int) -> tuple[Tso, Tso]:
    return Tso(2 * number - 1), Tso(2 * number)


def _job(number: int, database: Database, info: Table | None, query: str) -> Job:
    start, commit = _moments(number)
    create = create_database(database).replace("DATABASE ", "DATABASE IF NOT EXISTS ", 1)
    return Job(
        id=_FIRST_JOB + number,
        type=ActionType.CREATE_TABLE if info is not None else ActionType.CREATE_SCHEMA,
        schema_id=database.id,
        table_id=info.id if info is not None else 0,
        schema_name=database.name,
        table_name=info.name if info is not None else "",
        state=JobState.SYNCED,
        schema_state=SchemaState.PUBLIC,
        query=query or create,
        start_ts=start,
        schema_version=number,
        finished_ts=commit,
        database=database if info is None else None,
        table=info,
        tables=(),
        raw_args=None,
        raw=b"",
    )


def _rows(plan: TablePlan, begin: LoadedBase) -> Iterator[bytes]:
    """As TiDB writes them; the same ones each time."""
    label, numbers = plan.label, count(1)
    for rows, keys in rows_of(plan, begin.types):
        handles = keys.to_pylist() if keys is not None else [None] * rows.num_rows
        columns = [
            values_of(column, pa.chunked_array([array]))
            for column, array in zip(plan.columns, rows.columns, strict=True)
        ]
        for key, *values in zip(handles, *columns, strict=True):
            by_id = {column.id: value for column, value in zip(plan.columns, values, strict=True)}
            handle = None
            if plan.handle.kind in (HandleKind.HIDDEN, HandleKind.PLACED):
                number = key[:NUMBER_BYTES] if key else None
                handle = int.from_bytes(number, "big", signed=True) if number else next(numbers)
            try:
                row = encode_insert(plan.info, by_id, handle=handle)
            except (ValueError, CorruptRow) as error:
                raise UnreadableRow(label, begin.commit_ts, str(error)) from error
            yield row
