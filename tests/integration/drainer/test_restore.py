"""Restoring from the relay log alone gives what an undisturbed run gives, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.sink import FileSink
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.pb import head_of
from binlogd.drainer.restore import Restored, check_complete, restore
from binlogd.drainer.sink import Sink, SinkStatistics
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import ConfigError, CorruptRelay, DownstreamUnavailable, RowMismatch
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.node.assembly import make_sink
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayWriter
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.restoring import Beside, restore_from
from binlogd.tso import Tso
from tests.contract.memory_sink import MemorySink, MemoryStore
from tests.integration.drainer.test_drainer import Place, rows, with_a_coming_column
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.pb_reader import file_records
from tests.support.recordings_reader import RECORDINGS, committed, compare, history
from tests.support.replay import SKIPPED, filter_for, running, sink_for

CALL_TXNS = 37
FILE_BYTES = 30_000


def into_files(tracker: SchemaTracker) -> Translator:
    return Translator(tracker, TableFilter(), Dialect.FILE)


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


class Replica:
    """A recording, replicated into files behind a relay log, and left where a crash left it."""

    def __init__(
        self,
        disk: PosixDisk,
        root: Path,
        name: str,
        translator_for: Callable[[SchemaTracker], Translator] = into_files,
    ) -> None:
        self.disk, self.root, self.translator_for = disk, root, translator_for
        self.binlogs = list(committed(RECORDINGS / name))
        jobs = jobs_from_json(history(RECORDINGS / name))
        self.jobs = {job.id: job for job in jobs}
        self.tracker = SchemaTracker()
        self.tracker.load(jobs)
        self.translator = self.translator_for(self.tracker)
        self.txns: list[Txn] = []

    def ts(self, share: float) -> Tso:
        return self.binlogs[int(share * (len(self.binlogs) - 1))].commit_ts

    def job_of(self, binlog: CommittedBinlog) -> Job | None:
        return decoded(binlog, self.jobs).job

    async def relay(self, *, start: Tso, end: Tso) -> None:
        """The relay log of a Drainer that began at `start` and died after `end`."""
        writer = RelayWriter(self.root / "relay", self.disk, max_file_bytes=FILE_BYTES)
        opened = False
        for at in range(0, len(self.binlogs), CALL_TXNS):
            part = [each for each in self.binlogs[at : at + CALL_TXNS] if each.commit_ts <= end]
            later = [each for each in part if each.commit_ts > start]
            self._translate([each for each in part if each.commit_ts <= start])
            if later and not opened:
                await writer.open(after=start, snapshot=self.tracker.snapshot)
                opened = True
            if later:
                await writer.append([self._entry(each) for each in later])
            self._translate(later)
        await writer.close()

    def _entry(self, binlog: CommittedBinlog) -> RelayEntry:
        job = self.job_of(binlog)
        return RelayEntry(binlog.commit_ts, binlog.payload, job.raw if job else b"")

    def _translate(self, binlogs: list[CommittedBinlog]) -> None:
        self.txns += [self.translator.translate(decoded(each, self.jobs)) for each in binlogs]

    def sink(self, directory: str = "replica") -> FileSink:
        place = self.root / directory
        return FileSink(place / "out", place / "savepoint", disk=self.disk, clock=WallClock())

    async def apply(self, directory: str, *, up_to: Tso, saved: Tso) -> None:
        """What the crash left downstream: applied up to one commit_ts, saved up to another."""
        sink = self.sink(directory)
        await sink.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            for end in (saved, up_to):
                applied = sink.applied_ts()
                await sink.submit([each for each in self.txns if applied < each.commit_ts <= end])
                await sink.flush()
                if end == saved:
                    await sink.save(Checkpoint(saved))
            await sink.close()

    async def restore(self, sink: Sink | None = None, *, to_ts: Tso | None = None) -> Restored:
        return await restore(
            to_ts=to_ts,
            disk=self.disk,
            relay_directory=self.root / "relay",
            sink=sink or self.sink(),
            translator_for=self.translator_for,
        )

    def records(self, directory: str = "replica") -> list[bytes]:
        return [record.payload for _, record in file_records(self.root / directory / "out")]


@pytest.mark.parametrize(
    ("start", "saved", "applied"),
    [(0.0, 0.0, 0.0), (0.0, 0.31, 0.62), (0.25, 0.4, 0.4), (0.5, 0.83, 0.97), (0.6, 1.0, 1.0)],
)
@pytest.mark.parametrize("name", ["ddl", pytest.param("types", marks=pytest.mark.soak)])
async def test_a_replica_left_in_the_middle_is_completed(
    disk: PosixDisk, tmp_path: Path, name: str, start: float, saved: float, applied: float
) -> None:
    replica = Replica(disk, tmp_path, name)
    end = replica.ts(1.0)
    await replica.relay(start=replica.ts(start), end=end)
    await replica.apply("undisturbed", up_to=end, saved=end)
    await replica.apply("replica", up_to=replica.ts(applied), saved=replica.ts(saved))
    restored = await replica.restore()
    assert (restored.from_ts, restored.to_ts) == (replica.ts(saved), end)
    assert replica.records() == replica.records("undisturbed")
    again = await replica.restore()
    assert again == Restored(end, end, 0, 0, was_consistent=True)
    assert replica.records() == replica.records("undisturbed")


async def test_a_restore_up_to_a_moment_can_go_on_from_there_but_not_back(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "ddl")
    end, middle = replica.ts(1.0), replica.ts(0.6)
    await replica.relay(start=replica.ts(0.0), end=end)
    await replica.apply("undisturbed", up_to=end, saved=end)
    await replica.apply("replica", up_to=replica.ts(0.3), saved=replica.ts(0.2))
    with pytest.raises(ConfigError, match="cannot take any back"):
        await replica.restore(to_ts=replica.ts(0.25))
    restored = await replica.restore(to_ts=Tso(middle + 1))
    assert restored.to_ts == middle
    assert head_of(replica.records()[-1]).commit_ts <= middle
    assert (await replica.restore()).was_consistent
    assert (await replica.restore(to_ts=Tso(end + 1))).to_ts == end
    assert replica.records() == replica.records("undisturbed")


async def test_a_checkpoint_behind_rows_that_ran_ahead_has_the_schema_of_its_moment(
    disk: PosixDisk, tmp_path: Path
) -> None:
    """They know what no DDL had made yet: that comes when the upstream is there again."""
    replica = Replica(disk, tmp_path, "ddl")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(1.0))
    done = [txn.schema_version for txn in replica.txns[:128] if isinstance(txn, Ddl)]
    last = replica.txns[127]
    assert isinstance(last, Dml)
    assert last.schema_version > max(done)
    await replica.apply("replica", up_to=replica.ts(0.0), saved=replica.ts(0.0))
    await replica.restore(to_ts=last.commit_ts)
    checkpoint = await replica.sink().open()
    assert checkpoint == Checkpoint(last.commit_ts, consistent=True, schema_version=max(done))


async def test_a_restore_up_to_a_moment_has_the_transaction_of_that_moment(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "types")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(1.0))
    await replica.apply("replica", up_to=replica.ts(0.3), saved=replica.ts(0.2))
    middle = replica.ts(0.6)
    assert (await replica.restore(to_ts=middle)).to_ts == middle
    assert head_of(replica.records()[-1]).commit_ts == middle


class Dying(FileSink):
    """Of a process that dies before the end."""

    async def flush(self) -> None:
        raise DownstreamUnavailable("it dies")


async def test_a_restore_that_dies_leaves_a_checkpoint_that_says_nothing_of_consistency(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "ddl")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(1.0))
    await replica.apply("replica", up_to=replica.ts(0.3), saved=replica.ts(0.2))
    middle = (await replica.restore(to_ts=replica.ts(0.6))).to_ts
    place = tmp_path / "replica"
    dying = Dying(place / "out", place / "savepoint", disk=disk, clock=WallClock())
    with pytest.raises(DownstreamUnavailable):
        await replica.restore(dying, to_ts=replica.ts(1.0))
    sink = replica.sink()
    stored = await sink.open()
    await sink.close()
    assert stored is not None
    assert (stored.commit_ts, stored.consistent) == (middle, False)


class Lanes(MemorySink):
    """At whose end some lane has begun what others have not."""

    def statistics(self) -> SinkStatistics:
        return replace(super().statistics(), furthest_ts=Tso(30))


@pytest.mark.parametrize(("newest_ts", "is_complete"), [(29, False), (30, True)])
def test_the_lane_that_is_furthest_says_how_far_a_relay_log_must_reach(
    newest_ts: int, *, is_complete: bool
) -> None:
    async def checked() -> None:
        check_complete(Lanes(MemoryStore()), Checkpoint(Tso(4)), Tso(newest_ts))

    if is_complete:
        asyncio.run(checked())
    else:
        with pytest.raises(ConfigError, match="newest part of the relay log is missing"):
            asyncio.run(checked())


async def test_a_restore_passes_over_what_an_operator_has_decided_to_skip(
    disk: PosixDisk, tmp_path: Path
) -> None:
    """By the list that is kept, as the Drainer does; the configuration names none."""
    relay_dir, out = tmp_path / "relay", tmp_path / "out"
    schema = SchemaTracker()
    schema.load(Place().history.known.values())
    schema.apply_finished_by(Tso(5))
    relay = RelayWriter(relay_dir, disk, max_file_bytes=1 << 20)
    await relay.open(after=Tso(5), snapshot=schema.snapshot)
    await relay.append([RelayEntry(Tso(ts), rows(ts, [ts]).payload, b"") for ts in (8, 9)])
    await relay.close()
    text = f'data-dir = "{tmp_path}"\n[syncer]\ndb-type = "file"\n[syncer.to]\ndir = "{out}"\n'
    setup = Setup(config.parse(text, "a test"))
    sink = make_sink(setup, disk, 1)
    await sink.open()
    await sink.save(Checkpoint(Tso(5), schema_version=2))
    await sink.close()
    done = await restore_from(setup, disk, relay_dir, Beside(1, {Tso(8)}), None)
    assert (done.to_ts, done.transactions) == (9, 1)


async def test_a_relay_log_that_ends_torn_is_restored_to_its_last_whole_group(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "types")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(0.5))
    await replica.apply("replica", up_to=replica.ts(0.1), saved=replica.ts(0.1))
    newest = max((tmp_path / "relay").glob("relay-*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    restored = await replica.restore()
    assert replica.ts(0.1) < restored.to_ts < replica.ts(0.5)
    assert head_of(replica.records()[-1]).commit_ts <= restored.to_ts


async def test_a_downstream_ahead_of_the_relay_log_is_never_called_consistent(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "types")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(0.5))
    replica._translate([each for each in replica.binlogs if each.commit_ts > replica.ts(0.5)])
    await replica.apply("replica", up_to=replica.ts(0.7), saved=replica.ts(0.2))
    before = replica.records()
    with pytest.raises(ConfigError, match=f"ends at commit_ts {replica.ts(0.5)}.*newest part"):
        await replica.restore()
    assert replica.records() == before
    sink = replica.sink()
    assert await sink.open() == Checkpoint(replica.ts(0.2))
    await sink.close()


async def test_damage_ends_the_restore_and_leaves_the_checkpoint(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "types")
    await replica.relay(start=replica.ts(0.0), end=replica.ts(0.5))
    await replica.apply("replica", up_to=replica.ts(0.1), saved=replica.ts(0.1))
    newest = max((tmp_path / "relay").glob("relay-*.log"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptRelay, match=newest.name):
        await replica.restore()
    sink = replica.sink()
    assert await sink.open() == Checkpoint(replica.ts(0.1))
    await sink.close()


async def test_without_a_checkpoint_or_far_enough_a_relay_nothing_is_touched(
    disk: PosixDisk, tmp_path: Path
) -> None:
    replica = Replica(disk, tmp_path, "types")
    await replica.relay(start=replica.ts(0.4), end=replica.ts(0.5))
    with pytest.raises(ConfigError, match="has no checkpoint"):
        await replica.restore()
    await replica.apply("replica", up_to=replica.ts(0.1), saved=replica.ts(0.1))
    before = replica.records()
    with pytest.raises(ConfigError, match=f"begins behind commit_ts {replica.ts(0.4)}"):
        await replica.restore()
    assert replica.records() == before


class Crashed(Exception):
    """The end of the Drainer's process."""


