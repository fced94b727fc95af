"""A batch of binlogs through the Drainer into the downstream of a configuration.

Exactly the Drainer of `binlogd serve`: its schema, filters, DDL, and progress in one transaction
with the rows. A database gets a batch by lanes, each a task of Spark (`lane_task`): all of them
come to the first DDL or to the end; here the DDL is executed, or the checkpoint saved. No row
passes through. Kafka, files, SQLite and a database whose transactions stay whole have one order of
all; their Drainer reads the batch here.

A base comes before as what a log would hold that made it: DDL that creates the databases and the
tables as they were, then transactions that insert the rows. A base does not change, so telling it
again gives the same binlogs: the Drainer goes on with them where its checkpoint is, like with any
others. Their commit_ts are small numbers, far below those of a TiDB; the last thing that is told is
the commit_ts of the base.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import TypeVar

import msgspec
import pyarrow as pa
import structlog

from binlogd.archive.reading import gathered
from binlogd.archive.store import ArchiveStore
from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.measures import KINDS
from binlogd.drainer.mysql.lane_sink import OneLane
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.ports import DdlHistory
from binlogd.drainer.rows.progress import LanePosition, Restart
from binlogd.drainer.statistics import DrainerStatistics
from binlogd.drainer.txn import Ddl, Skip
from binlogd.errors import (
    BinlogdError,
    ConfigError,
    CorruptRow,
    DownstreamUnavailable,
    Refused,
    UnreadableRow,
    leading_error,
)
from binlogd.host.disk import PosixDisk
from binlogd.node.assembly import make_sink
from binlogd.node.into_mysql import downstream_server, make_store, mysql_options
from binlogd.node.replicated import keeps_transactions_whole, newest_ts, table_filter
from binlogd.ports import BinlogSource
from binlogd.settings.setup import Setup
from binlogd.snapshot.bases.read_back import values_of
from binlogd.snapshot.formats.create_table import create_database, create_table
from binlogd.snapshot.log.rowkey import NUMBER_BYTES, HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.base_loader import LoadedBase, rows_of
from binlogd.spark.counts import RowCounts
from binlogd.spark.inputs import Input, open_input
from binlogd.spark.lake.manifest import Claim, PipelineStopped, claim_place, is_new
from binlogd.spark.lake.preparing import Executors
from binlogd.spark.lane_task import (
    InputJobs,
    KnownJobs,
    LaneDone,
    LaneWork,
    LogRange,
    LogStretch,
    Said,
    applied,
    apply_lane,
    check_begin,
    drained,
    pulled,
)
from binlogd.spark.request import HIDDEN_DATABASES, ReadRequest
from binlogd.tidb.encode import encode_insert
from binlogd.tidb.kinds import ActionType, JobState, SchemaState
from binlogd.tidb.model import Database, Job, Table
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation, encode_mutations

NOTE_MAX = 255
BASE_TS_MAX = Tso(1 << 40)
"""Above every timestamp of a base but its commit_ts; a TSO of 1970 is above that already."""
TOGETHER_ROWS, TOGETHER_BYTES = 500, 1 << 20
_FIRST_JOB = 1 << 50

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where a database stands before its lanes are spread, and whose rows are there."""

    cluster_id: int
    checkpoint: Checkpoint
    restart: Restart


