"""A relay log in the original's format: its bytes, its ends, and what is restored from it."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.log import log_files
from binlogd.drainer.files.relay_original import BASE_NAME, OriginalRelay
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.secondary import decode
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.restore_original import restore_original
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import ConfigError, CorruptRelay
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.log.checked_text import text_in
from binlogd.ports import Disk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.sim.disk import SimDisk
from tests.support.artefacts import ARTEFACTS
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.pb_reader import file_records
from tests.support.recordings_reader import RECORDINGS, committed, compare, history
from tests.support.replay import SKIPPED, filter_for, running, server_of, sink_for

GOLDEN = ARTEFACTS / "drainer_relay_keys.tar.gz"
LEFT_OUT = ("keys_tidb", "keys_fk", "keys_wrong")
Part = list[tuple[Txn, bytes]]


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


def recorded(name: str, skip: Sequence[str] = LEFT_OUT) -> Part:
    """A recording as the Drainer hands it to its relay log."""
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / name))}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, filter_for(skip), Dialect.MYSQL)
    return [
        (translator.translate(decoded(binlog, jobs)), binlog.payload)
        for binlog in committed(RECORDINGS / name)
    ]


def kept(part: Part) -> Part:
    """What leaves something downstream."""
    return [
        (txn, payload)
        for txn, payload in part
        if isinstance(txn, Dml) or (isinstance(txn, Ddl) and not txn.is_skipped)
    ]


class Log:
    """A directory, written in as many lives as a test wants."""

    def __init__(self, directory: Path, disk: Disk, max_file_bytes: int = 16_384) -> None:
        self.directory, self._disk, self._max_file_bytes = directory, disk, max_file_bytes

    async def write(self, part: Part, *, after: Tso, at_once: int = 1) -> OriginalRelay:
        relay = OriginalRelay(
            self.directory, self._disk, WallClock(), max_file_bytes=self._max_file_bytes
        )
        await relay.open(after=after)
        for begin in range(0, len(part), at_once):
            await relay.append_translated(part[begin : begin + at_once])
        await relay.close()
        return relay

    def files(self) -> list[Path]:
        names = [entry.name for entry in self.directory.iterdir()]
        return [self.directory / file.name for file in log_files(names)]

    def tss(self) -> list[Tso]:
        return [decode(record.payload).commit_ts for _, record in file_records(self.directory)]

    def records(self) -> list[bytes]:
        return [record.payload for _, record in file_records(self.directory)]


async def test_what_a_killed_process_had_not_synced_is_synced_before_it_is_passed_over() -> None:
    part, disk = kept(recorded("keys"))[:9], SimDisk(Random(1))
    relay = Log(Path("/relay"), disk)
    await relay.write(part, after=Tso(1))
    (path,) = (path for path in disk.files if path.name.startswith("binlog-"))
    disk.files[path].synced -= 10  # killed between write and sync
    await relay.write(part[-1:], after=Tso(1))
    assert disk.files[path].synced == len(disk.files[path].content)


@pytest.fixture
def relay_log(tmp_path: Path, disk: PosixDisk) -> Log:
    return Log(tmp_path / "relay", disk)


async def test_its_files_are_those_of_the_original(tmp_path: Path, relay_log: Log) -> None:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path / "golden", filter="data")
    theirs = [path.read_bytes() for path in Log(tmp_path / "golden" / "relay", PosixDisk()).files()]
    first = next(file_records(tmp_path / "golden" / "relay"))[1]
    begin = decode(first.payload).commit_ts
    await relay_log.write(
        [each for each in recorded("keys") if each[0].commit_ts >= begin], after=Tso(begin - 1)
    )
    ours = [path.read_bytes() for path in relay_log.files()]
    assert ours[0] == theirs[0]
    assert ours[1].startswith(theirs[1])  # where it was killed


async def test_whatever_a_crash_left_of_the_last_group_comes_again_and_nothing_twice(
    relay_log: Log,
) -> None:
    part = kept(recorded("keys"))[:120]
    await relay_log.write(part, after=Tso(0), at_once=10)
    whole, newest = relay_log.records(), relay_log.files()[-1]
    content = newest.read_bytes()
    last_begin = max(
        record.offset for path, record in file_records(relay_log.directory) if path == newest
    )
    cuts = {*range(last_begin, len(content), 7), len(content) - 1}
    for cut in sorted(cuts):
        newest.write_bytes(content[:cut])
        await relay_log.write(part[60:], after=part[60][0].commit_ts, at_once=10)
        assert relay_log.records() == whole
        newest.write_bytes(content[:cut] + bytes(100))  # pages that never reached the disk
        await relay_log.write(part[60:], after=part[60][0].commit_ts, at_once=10)
        assert relay_log.records() == whole
    damaged = bytearray(content)
    damaged[last_begin // 2] ^= 1
    newest.write_bytes(damaged)
    with pytest.raises(CorruptRelay, match=newest.name):
        await relay_log.write(part, after=part[60][0].commit_ts)


async def test_it_begins_anew_where_it_does_not_reach_the_checkpoint(relay_log: Log) -> None:
    part = kept(recorded("keys"))[:100]
    tss = [txn.commit_ts for txn, _ in part]
    await relay_log.write(part[50:80], after=tss[49])
    assert relay_log.tss() == tss[50:80]
    await relay_log.write(part[30:60], after=tss[29])  # the checkpoint was set back
    assert relay_log.tss() == tss[30:60]
    await relay_log.write(part[90:], after=tss[89])  # and on
    assert relay_log.tss() == tss[90:]
    await relay_log.write(part[95:], after=tss[94])  # a restart as it should be
    assert relay_log.tss() == tss[90:]


async def test_files_behind_the_saved_checkpoint_go(relay_log: Log) -> None:
    part = kept(recorded("keys"))
    tss = [txn.commit_ts for txn, _ in part]
    relay = await relay_log.write(part, after=Tso(0))
    files = len(relay_log.files())
    assert files > 3
    assert await relay.collect(tss[len(tss) // 2]) > 0
    assert 1 < len(relay_log.files()) < files
    held = relay_log.tss()
    assert held[0] <= tss[len(tss) // 2]
    assert held == tss[tss.index(held[0]) :]
    base = int(text_in((relay_log.directory / BASE_NAME).read_bytes()))
    assert base < held[0]
    assert relay.statistics().base_ts == base
    assert await relay.collect(tss[-1]) > 0
    assert len(relay_log.files()) == 1


class Crashed(Exception):
    """The end of the Drainer's process."""


