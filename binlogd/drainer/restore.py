"""The upstream is gone: what the relay log holds beyond the checkpoint goes downstream.

Invariant. When `restore` returns, the downstream equals the upstream at the commit_ts of the
checkpoint, and the checkpoint says so. Why it holds: the relay log is written before the downstream
sees a transaction, so all that may be there in part is in it, which is looked at before; the sink
applies what it has already once more, or passes it over; and `consistent` is stored only after a
flush. Nothing but the relay directory and the downstream is needed, and a restore that is cut short
can be run again.

Source: tidb-binlog drainer/relay.go; the original's process ends with exit code 1 all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.carry import Carry
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.doubt import say_in_doubt, say_late, say_left
from binlogd.drainer.sink import Sink
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import ConfigError, leading_error
from binlogd.ports import Disk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.reader import Relay, read_relay
from binlogd.tidb.model import job_from_json
from binlogd.tidb.moved_rows import MovedRows
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import MAX_TS, Tso
from binlogd.wire.peek import peek

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: from the checkpoint that it found to the one that it left."""

    from_ts: Tso
    to_ts: Tso
    transactions: int
    rows: int
    was_consistent: bool
    """There was nothing to do."""
    values_in_doubt: int = 0
    """ALTERs before which rows may have had values of the columns that they add; each was logged.
    A log in the original's format does not tell."""


async def restore(
    *,
    disk: Disk,
    relay_directory: Path,
    sink: Sink,
    translator_for: Callable[[SchemaTracker], Translator],
    to_ts: Tso | None = None,
) -> Restored:
    """Applies the relay log beyond the checkpoint and saves a consistent checkpoint.

    With `to_ts` it ends behind the last transaction at or below it; then a consistent checkpoint is
    moved on as well. Opens and closes the sink. Raises ConfigError when there is no checkpoint, or
    a relay log that does not reach back to it, or a downstream that is beyond `to_ts` or beyond
    the relay log; CorruptRelay; and whatever translating and applying may raise.
    """
    try:
        checkpoint = await where_to_begin(sink, to_ts)
        if checkpoint.consistent and to_ts is None:
            return Restored(checkpoint.commit_ts, checkpoint.commit_ts, 0, 0, was_consistent=True)
        first_pass = await read_relay(disk, relay_directory, checkpoint.commit_ts)
        relay = await read_relay(disk, relay_directory, checkpoint.commit_ts)
        tracker = SchemaTracker.from_snapshot(relay.snapshot)
        # rows may need to know the next DDL of their table before its turn has come
        newest_ts, jobs = relay.base_ts, []
        async for batch in first_pass.batches:
            jobs += [job_from_json(entry.job) for entry in batch if entry.job]
            newest_ts = batch[-1].commit_ts if batch else newest_ts
        tracker.load(jobs)
        check_complete(sink, checkpoint, newest_ts)
        await begin(sink, checkpoint)
        translator = translator_for(tracker)
        last_ts = MAX_TS if to_ts is None else to_ts
        carry = Carry(tracker, translator.router, relay.base_ts)
        entries = _Entries(relay, translator, carry, tracker.moved, checkpoint.commit_ts, last_ts)
        return await _apply(sink, checkpoint, entries)
    finally:
        await sink.close()


async def where_to_begin(sink: Sink, to_ts: Tso | None) -> Checkpoint:
    """Opens the sink: its checkpoint. Raises ConfigError, and what opening raises."""
    checkpoint = await sink.open()
    if checkpoint is None:
        raise ConfigError(
            "the downstream has no checkpoint, so nobody knows from where on to restore"
        )
    furthest = max(checkpoint.commit_ts, sink.applied_ts(), *sink.statistics().lane_ts)
    if to_ts is not None and to_ts < furthest:
        raise ConfigError(
            f"--to-ts {to_ts}: the downstream has transactions up to {furthest} already, and a"
            " restore cannot take any back"
        )
    return checkpoint


