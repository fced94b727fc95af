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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.late_commits import reached
from binlogd.drainer.sink import Sink
from binlogd.drainer.translate import Translator, Walk
from binlogd.drainer.txn import Ddl, Decoded, Dml, Txn
from binlogd.errors import ConfigError, MalformedBinlog, leading_error
from binlogd.ports import Disk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.reader import Relay, read_relay
from binlogd.tidb.model import job_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire import peek

log = structlog.get_logger(__name__)


class Restored(msgspec.Struct, frozen=True):
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
        last_ts = MAX_TS if to_ts is None else to_ts
        walk = Walk(translator_for(tracker), relay.base_ts, said_ts=checkpoint.commit_ts)
        txns = _walked(relay, walk, checkpoint.commit_ts, last_ts)
        return await _apply(sink, checkpoint, txns, walk)
    finally:
        await sink.close()


async def where_to_begin(sink: Sink, to_ts: Tso | None) -> Checkpoint:
    """Opens the sink: its checkpoint. Raises ConfigError, and what opening raises."""
    checkpoint = await sink.open()
    if checkpoint is None:
        raise ConfigError(
            "the downstream has no checkpoint, so nobody knows from where on to restore"
        )
    furthest = reached(sink, checkpoint.commit_ts)
    if to_ts is not None and to_ts < furthest:
        raise ConfigError(
            f"--to-ts {to_ts}: the downstream has transactions up to {furthest} already, and a"
            " restore cannot take any back"
        )
    return checkpoint


def check_complete(sink: Sink, checkpoint: Checkpoint, newest_ts: Tso) -> None:
    """Raises ConfigError where the downstream has what is behind the end of the relay log: of what
    was applied there in part, nobody has the rest."""
    furthest = reached(sink, NO_TS)
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


@asynccontextmanager
async def running(sink: Sink) -> AsyncGenerator[None]:
    """At work, and closed at the end. Raises what leads, bare."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run(), name="sink")
            yield
            await sink.close()
    except BaseExceptionGroup as group:
        error = leading_error(group)
        if error is None:
            raise
        raise error from group


async def _apply(
    sink: Sink, checkpoint: Checkpoint, parts: AsyncIterator[list[Txn]], walk: Walk
) -> Restored:
    to_ts, transactions, rows = checkpoint.commit_ts, 0, 0
    log.info("restore_begun", checkpoint_ts=to_ts)
    async with running(sink):
        async for txns in parts:
            await sink.submit(txns)
            to_ts = txns[-1].commit_ts
            done = [txn for txn in txns if isinstance(txn, Dml | Ddl)]
            # as a dry run counts: what no filter leaves out
            transactions += sum(1 for txn in done if isinstance(txn, Dml) or not txn.is_skipped)
            rows += sum(txn.row_count for txn in done if isinstance(txn, Dml))
        await sink.flush()
        version = max(checkpoint.schema_version, walk.schema.version)
        await sink.save(Checkpoint(to_ts, True, version, checkpoint.ts_map))
    in_doubt = walk.values_in_doubt + sink.statistics().values_in_doubt
    log.info("restored", to_ts=to_ts, transactions=transactions, rows=rows)
    return Restored(checkpoint.commit_ts, to_ts, transactions, rows, False, in_doubt)


async def _walked(
    relay: Relay, walk: Walk, applied_ts: Tso, last_ts: Tso
) -> AsyncIterator[list[Txn]]:
    """What lies beyond `applied_ts`, up to `last_ts`. The DDL before it moves the schema, and the
    rows before it may hold values for a column that a DDL behind it makes."""
    async for batch in relay.batches:
        txns: list[Txn] = []
        for entry in batch:
            if entry.commit_ts > last_ts:
                break
            found = [*walk.due(entry.commit_ts), walk.take(_decoded(entry))]
            if entry.commit_ts > applied_ts:
                txns += found
        if txns:
            yield txns
        if batch and batch[-1].commit_ts > last_ts:
            break
    walk.end()


def _decoded(entry: RelayEntry) -> Decoded:
    start_ts, ddl = NO_TS, None
    with suppress(MalformedBinlog):  # one that is ignored is passed over, another refused
        payload = bytes(entry.payload)
        start_ts, ddl = Tso(peek.peek(payload).start_ts), peek.ddl(payload)
    binlog = CommittedBinlog(start_ts, entry.commit_ts, entry.payload)
    return Decoded(binlog, ddl, job_from_json(entry.job) if entry.job else None)