class DatabaseSink:
    """What `[syncer]` names; one batch at a time."""

    def __init__(self, setup: Setup, asked: ReadRequest) -> None:
        self._setup, self._asked = setup, asked

    def apply(self, tasks: Executors, start: Tso, end: Tso, *, is_first: bool = False) -> RowCounts:
        """Returns when everything in (start, end] is downstream; what was read, and applied this
        time. `is_first`: nothing was applied yet, unless the downstream says otherwise. Raises
        PipelineStopped."""
        source, syncer = open_input(self._asked), self._setup.config.syncer
        begin, initial = source.begin(start, end), start if is_first else NO_TS
        stretch = LogRange(self._asked, start, end, begin, source.pin())
        if syncer.db_type in ("mysql", "tidb") and not keeps_transactions_whole(syncer):
            return self._by_lanes(tasks, source, stretch, initial)
        binlogs, jobs = LogStretch(stretch), InputJobs(stretch, source.jobs())
        done = asyncio.run(self._run(source.cluster_id(), binlogs, jobs, end, initial))
        inserts, updates, deletes = (done.measures.events.get(kind, 0) for kind in KINDS)
        return RowCounts(inserts, updates, deletes, binlogs.bytes_read, applied(done))

    # --- by lanes --------------------------------------------------------------------------

    def _by_lanes(
        self, tasks: Executors, source: Input, stretch: LogRange, initial: Tso
    ) -> RowCounts:
        counts, last_ts = RowCounts(), NO_TS
        while True:  # one DDL further each time, and then to the end
            ddl_ts, found = self._spread(tasks, source, stretch, initial)
            counts = counts.plus(found)
            if ddl_ts == NO_TS:
                return counts
            if ddl_ts <= last_ts:
                raise PipelineStopped(f"lanes are at the DDL of {ddl_ts} again: a bug of binlogd")
            last_ts = ddl_ts

    def _spread(
        self, tasks: Executors, source: Input, stretch: LogRange, initial: Tso
    ) -> tuple[Tso, RowCounts]:
        """Up to the end, or past the first DDL: where that was, NO_TS for the end, and what was
        read and applied on the way."""
        # worker-count is a limit, and one worker shows only states that the upstream had
        lanes = max(1, min(self._setup.config.syncer.worker_count, tasks.cores))
        begun = asyncio.run(_patiently(lambda: self._begun(source, stretch, initial, lanes)))
        if begun.checkpoint.commit_ts >= stretch.end:
            return NO_TS, RowCounts()
        work = [
            LaneWork(
                self._setup, stretch, begun.cluster_id, OneLane(at, begun.restart, begun.checkpoint)
            )
            for at in range(len(begun.restart.lanes))
        ]
        done = tasks.map(apply_lane, work)
        _say(done)
        ddl = _met(done)
        _check_walked(done)
        upto = Tso(ddl.commit_ts - 1) if ddl is not None else stretch.end
        left = [each.position for each in done]
        if max(each.commit_ts for each in left) <= upto:
            asyncio.run(_patiently(lambda: self._level(begun.cluster_id, left, upto)))
        rows = sum(each.rows for each in done)
        log.info("lanes_applied", commit_ts=upto, lanes=len(left), rows=rows)
        ends_with = done[0].checkpoint if ddl is None else ddl
        asyncio.run(_patiently(lambda: self._end(begun, ends_with)))
        ddl_ts = ddl.commit_ts if ddl is not None else NO_TS
        return ddl_ts, msgspec.structs.replace(done[0].walked, put=rows)

    async def _begun(self, source: Input, stretch: LogRange, initial: Tso, lanes: int) -> _Begun:
        """Lays out so many lanes, unless those that are there are apart: they go on as they are."""
        with closing(make_store(self._setup, source.cluster_id())) as store:
            found, restart, _ = await store.open(lanes, newest_ts(self._setup))
            checkpoint = found or Checkpoint(NO_TS)
            if checkpoint.commit_ts == NO_TS:
                checkpoint = replace(checkpoint, commit_ts=initial)
            check_begin(checkpoint.commit_ts, stretch.start, source.gone_ts())
            if checkpoint.consistent:
                checkpoint = replace(checkpoint, consistent=False)
                await store.save(checkpoint, restart.lanes)
            return _Begun(store.cluster_id, checkpoint, restart)

    async def _level(self, cluster_id: int, left: Sequence[LanePosition], upto: Tso) -> None:
        """Lanes that had nothing to do stand where they stood."""
        with closing(make_store(self._setup, cluster_id)) as store:
            await store.lay_out(left, [LanePosition(upto)] * len(left))

    async def _end(self, begun: _Begun, ends_with: Ddl | Checkpoint) -> None:
        """Executes the DDL, or saves the checkpoint, with all lanes there. Raises what a sink
        raises."""
        lanes = len(begun.restart.lanes)
        options = replace(mysql_options(self._setup), lanes=lanes)
        server = downstream_server(self._setup)
        sink = MySqlSink(server, begun.cluster_id, options, Random())
        try:
            await sink.open()
            async with asyncio.TaskGroup() as group:
                group.create_task(sink.run(), name="sink")
                if isinstance(ends_with, Ddl):
                    await sink.submit([ends_with])
                    await sink.flush()
                else:
                    await sink.submit([Skip(ends_with.commit_ts)])
                    await sink.save(ends_with)
                await sink.close()
        except BaseExceptionGroup as group:
            known = leading_error(group)
            raise known or group from group
        finally:
            await sink.close()

    # --- in one order ----------------------------------------------------------------------

    def begin(self, base: LoadedBase) -> None:
        """Returns when the downstream holds a base, or is further than that. Raises
        PipelineStopped, Refused."""
        jobs = jobs_of(base)
        cluster_id, known = open_input(self._asked).cluster_id(), KnownJobs(jobs)
        asyncio.run(self._run(cluster_id, _BaseSource(base, jobs), known, base.commit_ts, NO_TS))

    async def _run(
        self,
        cluster_id: int | None,
        binlogs: BinlogSource,
        jobs: DdlHistory,
        end: Tso,
        initial: Tso,
    ) -> DrainerStatistics:
        with closing(PosixDisk(threads=2)) as disk:
            ended = await drained(
                self._setup,
                lambda: make_sink(self._setup, disk, cluster_id),
                binlogs,
                jobs,
                end,
                initial=initial,
            )
        if ended.error:
            raise PipelineStopped(ended.error)
        return ended.statistics

    # --- whose it is -----------------------------------------------------------------------

    def claim(self, mine: Claim, *, takes_over: bool = False) -> None:
        """Makes the downstream this pipeline's, but for Kafka, which keeps no such note. Raises
        PipelineStopped where it is another's, ConfigError."""
        db_type = self._setup.config.syncer.db_type
        if db_type in ("mysql", "tidb"):
            asyncio.run(_patiently(lambda: self._claim_database(mine, takes_over=takes_over)))
        elif db_type != "kafka":
            where = self._setup.sink_dir
            claim_place(ArchiveStore.open(str(where)), str(where), mine, takes_over=takes_over)

    async def _claim_database(self, mine: Claim, *, takes_over: bool) -> None:
        to = self._setup.config.syncer.to
        where = f"the database at {to.host}:{to.port}"
        cluster_id, wanted = open_input(self._asked).cluster_id(), _noted(mine)

        def decide(note: str) -> str | None:
            found = _claim_in(note) if note else None
            needed = is_new(found, _claim_in(wanted), where, takes_over=takes_over)
            return wanted if needed else None

        with closing(make_store(self._setup, cluster_id)) as store:
            await store.owner(decide)

    def wants(self, database: str, table: str) -> bool:
        """Whether `[syncer]` lets a table through."""
        return table_filter(self._setup.config.syncer).replicates(database, table)


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Does it, again as long as the downstream is gone, as the Drainer would. Raises
    PipelineStopped for what else goes wrong there."""
    backoff = Backoff(Random())
    while True:  # until the downstream answers
        try:
            return await work()
        except DownstreamUnavailable as error:
            wait_s = backoff.next_s()
            log.warning("downstream_awaited", cause=str(error), wait_s=wait_s)
        except (PipelineStopped, ConfigError):
            raise
        except BinlogdError as error:
            raise PipelineStopped(str(error)) from error
        await asyncio.sleep(wait_s)


def _met(done: Sequence[LaneDone]) -> Ddl | None:
    """The DDL at which all lanes ended. Raises PipelineStopped where they did not."""
    found = {each.met.commit_ts if each.met is not None else None for each in done}
    if len(found) > 1:
        raise PipelineStopped(f"lanes ended at different DDL, {found}: a bug of binlogd")
    return done[0].met


def _check_walked(done: Sequence[LaneDone]) -> None:
    """Raises PipelineStopped where lanes did not read the same changes."""
    found = {msgspec.structs.replace(each.walked, bytes=0) for each in done}
    if len(found) > 1:
        raise PipelineStopped(
            f"lanes read different changes of one batch: {'; '.join(map(str, found))}. Its"
            " checkpoint is not saved: run the pipeline again, and if it says the same, tell us: it"
            " is a bug of binlogd"
        )


def _say(done: Sequence[LaneDone]) -> None:
    """What tasks warned of: what several say alike, once."""
    reported: list[Said] = []
    for said in (said for each in done for said in each.said):
        if said not in reported:
            reported.append(said)
            words = {key: value for key, value in said.items() if key not in ("event", "level")}
            (log.error if said["level"] == "error" else log.warning)(said["event"], **words)


def _noted(claim: Claim) -> str:
    """A claim in a row: "-" for no id, a space, and of the checkpoint what there is room for."""
    return f"{claim.pipeline or '-'} {claim.checkpoint}"[:NOTE_MAX]


def _claim_in(note: str) -> Claim:
    """What `_noted` wrote down, its checkpoint as far as there was room for it."""
    return Claim(*note.removeprefix("-").split(" ", 1))


# --- a base as binlogs -------------------------------------------------------------------------


class _BaseSource:
    """A BinlogSource that has a base."""

    name = "base"

    def __init__(self, base: LoadedBase, jobs: list[Job]) -> None:
        self._base, self._jobs = base, jobs

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """What is left of it, then silence. Raises PipelineStopped, and what a base raises."""
        if BASE_TS_MAX < after < self._base.commit_ts:
            raise PipelineStopped(
                f"the downstream is at commit_ts {after}, before the base"
                f" ({self._base.commit_ts}): begin with an empty one"
            )
        if after <= BASE_TS_MAX:
            binlogs = binlogs_of_base(self._base, self._jobs, after)
            async for part in pulled(binlogs, self._base.commit_ts):
                yield part
        await asyncio.Event().wait()  # until the Drainer is drained


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


def binlogs_of_base(begin: LoadedBase, jobs: list[Job], after: Tso) -> Iterator[CommittedBinlog]:
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
            yield CommittedBinlog(start, commit, join(prewrite, done))
    numbers = count(len(jobs) + 1)
    for plan in _ordered(begin):
        for rows in gathered(_rows(plan, begin), len, TOGETHER_ROWS, TOGETHER_BYTES):
            start, commit = _moments(next(numbers))
            if commit > after:
                table = Mutation(plan.info.id, rows, (), (), b"\x00" * len(rows))
                value = encode_mutations(len(jobs), [table])
                prewrite = prewrite_binlog(start, prewrite_value=value)
                payload = join(prewrite, commit_binlog(start, commit))
                yield CommittedBinlog(start, commit, payload)


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
