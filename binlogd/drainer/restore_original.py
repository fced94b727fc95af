"""Restoring from a relay log in the original's format, which a Go Drainer left.

The same promise as `restore`. Its rows tell names, so no schema is needed; they are written
safely, because nobody knows which of them had been applied. In a table without any key that can
double a row that was applied beyond the checkpoint: the original's format has nothing to tell by.
The original collects a file once it is applied, and saves its checkpoint later: that the log begins
behind the checkpoint is no gap.

Source: tidb-binlog drainer/relay.go, which marks the downstream consistent even where its loader
stopped in the middle; here that is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import structlog

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.files.log import FRAMING, Record, log_files, records_in
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages import secondary
from binlogd.drainer.messages.named import NamedTransaction
from binlogd.drainer.messages.pb import head_of
from binlogd.drainer.mysql.named_apply import NamedApplier
from binlogd.drainer.restore import Restored, begin, check_complete, running, where_to_begin
from binlogd.drainer.sink import Sink
from binlogd.drainer.txn import Skip
from binlogd.errors import ConfigError, CorruptPayload, CorruptRelay
from binlogd.log.checked_text import text_in
from binlogd.log.drive import Reading, of_bytes
from binlogd.log.scan import Ending, scan
from binlogd.relay.frame import UNWRITTEN_BYTES
from binlogd.tso import MAX_TS, NO_TS, Tso

BASE_NAME = "base"
"""The original passes over a file of this name."""

log = structlog.get_logger(__name__)


async def restore_original(
    *,
    relay_directory: Path,
    sink: Sink,
    applier: NamedApplier,
    table_filter: TableFilter,
    to_ts: Tso | None = None,
) -> Restored:
    """Applies the relay log beyond the checkpoint and saves a consistent checkpoint.

    The sink keeps the checkpoint; rows and DDL go through the applier, which writes to the same
    server. Opens and closes both. Raises as `restore`.
    """
    try:
        checkpoint = await where_to_begin(sink, to_ts)
        if checkpoint.consistent and to_ts is None:
            return Restored(checkpoint.commit_ts, checkpoint.commit_ts, 0, 0, was_consistent=True)
        # what is applied by every lane is applied, whatever was saved
        after = max(checkpoint.commit_ts, sink.applied_ts())
        if next(_records(relay_directory), None) is None:
            raise ConfigError(f"the relay log in {relay_directory} holds nothing to restore from")
        base_ts = base_of(relay_directory)
        if base_ts > checkpoint.commit_ts:
            raise ConfigError(
                f"the relay log in {relay_directory} begins behind commit_ts {base_ts}, the"
                f" checkpoint is {checkpoint.commit_ts}: what lies between cannot be restored"
            )
        await begin(sink, checkpoint)
        await applier.open()
        log.info("restore_begun", checkpoint_ts=checkpoint.commit_ts, after=after)
        last_ts = MAX_TS if to_ts is None else to_ts
        for found, size_bytes in _transactions(relay_directory, after, last_ts):
            wanted = _wanted(found, table_filter)
            if wanted is not None:
                await applier.apply(wanted, size_bytes)
            after = found.commit_ts
        await applier.flush()
        check_complete(sink, checkpoint, after)
        # nobody told the schema version of a DDL: 0 lets a later start look at the history instead
        version = 0 if applier.counters.ddls else checkpoint.schema_version
        await _save(sink, Checkpoint(after, True, version, checkpoint.ts_map))
    finally:
        applier.close()
        await sink.close()
    done = applier.counters
    transactions = done.transactions + done.ddls
    log.info("restored", to_ts=after, transactions=transactions, rows=done.rows)
    return Restored(checkpoint.commit_ts, after, transactions, done.rows, was_consistent=False)


def base_of(directory: Path) -> Tso:
    """Above which commit_ts a log is complete; NO_TS where nobody tells (the original's).

    Earlier versions of binlogd wrote such logs too, and told it. Raises CorruptRelay."""
    path = directory / BASE_NAME
    if not path.exists():
        return NO_TS
    try:
        return Tso(int(text_in(path.read_bytes())))
    except ValueError as error:
        todo = "write the commit_ts into it from which the log is complete, as a line"
        raise CorruptRelay(path, 0, f"it holds no timestamp: {error}", todo=todo) from error


def _records(directory: Path) -> Iterator[tuple[Path, Record]]:
    files = log_files([entry.name for entry in directory.iterdir()])
    for file in files:
        path = directory / file.name
        for record in whole_records(path, path.read_bytes(), is_newest=file is files[-1]):
            yield path, record


def whole_records(path: Path, data: bytes, *, is_newest: bool) -> Iterator[Record]:
    """The records of a file, up to where the newest one is torn. Raises CorruptRelay.

    Torn is what `log.scan` says, or an end in zeros, which are pages that never reached the
    disk; a record ends with a checksum.
    """
    reading = Reading(scan(FRAMING, size=len(data)), of_bytes(data))
    yield from records_in(reading.batches())
    end = reading.found
    unwritten = bytes(min(len(data) - end.offset, UNWRITTEN_BYTES))
    is_torn = end.ending is Ending.TORN or data.endswith(unwritten)
    if end.ending is not Ending.WHOLE and not (is_newest and is_torn):
        raise CorruptRelay(path, end.offset, end.reason)


def _transactions(
    directory: Path, after: Tso, last_ts: Tso
) -> Iterator[tuple[NamedTransaction, int]]:
    for path, record in _records(directory):
        try:
            commit_ts = head_of(record.payload).commit_ts
            if commit_ts > last_ts:
                return
            if commit_ts > after:
                yield secondary.decode(record.payload), len(record.payload)
        except CorruptPayload as error:
            raise CorruptRelay(path, record.offset, str(error)) from error


def _wanted(found: NamedTransaction, table_filter: TableFilter) -> NamedTransaction | None:
    """Without what the filters leave out; None if nothing is left."""
    if table_filter.ignores_transaction(found.commit_ts):
        return None
    if found.ddl is not None:
        is_wanted = table_filter.executes_ddl and table_filter.replicates(*name_of(found.ddl))
        return found if is_wanted else None
    return found.only(table_filter.replicates)


async def _save(sink: Sink, checkpoint: Checkpoint) -> None:
    """The sink's own progress is moved as well: it would pass over nothing of this otherwise."""
    async with running(sink):
        await sink.submit([Skip(checkpoint.commit_ts)])
        await sink.flush()
        await sink.save(checkpoint)