async def left_in_the_middle(replica: Replica, sink: Sink, saved: Tso) -> None:
    async with running(sink):
        await sink.submit([each for each in replica.txns if each.commit_ts <= saved])
        await sink.flush()
        await sink.save(Checkpoint(saved))
        # nothing of this is flushed: whatever is applied by then, is
        await sink.submit([each for each in replica.txns if saved < each.commit_ts][:200])
        raise Crashed


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("few", 4),
        *(
            pytest.param(name, lanes, marks=pytest.mark.soak)
            for name, lanes in (("types", 1), ("keys", 4), ("mixed", 4))
        ),
    ],
)
async def test_a_database_left_in_the_middle_is_completed(
    disk: PosixDisk, tmp_path: Path, mariadb: MariaDb, name: str, lanes: int
) -> None:
    def into_mariadb(tracker: SchemaTracker) -> Translator:
        return Translator(tracker, filter_for(SKIPPED[name]), Dialect.MYSQL)

    replica = Replica(disk, tmp_path, name, into_mariadb)
    await replica.relay(start=Tso(0), end=replica.ts(1.0))
    saved = replica.ts(0.3)
    with pytest.RaisesGroup(Crashed):
        await left_in_the_middle(replica, sink_for(mariadb, lanes), saved)
    restored = await replica.restore(sink_for(mariadb, lanes))
    assert (restored.from_ts, restored.to_ts) == (saved, replica.ts(1.0))
    connection = mariadb.connect()
    assert compare(RECORDINGS / name, connection, SKIPPED[name]) == []
    connection.close()
    assert (await replica.restore(sink_for(mariadb, lanes))).was_consistent


