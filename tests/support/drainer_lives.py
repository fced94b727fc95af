"""A Drainer over a recording with all that it keeps on a disk, and what is right afterwards.

As a program (arguments: the directory, `file` or `sqlite`, how many transactions) it replicates the
beginning of the recording until it is done or killed, and prints `saved <commit_ts>` of each
checkpoint that is stored: from then on the upstream may delete everything up to there.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from random import Random

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.files.archive import ArchiveOptions
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.restore import restore
from binlogd.drainer.schema_log import SchemaLog
from binlogd.drainer.sink import Sink
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.drainer.statistics import DrainerState
from binlogd.drainer.translate import Translator
from binlogd.errors import Behind
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso
from tests.support.job_history import MemoryHistory
from tests.support.pb_reader import file_records
from tests.support.recordings_reader import RECORDINGS, committed, history
from tests.support.replay import filter_for
from tests.support.tried import tried

RECORDING = RECORDINGS / "keys"
SKIPPED = ("keys_wrong",)
RELAY_FILE_BYTES = 6_000
SINK_FILE_BYTES = 5_000
AT_ONCE = 7
ATTEMPTS_MAX = 3
PATIENCE_S = 120.0


@cache
def binlogs() -> Sequence[CommittedBinlog]:
    """Of the recording, in commit order."""
    return list(committed(RECORDING))


class Upstream:
    """A source that has the recording, but what it deleted; `pause_s` between its batches."""

    name = "recording"

    def __init__(self, binlogs: Sequence[CommittedBinlog], gc_ts: Tso, pause_s: float) -> None:
        self._binlogs, self._gc_ts, self._pause_s = binlogs, gc_ts, pause_s

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """Everything behind `after`, and then nothing more."""
        if after < self._gc_ts:
            raise Behind(after, self._gc_ts)
        left = [each for each in self._binlogs if each.commit_ts > after]
        for begin in range(0, len(left), AT_ONCE):
            batch = left[begin : begin + AT_ONCE]
            yield Pulled(batch, batch[-1].commit_ts)
            await asyncio.sleep(self._pause_s)
        await asyncio.Event().wait()


class Replicating:
    """What a Drainer has below one directory."""

    def __init__(self, directory: Path, kind: str, count: int, disk: PosixDisk) -> None:
        """With the first `count` transactions of the recording."""
        self.directory, self.kind, self.disk = directory, kind, disk
        self._binlogs = binlogs()[:count]
        self._table_filter = filter_for(SKIPPED)

    def sink(self) -> Sink:
        """Another one for each session."""
        if self.kind == "sqlite":
            return SqliteSink(self.directory / "replica" / "replica.db", self.disk)
        place = self.directory / "out"
        options = FileSinkOptions(
            max_file_bytes=SINK_FILE_BYTES, archive=ArchiveOptions(compresses=True)
        )
        return FileSink(
            place / "log", place / "savepoint", disk=self.disk, clock=WallClock(), options=options
        )

    def _drainer(self, *, gc_ts: Tso, pause_s: float, tells: bool) -> Drainer:
        def saved(checkpoint: Checkpoint) -> None:
            if tells:
                sys.stdout.write(f"saved {checkpoint.commit_ts}\n")
                sys.stdout.flush()

        relay = RelayWriter(self.directory / "relay", self.disk, max_file_bytes=RELAY_FILE_BYTES)
        ports = DrainerPorts(
            sources=[Upstream(self._binlogs, gc_ts, pause_s)],
            history=MemoryHistory(jobs_from_json(history(RECORDING))),
            make_sink=self.sink,
            relay=relay,
            table_filter=self._table_filter,
            on_saved=saved,
            schema_log=SchemaLog(self.directory / "schema", self.disk),
        )
        options = DrainerOptions(
            dialect=Dialect.FILE, checkpoint_interval_s=0.01, part_txns_max=AT_ONCE
        )
        return Drainer(ports, Backoff(Random(1), first_s=0.01, max_s=0.1), options)

    @property
    def last_ts(self) -> Tso:
        """Of the last transaction."""
        return self._binlogs[-1].commit_ts

    async def finish(self, gc_ts: Tso, *, pause_s: float = 0.0, tells: bool = False) -> None:
        """Replicates to the end. Fails where it gets stuck. The upstream has deleted everything up
        to `gc_ts`, and waits between its batches; a checkpoint is told when it is saved."""
        drainer = self._drainer(gc_ts=gc_ts, pause_s=pause_s, tells=tells)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            running = group.create_task(drainer.run())
            while (now := drainer.statistics()).applied_ts < self.last_ts:
                assert now.state is not DrainerState.STUCK, now.last_error
                assert now.failed_in_a_row < ATTEMPTS_MAX, now.last_error
                await asyncio.sleep(0.001)
            await drainer.drain()
            await running

    async def restore(self) -> Tso:
        """From the relay log alone: up to where."""
        done = await restore(
            disk=self.disk,
            relay_directory=self.directory / "relay",
            sink=self.sink(),
            translator_for=lambda tracker: Translator(tracker, self._table_filter, Dialect.FILE),
        )
        return done.to_ts

    async def applied_ts(self) -> tuple[Tso | None, Tso]:
        """The checkpoint that is stored and up to where the downstream is, by opening it."""
        sink = self.sink()
        try:
            stored = await sink.open()
            return (None if stored is None else stored.commit_ts), sink.applied_ts()
        finally:
            await sink.close()

    def content(self) -> Sequence[object]:
        """What the downstream holds: the records of the files, or the rows of each table."""
        if self.kind == "file":
            return [record.payload for _, record in file_records(self.directory / "out" / "log")]
        tried("SQLite", sqlite3.sqlite_version)
        with closing(sqlite3.connect(self.directory / "replica" / "replica.db")) as replica:
            names = [name for (name,) in replica.execute("SELECT name FROM _binlogd_tables")]
            return [
                (name, sorted(map(repr, replica.execute(f'SELECT * FROM "{name}"'))))
                for name in sorted(names)
            ]


async def _main(directory: Path, kind: str, count: int) -> None:
    with closing(PosixDisk(threads=4)) as disk:
        replicating = Replicating(directory, kind, count, disk)
        await replicating.finish(NO_TS, pause_s=0.004, tells=True)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
