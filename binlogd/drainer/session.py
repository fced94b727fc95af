"""One attempt at replicating: from the checkpoint on, until told to stop or something fails.

Read it aloud: what the sources promise is pulled and merged; the job of each DDL is looked up; the
joined binlogs are written to the relay log and fsynced; they are translated under the schema of
their moment; the sink takes them. Beside that walk the checkpoint follows what the sink applied.

Invariants.
 * The sink sees a transaction only after the relay log has it on disk. The relay log is one part
   ahead at most, and the parts between walk and sink are bounded.
 * A saved checkpoint is never ahead of `applied_ts()`, its schema version is that of its
   commit_ts, and it is consistent only when everything that was pulled is applied.
 * Pulling begins at the checkpoint, although the sink may have applied more: the DDLs in between
   must move the schema again. The sink passes over what it has.
Source: tidb-binlog drainer/syncer.go, drainer/server.go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from binlogd.binlog import CommittedBinlog, Pulled, in_parts
from binlogd.drainer import late_commits
from binlogd.drainer.checkpoint import BeginsAhead, Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.schema_log import SchemaEvent, SchemaLog
from binlogd.drainer.sink import Sink, SinkStatistics
from binlogd.drainer.slow import Stages
from binlogd.drainer.translate import Translator, Walk, unreadable
from binlogd.drainer.txn import Ddl, Decoded, Dml, Skip, Txn
from binlogd.errors import (
    ConfigError,
    Corrupt,
    DownstreamWentBack,
    MalformedBinlog,
    MissedCommit,
    MissingDdlJob,
    Stuck,
    Unavailable,
)
from binlogd.host.clock import is_set_within
from binlogd.merge.merge import MergeStatistics
from binlogd.merge.stream import MergedStream, MergeLimits, OnPulled, merged
from binlogd.ports import BinlogSource, Sources
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayStatistics, RelayWriter
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.model import Job, SchemaState
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire import peek

_AHEAD_KEPT_MAX = 4096
_APPLIED_AT_ONCE = 100
"""Jobs of the history between two turns of the others."""
_NAMES_SHOWN_MAX = 20

Seen = TypeVar("Seen")

log = structlog.get_logger(__name__)


class DdlHistory(Protocol):
    """The upstream's history of DDL jobs."""

    async def job(self, job_id: int) -> Job | None:
        """A job, waited for with a limit; None after that. Raises UpstreamUnavailable."""

    async def index(self) -> JobIndex:
        """What there is, read anew; it grows as jobs are read. Raises UpstreamUnavailable."""

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        """Jobs that the index knows, in the order of the ids."""


class DrainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers and choices; defaults are those of the configuration."""

    dialect: Dialect
    trash: Trash | None = None
    """Where dropped tables are put aside; None: they are dropped."""
    initial_commit_ts: Tso = NO_TS
    """Where to begin when the sink has no checkpoint; exclusive."""
    checkpoint_interval_s: float = 1.0
    drain_timeout_s: float = 8.0
    part_txns_max: int = 512
    part_bytes_max: int = 8 << 20
    parts_ahead_max: int = 2
    merge: MergeLimits = msgspec.field(default_factory=lambda: MergeLimits(retry_after_s=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerPorts:
    """What a Drainer works with. A sink is made for each session and used for that one only."""

    sources: Sources | Sequence[BinlogSource]
    history: DdlHistory
    make_sink: Callable[[], Sink]
    relay: RelayWriter | None
    table_filter: TableFilter
    on_saved: Callable[[Checkpoint], None]
    """Called after each save: nobody needs what lies at or below its commit_ts any more."""
    on_pulled: OnPulled | None = None
    """Told what each source gave, by its name."""
    measures: DrainerMeasures = field(default_factory=DrainerMeasures)
    late: late_commits.UndecidedLateCommits | None = None
    """Of the Pump in this process; a remote one tells by MissedCommit."""
    schema_log: SchemaLog | None = None
    """Where the schema is kept beside the checkpoint; without it every start reads the history."""
    newest_ts: Callable[[], Tso] = lambda: MAX_TS
    """Above it nothing can have committed by now."""
    table_name: Callable[[int], Awaitable[str]] | None = None
    """What the upstream calls a table now, for an error; "" when it does not say."""
    schema_at: Callable[[Tso], Awaitable[SchemaTracker | None]] | None = None
    """All tables as of a timestamp, to begin with them instead of the history; None where they
    cannot be told any more."""


class Standing(NamedTuple):
    """How the sources, the sink and the relay log stand; None before they are there."""

    merge: MergeStatistics | None = None
    sink: SinkStatistics | None = None
    relay: RelayStatistics | None = None


class Session:
    """Made for one `run`. `former` is the checkpoint that the session before it left."""

    def __init__(
        self,
        ports: DrainerPorts,
        options: DrainerOptions,
        late: late_commits.KnownLateCommits,
        former: Checkpoint,
    ) -> None:
        self._ports, self._options, self._former, self._late = ports, options, former, late
        self._sink, self._relay = ports.make_sink(), ports.relay
        self._stream: MergedStream | None = None
        self._schema = SchemaTracker()
        self._jobs = JobIndex()
        self._events: list[SchemaEvent] = []
        self._walk: Walk | None = None
        self._versions: deque[tuple[Tso, int]] = deque()
        self._queue: asyncio.Queue[list[Txn] | None] = asyncio.Queue(options.parts_ahead_max)
        self._ahead: deque[Tso] = deque(maxlen=_AHEAD_KEPT_MAX)
        self._saving, self._relaying = asyncio.Lock(), asyncio.Lock()
        self._is_stopping, self._is_over = False, asyncio.Event()
        self._walked_ts = NO_TS
        """Up to where transactions were translated: of what is beyond, no schema is known yet."""
        self._fault: Exception | None = None
        """Of somebody who looked from outside; the session ends by it."""
        self._seen = Standing()
        self._is_settled = False
        """A consistent checkpoint is saved, and nothing was done since."""
        self.checkpoint = Checkpoint(options.initial_commit_ts)
        self.not_saved = ""
        """Why the last one could not be saved."""
        self.first_ts = NO_TS
        """Of the first transaction that was pulled."""
        self.expiring: tuple[str, ...] = ()
        """Tables with a TTL, as of what was walked."""

    # --- life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns after `stop`, with everything applied and a consistent checkpoint saved. Raises
        what a part of it raised, bare or in a group; before a Stuck or Corrupt of the walk,
        everything before the transaction that it names has been applied and saved."""
        async with AsyncExitStack() as ends:  # each is closed, whatever the others do
            if self._ports.schema_log is not None:
                ends.push_async_callback(self._ports.schema_log.close)
            if self._relay is not None:
                ends.push_async_callback(self._relay.close)
            ends.push_async_callback(self._sink.close)
            stored = await self._sink.open()
            if stored is not None:
                begin_ts = stored.commit_ts or self.checkpoint.commit_ts
                self.checkpoint = replace(stored, commit_ts=begin_ts)
            if self.checkpoint.commit_ts > (newest_ts := self._ports.newest_ts()):
                raise BeginsAhead(self.checkpoint.commit_ts, newest_ts)
            self._check_not_emptied()
            reached_ts = late_commits.reached(self._sink, self.checkpoint.commit_ts)
            await self._late.begin(self._ports.table_filter, reached_ts, self._ports.sources)
            log.info("replication_begun", after=self.checkpoint.commit_ts)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sink.run(), name="sink")
                group.create_task(self._submit(), name="submit")
                group.create_task(self._follow(), name="checkpoint")
                if (slow := self._ports.measures.slow) is not None:
                    watching = slow.watch(lambda: self.applied_ts, self._is_over)
                    group.create_task(watching, name="slow transactions")
                await self._replicate()
                await self._queue.put(None)
                self._is_over.set()
                async with self._saving:  # a checkpoint on its way needs the sink
                    await self._sink.close()

    def _check_not_emptied(self) -> None:
        """Raises ConfigError where a downstream that had a checkpoint a moment ago has none."""
        begin_ts, left_ts = self._options.initial_commit_ts, self._former.commit_ts
        if self.checkpoint.commit_ts == begin_ts < left_ts:
            raise ConfigError(
                f"the downstream has no checkpoint any more, and this process left it at commit_ts"
                f" {left_ts}: it is another server, or lost what it had; load a copy of the data"
                " into it and say where that ends by `binlogd checkpoint --set`, or, for an empty"
                f" one, restart binlogd: it begins behind commit_ts {begin_ts}"
                " (drainer.initial-commit-ts)"
            )

    def stop(self) -> None:
        """Ends pulling; what was pulled is still applied."""
        self._is_stopping = True
        if self._stream is not None:
            self._stream.stop()

    def was_ahead(self, commit_ts: Tso) -> bool:
        """A transaction knew a schema that no DDL binlog had made yet. If a row of it contradicts
        the schema, the history may have the job that explains it soon."""
        return commit_ts in self._ahead

    @property
    def values_in_doubt(self) -> int:
        """Times that something was said to be in doubt."""
        sink = self._looked(self._sink.statistics, self._seen.sink)
        in_doubt = self._walk.values_in_doubt if self._walk is not None else 0
        return in_doubt + (sink.values_in_doubt if sink is not None else 0)

    def standing(self) -> Standing:
        """As it was before, of what cannot be looked at."""
        merge, sink, relay = self._seen
        if self._stream is not None:
            merge = self._looked(self._stream.statistics, merge)
        if self._relay is not None:
            relay = self._looked(self._relay.statistics, relay)
        self._seen = Standing(merge, self._looked(self._sink.statistics, sink), relay)
        return self._seen

    @property
    def applied_ts(self) -> Tso:
        """Everything up to here is downstream, durably."""
        commit_ts = self.checkpoint.commit_ts
        return max(commit_ts, self._looked(self._sink.applied_ts, NO_TS))

    def _looked(self, look: Callable[[], Seen], otherwise: Seen) -> Seen:
        """A fault is heard by the session, who owns what is looked at, and not by who looks."""
        try:
            return look()
        except Exception as error:  # noqa: BLE001 - `_follow` raises it
            self.fail(error)
            return otherwise

    def fail(self, error: Exception) -> None:
        """Ends `run` by a fault that somebody met who looked from outside."""
        self._fault = self._fault or error

    # --- the walk --------------------------------------------------------------------------

    async def _replicate(self) -> None:
        after = self.checkpoint.commit_ts
        if self._sink.applied_ts() < after:  # it begins at an initial-commit-ts
            await self._queue.put([Skip(after)])
        try:
            ports, limits = self._ports, self._options.merge
            async with merged(ports.sources, after, limits, ports.on_pulled) as stream:
                self._stream = stream
                if self._is_stopping:
                    stream.stop()
                async for pulled in stream:
                    await self._take(pulled)
        except MissedCommit as error:
            error_now = self._late.reported(error)  # nothing tells of them once more
            await self._settle(is_consistent=False)
            raise error_now from error
        except (Stuck, Corrupt):
            await self._settle(is_consistent=False)
            raise
        if self._walk is not None:
            self._walk.end()
        await self._settle(is_consistent=True)

    async def _take(self, pulled: Pulled) -> None:
        binlogs = pulled.transactions
        if binlogs and self._walk is None:
            self.first_ts = binlogs[0].commit_ts
            await self._begin_at(self.first_ts)
        sizes, options = [len(each.payload) for each in binlogs], self._options
        bytes_max, count_max = options.part_bytes_max, options.part_txns_max
        for part in in_parts(binlogs, sizes, bytes_max=bytes_max, count_max=count_max):
            await self._take_part(part)
        if not binlogs or binlogs[-1].commit_ts < pulled.resolved_ts:
            due = self._walk.due(Tso(pulled.resolved_ts + 1)) if self._walk is not None else []
            self._walked_ts = pulled.resolved_ts
            await self._queue.put([*due, Skip(pulled.resolved_ts)])

    async def _take_part(self, part: Sequence[CommittedBinlog]) -> None:
        walk = self._walk
        assert walk is not None, "walking before the schema is known"
        slow = self._ports.measures.slow
        merged_ms = slow.now_ms() if slow is not None else 0
        found, failure = await self._decoded(part)
        relayed_from_ms = slow.now_ms() if slow is not None else 0
        await self._to_relay(found)
        await self._load_coming(part, [each.job for each in found if each.job is not None])
        txns: list[Txn] = []
        try:
            for each in found:
                if walk.early.waiting:
                    txns += walk.due(each.binlog.commit_ts)
                txns.append(self._taken(each, walk))
        except Stuck as error:
            failure = error
        if self._events:
            await self._log_events(txns[-1].commit_ts if failure is None else None)
        if txns:
            self._walked_ts = txns[-1].commit_ts
            if slow is not None:
                relayed_ms = slow.now_ms() if self._relay else 0
                slow.queued(Stages(txns, merged_ms, relayed_from_ms, relayed_ms))
            await self._queue.put(txns)
        if failure is not None:
            raise failure

    async def _to_relay(self, found: Sequence[Decoded]) -> None:
        if self._relay is None or not found:
            return
        entries = [
            RelayEntry(binlog.commit_ts, binlog.payload, job.raw if job else b"")
            for binlog, job in ((each.binlog, each.job) for each in found)
        ]
        clock = asyncio.get_running_loop().time
        async with self._relaying:
            begin_s = clock()
            size_bytes = await self._relay.append(entries)
        if size_bytes:
            self._ports.measures.relay.wrote(size_bytes, clock() - begin_s)

    async def _load_coming(self, part: Sequence[CommittedBinlog], jobs: list[Job]) -> None:
        """Jobs that rows of this part may run ahead of: its own, and those in flight meanwhile."""
        own = {job.id for job in jobs}
        in_flight = self._jobs.in_flight(Tso(part[0].commit_ts - 1), part[-1].commit_ts)
        others = [each for each in in_flight if each not in own and not self._schema.knows(each)]
        if others:
            jobs = jobs + await self._ports.history.read(others)
        if jobs:
            self._schema.load(jobs)

    async def _log_events(self, last_ts: Tso | None) -> None:
        """`last_ts`: what the schema is as of; None where it is ahead of what was translated."""
        events, self._events = self._events, []
        kept = self._ports.schema_log
        if kept is not None and await kept.append(events) and last_ts is not None:
            await kept.begin(self._schema, last_ts)

    async def _decoded(self, part: Sequence[CommittedBinlog]) -> tuple[list[Decoded], Stuck | None]:
        """Each binlog with its job, up to the first for which none can be had, and why."""
        found: list[Decoded] = []
        for binlog in part:
            ddl = job = None
            try:
                ddl = peek.ddl(binlog.payload)
                if ddl is not None and not ddl.is_setval:
                    job = await self._ports.history.job(ddl.ddl_job_id)
                    if job is None and not self._is_ignored(binlog):
                        query = ddl.ddl_query.decode("utf-8", "replace")
                        raise MissingDdlJob(ddl.ddl_job_id, binlog.commit_ts, query)
            except (Stuck, MalformedBinlog) as error:
                if not self._is_ignored(binlog):
                    return found, error if isinstance(error, Stuck) else unreadable(binlog, error)
            found.append(Decoded(binlog, ddl, job))
        return found, None

    def _is_ignored(self, binlog: CommittedBinlog) -> bool:
        return self._ports.table_filter.ignores_transaction(binlog.commit_ts)

    def _taken(self, decoded: Decoded, walk: Walk) -> Txn:
        version = self._schema.version
        txn = walk.take(decoded)
        ddl, job = decoded.ddl, decoded.job
        if ddl is not None and job is not None:
            self._events.append(SchemaEvent.of(txn.commit_ts, ddl.ddl_schema_state, job))
            if self.expiring or (job.table is not None and job.table.has_ttl):
                self._note_expiring()
        if self._schema.version != version:
            self._versions.append((txn.commit_ts, self._schema.version))
        if isinstance(txn, Dml) and txn.schema_version > self._schema.version:
            self._ahead.append(txn.commit_ts)
        self._note(txn)
        return txn

    def _note_expiring(self) -> None:
        """Tables whose rows TiDB deletes by age, in no binlog: downstream they stay."""
        found = tuple(
            f"{named.database}.{named.table}"
            for named, info in self._schema.tables()
            if info.has_ttl and self._ports.table_filter.replicates(named.database, named.table)
        )
        if found and found != self.expiring:
            log.warning("tables_with_ttl", tables=found[:_NAMES_SHOWN_MAX], count=len(found))
        self.expiring = found

    def _note(self, txn: Txn) -> None:
        if isinstance(txn, Ddl | Skip) and txn.reason:
            self._ports.measures.skipped += 1
            log.info("transaction_skipped", commit_ts=txn.commit_ts, reason=txn.reason)
        elif isinstance(txn, Ddl):
            log.info(
                "ddl_submitted",
                commit_ts=txn.commit_ts,
                database=txn.database,
                table=txn.table,
                schema_version=txn.schema_version,
            )

    # --- where to begin --------------------------------------------------------------------

    async def _begin_at(self, first_ts: Tso) -> None:
        """Brings the schema to where the first transaction finds it; nothing is applied before.

        It is kept beside the checkpoint; without that, the history has it. There the schema version
        of the checkpoint says which jobs are behind it, or, without a checkpoint, those are behind
        that were over when the first transaction committed: their binlogs cannot come any more.
        """
        after, kept = self.checkpoint.commit_ts, self._ports.schema_log
        self._jobs = await self._ports.history.index()
        known = await kept.load(self.checkpoint) if kept is not None else None
        is_kept = known is not None
        if known is None and self._ports.schema_at is not None:
            known = await self._ports.schema_at(after if after > NO_TS else Tso(first_ts - 1))
        if known is not None:
            self._schema = known
        else:
            await self._apply_history(first_ts)
        self._schema.know(self._jobs.in_version_order())
        if kept is not None and not is_kept:
            await kept.begin(self._schema, after)
        self._versions.append((first_ts, self._schema.version))
        if self._relay is not None:
            await self._relay.open(after=after, snapshot=self._schema.snapshot)
        if self.checkpoint.consistent:
            await self._save(is_consistent=False)
        translator = Translator(
            self._schema, self._ports.table_filter, self._options.dialect, self._options.trash
        )
        self._walk = Walk(translator, after if after > NO_TS else Tso(first_ts - 1))
        self._note_expiring()

    async def _apply_history(self, first_ts: Tso) -> None:
        """Applies what is behind the first transaction, some jobs at a time."""
        version = self.checkpoint.schema_version
        over_by = self.checkpoint.commit_ts if version else first_ts
        due = [
            entry.id
            for entry in self._jobs.in_version_order()
            if entry.finished_ts <= over_by or entry.schema_version <= version
        ]
        for begin in range(0, len(due), _APPLIED_AT_ONCE):
            for job in await self._ports.history.read(due[begin : begin + _APPLIED_AT_ONCE]):
                self._schema.apply(job, SchemaState.NONE)
        if not version:
            open_jobs = self._jobs.in_flight(first_ts, first_ts)
            self._schema.load(await self._ports.history.read(open_jobs))
            self._schema.apply_finished_by(first_ts)
        log.info("schema_history_applied", ddls=len(due), schema_version=self._schema.version)

    # --- beside the walk -------------------------------------------------------------------

    async def _submit(self) -> None:
        clock = asyncio.get_running_loop().time
        while (txns := await self._queue.get()) is not None:
            begin_s = clock()
            await self._sink.submit(txns)
            self._ports.measures.submitted(txns, clock() - begin_s)
            self._queue.task_done()
            if any(isinstance(txn, Ddl) and not txn.is_skipped for txn in txns):
                await self._sink.flush()
                await self._save_if_moved()

    async def _settle(self, *, is_consistent: bool) -> None:
        """Everything walked so far is applied and saved."""
        await self._queue.join()
        await self._sink.flush()
        await self._save(is_consistent=is_consistent)

    async def _follow(self) -> None:
        """Saves the checkpoint behind what is applied, until the session is over."""
        while not self._is_over.is_set():
            if not await is_set_within(self._is_over, self._options.checkpoint_interval_s):
                await self._save_if_moved()
            if self._fault is not None:
                raise self._fault
            if not self._is_over.is_set() and (error := self._late.came()) is not None:
                raise error

    def _savable_ts(self, *, at_rest: bool = False) -> Tso:
        """A sink may know from a life before that more is applied than was walked in this one: the
        schema version there comes with the DDLs in between."""
        applied_ts = min(self.applied_ts, self._walked_ts)
        if self._walk is not None:
            applied_ts = self._walk.early.savable(applied_ts, at_rest=at_rest)
        return max(self.checkpoint.commit_ts, applied_ts)

    async def _save_if_moved(self) -> None:
        if self._savable_ts() <= self.checkpoint.commit_ts:
            return
        try:
            await self._save(is_consistent=False)
        except DownstreamWentBack:
            raise  # perhaps nothing but a checkpoint would ever have noticed
        except Unavailable as error:
            # A lock on the checkpoint table is no reason to stop; a downstream that is gone stops
            # the sink, and that ends the session.
            self.not_saved = str(error)
            log.warning("checkpoint_not_saved", cause=self.not_saved)

    async def _save(self, *, is_consistent: bool) -> None:
        async with self._saving:
            if self._is_over.is_set() or (self._is_settled and not is_consistent):
                return  # its timer had run out while the session ended: all is saved, the sink gone
            commit_ts = self._savable_ts(at_rest=is_consistent)
            is_consistent = is_consistent and commit_ts >= late_commits.reached(self._sink, NO_TS)
            passed = (version for ts, version in self._versions if ts <= commit_ts)
            version = max([self.checkpoint.schema_version, *passed])
            checkpoint = Checkpoint(commit_ts, is_consistent, version, self.checkpoint.ts_map)
            await self._sink.save(checkpoint)
            self.checkpoint, self.not_saved = checkpoint, ""
            self._is_settled = is_consistent
            while self._versions and self._versions[0][0] <= commit_ts:
                self._versions.popleft()
            self._ports.on_saved(checkpoint)
        if self._relay is not None and self._walk is not None:
            async with self._relaying:
                await self._relay.collect(commit_ts)
        if self._ports.schema_log is not None:
            await self._ports.schema_log.collect(commit_ts)
        log.debug("checkpoint_saved", commit_ts=commit_ts, consistent=is_consistent)
