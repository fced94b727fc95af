"""One attempt at replicating: from the checkpoint on, until told to stop or something fails.

Read it aloud: what the sources promise is pulled and merged; the job of each DDL is looked up; the
joined binlogs are written to the relay log and fsynced; they are translated under the schema of
their moment; the sink takes them. Beside that walk the checkpoint follows what the sink applied.

Invariants.
 * The sink sees a transaction only after the relay log has it on disk. The relay log is one part
   ahead at most, and the parts between walk and sink are bounded.
 * Pulling begins at the checkpoint, although the sink may have applied more: the DDLs in between
   must move the schema again. The sink passes over what it has.
Source: tidb-binlog drainer/syncer.go, drainer/server.go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from binlogd.binlog import CommittedBinlog, Pulled, in_parts
from binlogd.drainer.checkpointer import Checkpointer
from binlogd.drainer.late_commits import KnownLateCommits, reached
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.slow import Stages
from binlogd.drainer.statistics import DrainerStatistics, Looks
from binlogd.drainer.translate import Translator, Walk, unreadable
from binlogd.drainer.txn import Ddl, Decoded, Dml, Skip, Txn
from binlogd.drainer.walked_schema import WalkedSchema
from binlogd.errors import Corrupt, MalformedBinlog, MissedCommit, MissingDdlJob, Stuck
from binlogd.host.clock import is_set_within
from binlogd.merge.stream import MergedStream, merged
from binlogd.relay.frame import RelayEntry
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire import peek

_AHEAD_KEPT_MAX = 4096
_Found = tuple[list[Decoded], Stuck | Corrupt | None]

log = structlog.get_logger(__name__)


class Session:
    """Made for one `run`. `former` is how the session before it left everything."""

    def __init__(
        self,
        ports: DrainerPorts,
        options: DrainerOptions,
        late: KnownLateCommits,
        former: DrainerStatistics,
    ) -> None:
        self._ports, self._options, self._late, self._former = ports, options, late, former
        self._sink, self._relay = ports.make_sink(), ports.relay
        self.looks = Looks()
        """For who looks from outside."""
        self._checkpointer = Checkpointer(ports, self._sink, former.checkpoint, self.looks)
        self._schema = WalkedSchema(ports)
        self._stream: MergedStream | None = None
        self._walk: Walk | None = None
        self._queue: asyncio.Queue[list[Txn] | None] = asyncio.Queue(options.parts_ahead_max)
        self._ahead: deque[Tso] = deque(maxlen=_AHEAD_KEPT_MAX)
        self._is_stopping, self._first_ts = False, former.first_ts
        self._seen = replace(former, merge=None, sink=None, relay=None)

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
            await self._checkpointer.open(self._options.initial_commit_ts)
            after = self._checkpointer.checkpoint.commit_ts
            await self._late.begin(
                self._ports.table_filter, reached(self._sink, after), self._ports.sources
            )
            log.info("replication_begun", after=after)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sink.run(), name="sink")
                group.create_task(self._submit(), name="submit")
                group.create_task(self._follow(), name="checkpoint")
                if (slow := self._ports.measures.slow) is not None:
                    at = self._checkpointer
                    watching = slow.watch(lambda: at.applied_ts, at.is_over)
                    group.create_task(watching, name="slow transactions")
                await self._replicate()
                await self._queue.put(None)
                await self._checkpointer.end()

    def stop(self) -> None:
        """Ends pulling; what was pulled is still applied."""
        self._is_stopping = True
        if self._stream is not None:
            self._stream.stop()

    def was_ahead(self, commit_ts: Tso) -> bool:
        """A transaction knew a schema that no DDL binlog had made yet. If a row of it contradicts
        the schema, the history may have the job that explains it soon."""
        return commit_ts in self._ahead

    def statistics(self) -> DrainerStatistics:
        """How it stands, over that of the former; as it was before, of what cannot be looked at."""
        seen, at = self._seen, self.looks.at
        merge = at(self._stream.statistics, seen.merge) if self._stream is not None else None
        relay = at(self._relay.statistics, seen.relay) if self._relay is not None else None
        sink = at(self._sink.statistics, seen.sink)
        in_doubt = self._walk.values_in_doubt if self._walk is not None else 0
        in_doubt += sink.values_in_doubt if sink is not None else 0
        self._seen = replace(
            self._former,
            checkpoint=self._checkpointer.checkpoint,
            applied_ts=self._checkpointer.applied_ts,
            first_ts=self._first_ts,
            not_saved=self._checkpointer.not_saved,
            values_in_doubt=self._former.values_in_doubt + in_doubt,
            expiring=self._schema.expiring,
            merge=merge,
            sink=sink,
            relay=relay,
        )
        return self._seen

    # --- the walk --------------------------------------------------------------------------

    async def _replicate(self) -> None:
        after = self._checkpointer.checkpoint.commit_ts
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
            self._first_ts = binlogs[0].commit_ts
            self._walk = await self._begun(self._first_ts)
        sizes, options = [len(each.payload) for each in binlogs], self._options
        bytes_max, count_max = options.part_bytes_max, options.part_txns_max
        for part in in_parts(binlogs, sizes, bytes_max=bytes_max, count_max=count_max):
            await self._take_part(part)
        if not binlogs or binlogs[-1].commit_ts < pulled.resolved_ts:
            due = self._walk.due(Tso(pulled.resolved_ts + 1)) if self._walk is not None else []
            self._checkpointer.walked_ts = pulled.resolved_ts
            await self._queue.put([*due, Skip(pulled.resolved_ts)])

    async def _take_part(self, part: Sequence[CommittedBinlog]) -> None:
        walk, schema, slow = self._walk, self._schema, self._ports.measures.slow
        assert walk is not None, "walking before the schema is known"
        merged_ms = slow.now_ms() if slow is not None else 0
        found, failure = await self._decoded(part)
        relayed_from_ms = slow.now_ms() if slow is not None else 0
        await self._to_relay(found)
        await schema.load_coming(part, [each.job for each in found if each.job is not None])
        txns: list[Txn] = []
        try:
            for each in found:
                if walk.early.waiting:
                    txns += walk.due(each.binlog.commit_ts)
                txns.append(self._taken(each, walk, schema.tracker))
        except (Stuck, Corrupt) as error:
            failure = error
        if schema.unlogged:
            await schema.log_events(txns[-1].commit_ts if failure is None else None)
        if txns:
            self._checkpointer.walked_ts = txns[-1].commit_ts
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
        async with self._checkpointer.relaying:
            begin_s = clock()
            size_bytes = await self._relay.append(entries)
        if size_bytes:
            self._ports.measures.relay.wrote(size_bytes, clock() - begin_s)

    async def _decoded(self, part: Sequence[CommittedBinlog]) -> _Found:
        """Each binlog with its job, up to the first for which none can be had, and why."""
        found: list[Decoded] = []
        is_ignored = self._ports.table_filter.ignores_transaction
        for binlog in part:
            ddl = job = None
            try:
                ddl = peek.ddl(binlog.payload)
                if ddl is not None and not ddl.is_setval:
                    job = await self._ports.history.job(ddl.ddl_job_id)
                    if job is None and not is_ignored(binlog.commit_ts):
                        query = ddl.ddl_query.decode("utf-8", "replace")
                        raise MissingDdlJob(ddl.ddl_job_id, binlog.commit_ts, query)
            except (Stuck, Corrupt) as error:
                return found, error
            except MalformedBinlog as error:
                if not is_ignored(binlog.commit_ts):
                    return found, unreadable(binlog, error)
            found.append(Decoded(binlog, ddl, job))
        return found, None

    def _taken(self, decoded: Decoded, walk: Walk, schema: SchemaTracker) -> Txn:
        version = schema.version
        txn = walk.take(decoded)
        ddl, job = decoded.ddl, decoded.job
        if ddl is not None and job is not None:
            self._schema.moved(txn.commit_ts, ddl.ddl_schema_state, job)
        if schema.version != version:
            self._checkpointer.versions.append((txn.commit_ts, schema.version))
        if isinstance(txn, Dml) and txn.schema_version > schema.version:
            self._ahead.append(txn.commit_ts)
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
        return txn

    async def _begun(self, first_ts: Tso) -> Walk:
        """Begins to walk at the first transaction; nothing is applied before."""
        checkpoint, schema = self._checkpointer.checkpoint, self._schema
        await schema.begin(checkpoint, first_ts)
        self._checkpointer.versions.append((first_ts, schema.tracker.version))
        if self._relay is not None:
            await self._relay.open(after=checkpoint.commit_ts, snapshot=schema.tracker.snapshot)
        if self._checkpointer.checkpoint.consistent:
            await self._checkpointer.save(is_consistent=False)
        translator = Translator(
            schema.tracker, self._ports.table_filter, self._options.dialect, self._options.trash
        )
        walk = Walk(translator, checkpoint.commit_ts or Tso(first_ts - 1))
        self._checkpointer.early = walk.early
        schema.note_expiring()
        return walk

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
                await self._checkpointer.save_if_moved()

    async def _follow(self) -> None:
        """Saves the checkpoint behind what is applied, until the session is over."""
        is_over = self._checkpointer.is_over
        while not is_over.is_set():
            if not await is_set_within(is_over, self._options.checkpoint_interval_s):
                await self._checkpointer.save_if_moved()
            if self.looks.fault is not None:
                raise self.looks.fault
            if not is_over.is_set() and (error := self._late.came()) is not None:
                raise error

    async def _settle(self, *, is_consistent: bool) -> None:
        """Everything walked so far is applied and saved."""
        await self._queue.join()
        await self._sink.flush()
        await self._checkpointer.save(is_consistent=is_consistent)