@pytest.mark.parametrize("checkpoint", [5, 12])
@pytest.mark.parametrize("is_followed", [True, False])
async def test_values_that_came_before_their_column_are_restored_or_said_to_be_in_doubt(
    disk: PosixDisk, tmp_path: Path, checkpoint: int, *, is_followed: bool
) -> None:
    """In doubt, where the log ends with the ALTER."""
    place = Place()
    binlogs = with_a_coming_column(place)
    if is_followed:
        binlogs.append(rows(18, [1]))
    jobs = place.history.known
    entries = [
        RelayEntry(each.commit_ts, each.payload, job.raw if job else b"")
        for each in binlogs
        for job in (decoded(each, jobs).job,)
    ]
    relay = RelayWriter(tmp_path, disk, max_file_bytes=1 << 20)
    await relay.open(after=Tso(0), snapshot=SchemaTracker().snapshot)
    await relay.append(entries)
    await relay.close()
    place.store.checkpoint = Checkpoint(Tso(checkpoint))
    place.store.applied_ts = Tso(checkpoint)
    done = await restore(
        disk=disk,
        relay_directory=tmp_path,
        sink=MemorySink(place.store),
        translator_for=into_files,
    )
    assert done.to_ts == (18 if is_followed else 14)
    assert done.values_in_doubt == (0 if is_followed else 1)
    assert (15 in place.store.commit_tss) == is_followed