def check_complete(sink: Sink, checkpoint: Checkpoint, newest_ts: Tso) -> None:
    """Raises ConfigError where the downstream has what is behind the end of the relay log: of what
    was applied there in part, nobody has the rest."""
    furthest = max(sink.statistics().lane_ts or (sink.applied_ts(),))
    if furthest > max(newest_ts, checkpoint.commit_ts):
        raise ConfigError(
            f"the relay log ends at commit_ts {newest_ts}, and the downstream has transactions up"
            f" to {furthest}, perhaps without all before them: the newest part of the relay log is"
            " missing. Bring back the whole relay log, or the upstream"
        )


async def begin(sink: Sink, checkpoint: Checkpoint) -> None:
    """From here on the downstream is between two states, and says so."""
    if checkpoint.consistent:
        await sink.save(replace(checkpoint, consistent=False))


async def _apply(sink: Sink, checkpoint: Checkpoint, entries: _Entries) -> Restored:
    progress = _Progress(checkpoint)
    log.info("restore_begun", checkpoint_ts=checkpoint.commit_ts)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run(), name="sink")
            async for txns in entries.translated():
                await sink.submit(txns)
                progress.count(txns)
            await sink.flush()
            await sink.save(progress.checkpoint())
            await sink.close()
    except BaseExceptionGroup as group:
        error = leading_error(group)
        if error is None:
            raise
        raise error from group
    in_doubt = entries.values_in_doubt + sink.statistics().values_in_doubt
    done = replace(progress.restored(), values_in_doubt=in_doubt)
    log.info("restored", to_ts=done.to_ts, transactions=done.transactions, rows=done.rows)
    return done


class _Entries:
    """A relay log as a sink is given it."""

    def __init__(
        self,
        relay: Relay,
        translator: Translator,
        carry: Carry,
        moved: MovedRows,
        applied_ts: Tso,
        last_ts: Tso,
    ) -> None:
        self._relay, self._translator, self._carry = relay, translator, carry
        self._moved = moved
        self._applied_ts, self._last_ts = applied_ts, last_ts
        self.values_in_doubt = 0

    async def translated(self) -> AsyncIterator[list[Txn]]:
        """What lies beyond `applied_ts`, up to `last_ts`.

        The DDL before it moves the schema, and the rows before it may hold values for a column
        that a DDL behind it makes.
        """
        async for batch in self._relay.batches:
            txns: list[Txn] = []
            for entry in batch:
                if entry.commit_ts > self._last_ts:
                    break
                found = self._with_what_is_due(entry)
                if entry.commit_ts > self._applied_ts:
                    txns += found
            if txns:
                yield txns
            if batch and batch[-1].commit_ts > self._last_ts:
                break
        left = self._carry.left()
        self.values_in_doubt += len(left)
        say_left(left)

    def _with_what_is_due(self, entry: RelayEntry) -> list[Txn]:
        due = self._carry.due(entry.commit_ts)
        start_ts = Tso(peek(entry.payload).start_ts)
        job = job_from_json(entry.job) if entry.job else None
        binlog = CommittedBinlog(start_ts, entry.commit_ts, entry.payload)
        txn = self._translator.translate(binlog, job)
        txn = self._carry.joined(txn)
        doubt = self._carry.saw(txn)
        if doubt is not None and isinstance(txn, Ddl) and entry.commit_ts > self._applied_ts:
            self.values_in_doubt += 1
            say_in_doubt(txn, doubt)
        if self._moved:
            late = self._moved.take_doubts()
            if entry.commit_ts > self._applied_ts:
                self.values_in_doubt += len(late)
                say_late(entry.commit_ts, late)
        return [txn] if due is None else [due, txn]


class _Progress:
    """How far a restore has come."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._from = checkpoint
        self._to_ts = checkpoint.commit_ts
        self._schema_version = checkpoint.schema_version
        self._transactions = self._rows = 0

    def count(self, txns: list[Txn]) -> None:
        for txn in txns:
            self._to_ts = txn.commit_ts
            if isinstance(txn, Dml | Ddl):
                self._transactions += 1
                self._schema_version = max(self._schema_version, txn.schema_version)
            if isinstance(txn, Dml):
                self._rows += txn.row_count

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._to_ts,
            consistent=True,
            schema_version=self._schema_version,
            ts_map=self._from.ts_map,
        )

    def restored(self) -> Restored:
        return Restored(
            self._from.commit_ts,
            self._to_ts,
            self._transactions,
            self._rows,
            was_consistent=False,
        )
