"""Wherever a Drainer died, and a restore after it, restoring ends in the one right state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.restore import Restored, restore
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Dml, Txn
from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.support.decoding import decoded
from tests.support.dying_proxy import DyingProxy
from tests.support.faults import RecordProperty, counted
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, committed, history
from tests.support.replay import CLUSTER_ID, running, server_of

NAME = "keys"
TABLES = ("no_key", "swap", "dup", "uniq_null", "pk_last", "auto_inc_key")
"""Without any key, with swaps of unique values, with several keys; DDL in between."""
WANTED = TableFilter(
    do_tables=[TablePattern(NAME, f"~^{name}$") for name in TABLES], do_databases=()
)
STEP_TXNS = 12
LANES = 2


def translator(tracker: SchemaTracker) -> Translator:
    return Translator(tracker, WANTED, Dialect.MYSQL)


class Scene:
    """A relay log that is whole, and what its transactions make of a server."""

    def __init__(self, directory: Path, disk: PosixDisk, mariadb: MariaDb) -> None:
        self.relay, self.disk, self.mariadb = directory, disk, mariadb
        jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / NAME))}
        tracker = SchemaTracker()
        tracker.load(jobs.values())
        self.snapshot = tracker.snapshot()
        translating = translator(tracker)
        self.entries: list[RelayEntry] = []
        self.txns: list[Txn] = []
        for binlog in committed(RECORDINGS / NAME):
            opened = decoded(binlog, jobs)
            raw = opened.job.raw if opened.job else b""
            self.entries.append(RelayEntry(binlog.commit_ts, binlog.payload, raw))
            self.txns.append(translating.translate(opened))
        self.tables: list[list[tuple[bytes | None, ...]]] = []

    @property
    def last_ts(self) -> Tso:
        return self.entries[-1].commit_ts

    async def prepare(self) -> int:
        """Writes the relay log and applies everything once: how many commands that took."""
        writer = RelayWriter(self.relay, self.disk, max_file_bytes=1 << 20)
        await writer.open(after=Tso(0), snapshot=lambda: self.snapshot)
        await writer.append(self.entries)
        await writer.close()
        self.clean()
        async with DyingProxy(server_of(self.mariadb)).running() as proxy:
            await self.replicate(proxy.server)
        self.tables = self.found()
        return proxy.commands

    def clean(self) -> None:
        self.mariadb.reset()
        self.mariadb.execute("CREATE DATABASE `keys`")

    def sink(self, server: MySqlServer) -> MySqlSink:
        limits = Limits(changes_max=8, cut_changes_max=16)
        return MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(LANES, limits=limits), Random(1))

    async def replicate(self, server: MySqlServer) -> None:
        """As the Drainer does it, saving its checkpoint now and then; until it dies."""
        sink = self.sink(server)
        async with running(sink):
            for begin in range(0, len(self.txns), STEP_TXNS):
                step = self.txns[begin : begin + STEP_TXNS]
                await sink.submit(step)
                if begin % (5 * STEP_TXNS) == 0:
                    await sink.flush()
                    await sink.save(Checkpoint(sink.applied_ts()))
            await sink.flush()

    async def first_checkpoint(self) -> None:
        """A Drainer saves one before it begins."""
        sink = self.sink(server_of(self.mariadb))
        await sink.open()
        await sink.save(Checkpoint(Tso(1)))
        await sink.close()

    async def restore(self, server: MySqlServer) -> Restored:
        return await restore(
            disk=self.disk,
            relay_directory=self.relay,
            sink=self.sink(server),
            translator_for=translator,
        )

    def found(self) -> list[list[tuple[bytes | None, ...]]]:
        return [
            sorted(self.mariadb.execute(f"SELECT * FROM `keys`.`{name}`"), key=str)
            for name in TABLES
        ]


@pytest.fixture
def scene(tmp_path: Path, mariadb: MariaDb) -> Iterator[Scene]:
    disk = PosixDisk(threads=2)
    yield Scene(tmp_path / "relay", disk, mariadb)
    disk.close()


async def died_and_restored(scene: Scene, dies_at: int, *, is_answer_lost: bool) -> None:
    """The Drainer dies at a command, then the first restore at another one; the second must do."""
    server = server_of(scene.mariadb)
    scene.clean()
    await scene.first_checkpoint()
    async with DyingProxy(
        server, dies_at=dies_at, is_answer_lost=is_answer_lost
    ).running() as proxy:
        assert await proxy.kills(scene.replicate(proxy.server)), "it was to die"
    again_at = 1 + dies_at * 7 % 90
    is_lost_again = not is_answer_lost
    async with DyingProxy(
        server, dies_at=again_at, is_answer_lost=is_lost_again
    ).running() as proxy:
        await proxy.kills(scene.restore(proxy.server))
    done = await scene.restore(server)
    assert done.to_ts == scene.last_ts
    where = f"died at command {dies_at}, then at {again_at}, answer lost: {is_answer_lost}"
    assert scene.found() == scene.tables, where


async def every(scene: Scene, points: Sequence[int], record_property: RecordProperty) -> None:
    """Each of them before the server has heard of the command, and behind its answer."""
    fault, target = "a Drainer dies at a command, then a restore", "MariaDB"
    with counted(record_property, fault=fault, target=target) as cases:
        for is_answer_lost in (False, True):
            for dies_at in points:
                await died_and_restored(scene, dies_at, is_answer_lost=is_answer_lost)
                cases.one()


async def test_a_restore_completes_what_died_at_some_commands(
    scene: Scene, record_property: RecordProperty
) -> None:
    assert sum(isinstance(txn, Dml) for txn in scene.txns) > 20
    commands = await scene.prepare()
    # the last says goodbye, and has no answer
    await every(scene, (commands // 2, commands), record_property)


@pytest.mark.soak
async def test_a_restore_completes_what_died_at_any_command(
    scene: Scene, record_property: RecordProperty
) -> None:
    commands = await scene.prepare()
    await every(scene, range(1, commands + 1), record_property)