@pytest.mark.parametrize("applied", [90])
async def test_a_database_left_in_the_middle_is_completed(
    relay_log: Log, mariadb: MariaDb, applied: int
) -> None:
    left_out = (*SKIPPED["keys"], "keys.no_key", "keys.uniq_null", "keys.shard*")
    part = recorded("keys", left_out)
    saved = part[len(part) // 3][0].commit_ts
    await relay_log.write(part, after=Tso(0), at_once=20)
    sink = sink_for(mariadb, 2)
    with pytest.RaisesGroup(Crashed):
        async with running(sink):
            await sink.submit([txn for txn, _ in part if txn.commit_ts <= saved])
            await sink.flush()
            await sink.save(Checkpoint(saved))
            beyond = [txn for txn, _ in part if txn.commit_ts > saved]
            await sink.submit(beyond[:applied])
            raise Crashed
    done = await restore_original(
        relay_directory=relay_log.directory,
        sink=sink_for(mariadb, 2),
        applier=NamedApplier(server_of(mariadb), NamedOptions(is_safe=True), Random(1)),
        table_filter=TableFilter(),
    )
    last_ts = kept(part)[-1][0].commit_ts
    assert (done.from_ts, done.to_ts) == (saved, last_ts)
    connection = mariadb.connect()
    assert [str(each) for each in compare(RECORDINGS / "keys", connection, left_out)] == []
    connection.close()


async def test_a_log_that_begins_behind_the_checkpoint_is_refused(
    relay_log: Log, mariadb: MariaDb
) -> None:
    part = recorded("keys")
    await relay_log.write(part[100:], after=part[99][0].commit_ts)
    sink = sink_for(mariadb, 1)
    await sink.open()
    await sink.save(Checkpoint(part[50][0].commit_ts))
    await sink.close()
    with pytest.raises(ConfigError, match="what lies between cannot be restored"):
        await restore_original(
            relay_directory=relay_log.directory,
            sink=sink_for(mariadb, 1),
            applier=NamedApplier(server_of(mariadb), NamedOptions(is_safe=True), Random(1)),
            table_filter=TableFilter(),
        )