@pytest.mark.parametrize("is_ignored", [True, False])
async def test_an_unreadable_binlog_is_passed_over_where_it_is_ignored(
    disk: PosixDisk, tmp_path: Path, *, is_ignored: bool
) -> None:
    """As the Drainer does that wrote it into its relay log."""
    entries = [RelayEntry(Tso(7), b"\x08", b""), RelayEntry(Tso(8), rows(8).payload, b"")]
    place = Place()
    schema = SchemaTracker()
    schema.load(place.history.known.values())
    schema.apply_finished_by(Tso(5))
    relay = RelayWriter(tmp_path, disk, max_file_bytes=1 << 20)
    await relay.open(after=Tso(5), snapshot=schema.snapshot)
    await relay.append(entries)
    await relay.close()
    place.store.checkpoint = Checkpoint(Tso(5))
    place.store.applied_ts = Tso(5)
    wanted = TableFilter(ignored_commit_ts=[Tso(7)] if is_ignored else [])
    restoring = restore(
        disk=disk,
        relay_directory=tmp_path,
        sink=MemorySink(place.store),
        translator_for=lambda tracker: Translator(tracker, wanted, Dialect.FILE),
    )
    if is_ignored:
        assert (await restoring).to_ts == 8
    else:
        with pytest.raises(RowMismatch, match="add 7 to"):
            await restoring
