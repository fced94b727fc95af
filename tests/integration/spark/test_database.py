"""Batches through the Drainer into a database, as the pipeline does it: cut, killed, done again."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.mysql.sink import MySqlSinkOptions
from binlogd.drainer.mysql.writer import RowWriter
from binlogd.drainer.rows.parts import Limits
from binlogd.node.into_mysql import mysql_options
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark import database, lane_task
from binlogd.spark.base_loader import load_base
from binlogd.spark.counts import RowCounts
from binlogd.spark.database import DatabaseSink, binlogs_of_base
from binlogd.spark.lake.manifest import Claim, PipelineStopped
from binlogd.spark.lane_task import LaneDone, LaneWork, apply_lane
from binlogd.spark.request import request
from binlogd.tso import Tso
from tests.support import recordings_reader
from tests.support.appliance import into_mariadb
from tests.support.data_directory import collect_garbage, write_log
from tests.support.logged import Logged, read
from tests.support.mariadb import MariaDb
from tests.support.model_in_mysql import PREFIX, model_differences
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import SKIPPED
from tests.support.spark import WarmSpark
from tests.workload.generator import Options
from tests.workload.tables import STANDARD

NAME = "keys"
TABLES = ("accounts", "transfers", "orders", "audit")


class Killed(BaseException):
    """Ends the process, as no error does: the Drainer would hold on and try again."""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    records = recordings_reader.records(RECORDINGS / NAME)
    write_log(tmp_path / "data", [record.payload for record in records], segment_bytes=20_000)
    (tmp_path / "history.json").write_bytes(recordings_reader.history(RECORDINGS / NAME))
    return {
        "path": str(tmp_path / "data"),
        "schemaHistory": str(tmp_path / "history.json"),
        "form": "binlog",
    }


def sink(mariadb: MariaDb, options: dict[str, str]) -> DatabaseSink:
    ignored = (
        'ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,keys_tidb,keys_wrong"\n'
    )
    text = into_mariadb(mariadb, extra=ignored)
    setup = Setup(config.parse(text, "the test's"))
    return DatabaseSink(setup, request(options))


class Here:
    """Lanes one after the other, in this process, by `apply_lane` or what stands for it."""

    def __init__(self, cores: int, apply: Callable[[LaneWork], LaneDone] = apply_lane) -> None:
        self.cores, self._apply = cores, apply

    def map(self, act: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
        """See `Executors`."""
        assert act is apply_lane
        return [self._apply(each) for each in pickle.loads(pickle.dumps(work))]


class Dying:
    """Lanes of which one dies in the middle of its work, at the second of its commits or later."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.died = 0

    def apply(self, work: LaneWork) -> LaneDone:
        """As `apply_lane`."""
        left = self._rng.randrange(1, 12)

        async def dies(writer: RowWriter, *words: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                self.died += 1
                raise Killed
            await move(writer, *words)

        move = RowWriter.move
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RowWriter, "move", dies)
            patch.setattr(lane_task, "mysql_options", of_small_parts)
            return apply_lane(work)


def of_small_parts(setup: Setup) -> MySqlSinkOptions:
    """Several parts of a few changes each, and transactions that are cut."""
    limits = Limits(changes_max=5, changes_worth=1, cut_changes_max=4)
    return replace(mysql_options(setup), limits=limits)


def batches(options: dict[str, str], count: int) -> list[tuple[Tso, Tso]]:
    """The log cut into so many."""
    ends = read(options)["commit_ts"].to_pylist()
    bounds = [0, *(ends[len(ends) * at // count - 1] for at in range(1, count + 1))]
    return [(Tso(start), Tso(end)) for start, end in pairwise(bounds)]


def by_lanes(into: DatabaseSink, parts: Sequence[tuple[Tso, Tso]], dying: Dying) -> None:
    """Each batch with another number of lanes, which the one that died before it decides first."""
    for number, (start, end) in enumerate(parts):
        tasks = Here(number + 2, dying.apply)
        for _ in range(30):  # until none dies before its last commit
            died = dying.died
            with suppress(BaseExceptionGroup):
                into.apply(tasks, start, end)
            if dying.died == died:
                break
        into.apply(Here(1), start, end)


async def test_a_database_holds_what_the_upstream_did_wherever_batches_end_or_lanes_die(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    tables = tuple(each for each in STANDARD if each.name in TABLES)
    made = Options(seed=71, transactions=60, ddl_every=30, prefix=PREFIX, tables=tables)
    logged, dying = Logged.write(tmp_path, made), Dying(Random(7))
    options = logged.options(form="binlog")
    into = DatabaseSink(Setup(config.parse(into_mariadb(mariadb), "the test's")), request(options))
    await asyncio.to_thread(by_lanes, into, batches(options, 2), dying)
    assert dying.died > 4
    assert await model_differences(logged.workload, mariadb) == []


def test_lanes_that_read_different_changes_end_the_batch_before_its_checkpoint(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    tables = tuple(each for each in STANDARD if each.name in TABLES)
    made = Options(seed=72, transactions=12, ddl_every=0, prefix=PREFIX, tables=tables)
    options = Logged.write(tmp_path, made).options(form="binlog")
    into = DatabaseSink(Setup(config.parse(into_mariadb(mariadb), "the test's")), request(options))
    ((start, end),) = batches(options, 1)

    def losing(work: LaneWork) -> LaneDone:
        done = apply_lane(work)
        return replace(done, walked=RowCounts(done.walked.inserts - work.lane.number))

    with pytest.raises(PipelineStopped, match="lanes read different changes of one batch"):
        into.apply(Here(2, losing), start, end)
    into.apply(Here(2), start, end)


async def test_an_attempt_that_was_taken_for_dead_writes_nothing_twice(
    mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one does its work in the middle of it. `audit` and `visits` have no key."""
    tables = tuple(each for each in STANDARD if each.name in ("audit", "visits"))
    made = Options(seed=72, transactions=60, ddl_every=0, prefix=PREFIX, tables=tables)
    logged, others = Logged.write(tmp_path, made), list[LaneDone]()
    options = logged.options(form="binlog")
    into = DatabaseSink(Setup(config.parse(into_mariadb(mariadb), "the test's")), request(options))
    begin, works = RowWriter.begin, list[LaneWork]()

    async def late(writer: RowWriter, session: SqlSession) -> None:
        if works:
            others.append(await asyncio.to_thread(apply_lane, works.pop()))
        await begin(writer, session)

    def slow(work: LaneWork) -> LaneDone:
        works[:] = [work]
        done = apply_lane(work)
        assert works or done.rows == 0, "the other one did it"
        works.clear()
        return done

    monkeypatch.setattr(RowWriter, "begin", late)
    monkeypatch.setattr(lane_task, "mysql_options", of_small_parts)
    for start, end in batches(options, 2):
        await asyncio.to_thread(into.apply, Here(2, slow), start, end)
    assert sum(each.rows for each in others) > 60
    assert await model_differences(logged.workload, mariadb) == []


@pytest.mark.soak
def test_a_database_holds_what_was_recorded_wherever_batches_end_or_lanes_die(
    mariadb: MariaDb, options: dict[str, str]
) -> None:
    into, dying = sink(mariadb, options), Dying(Random(7))
    by_lanes(into, batches(options, 4), dying)
    assert dying.died > 4
    check(mariadb)


@pytest.mark.soak
def test_a_database_begins_with_a_snapshot_however_often_that_is_killed(
    mariadb: MariaDb, options: dict[str, str], spark: WarmSpark, tmp_path: Path
) -> None:
    ((_, base_ts), (_, end)) = batches(options, 2)
    data_dir, history = Path(options["path"]), Path(options["schemaHistory"]).read_bytes()
    snapshot = spark.export(data_dir, history, base_ts, types=TypeOptions())
    assert collect_garbage(data_dir, base_ts) > 0
    into, asked, tasks = sink(mariadb, options), request(options), Here(2)
    begin = load_base(str(snapshot), "", asked, tmp_path, into.wants, needs_keys=False)
    with pytest.raises(PipelineStopped, match="the log is complete behind"):
        into.apply(tasks, Tso(0), end, is_first=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            database, "binlogs_of_base", lambda *words: dying(list(binlogs_of_base(*words)), 25)
        )
        with pytest.raises(BaseExceptionGroup):
            into.begin(begin)
    into.begin(begin)
    into.begin(begin)
    into.apply(tasks, base_ts, end, is_first=True)
    into.begin(begin)
    check(mariadb)


def dying(binlogs: list[CommittedBinlog], after: int) -> Iterator[CommittedBinlog]:
    yield from binlogs[:after]
    raise Killed


def check(mariadb: MariaDb) -> None:
    connection = mariadb.connect()
    try:
        assert compare(RECORDINGS / NAME, connection, SKIPPED[NAME]) == []
    finally:
        connection.close()


def test_a_downstream_that_lacks_what_was_before_a_batch_is_told(
    mariadb: MariaDb, options: dict[str, str]
) -> None:
    with pytest.raises(PipelineStopped, match="what lies between would be lost"):
        sink(mariadb, options).apply(Here(2), Tso(1000), Tso(2000))


def test_what_the_downstream_refuses_stops_the_batch_with_the_way_past(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    tables = tuple(each for each in STANDARD if each.name == "accounts")
    made = Options(seed=74, transactions=40, ddl_every=0, prefix=PREFIX, tables=tables)
    options = Logged.write(tmp_path, made).options(form="binlog")
    into = DatabaseSink(Setup(config.parse(into_mariadb(mariadb), "the test's")), request(options))
    before, after = batches(options, 2)
    into.apply(Here(2), *before)
    refusing = "ALTER TABLE w_bank.accounts ADD CHECK (owner = 'nobody')"
    mariadb.execute("DELETE FROM w_bank.accounts", refusing)
    with pytest.raises(PipelineStopped, match=r"refused a statement.*ignore-txn-commit-ts"):
        into.apply(Here(2), *after)


@pytest.mark.parametrize("db_type", ["mysql", "sqlite"])
def test_a_second_pipeline_into_one_downstream_is_refused_until_it_takes_over(
    db_type: str, mariadb: MariaDb, options: dict[str, str], tmp_path: Path
) -> None:
    into_sqlite = f'data-dir = "{tmp_path}"\n[syncer]\ndb-type = "sqlite"\n'
    text = into_mariadb(mariadb) if db_type == "mysql" else into_sqlite
    into = DatabaseSink(Setup(config.parse(text, "the test's")), request(options))
    seeding, first = Claim("", "/lake/one"), Claim("id-1", "/lake/one")
    other = Claim("id-2", "/lake/" + "two" * 100)
    for claim in (seeding, first, seeding, first):
        into.claim(claim)
    for claim in (other, Claim("", other.checkpoint)):
        with pytest.raises(PipelineStopped, match=r"whose checkpoint is /lake/one.*--take-over"):
            into.claim(claim)
    into.apply(Here(2), Tso(0), Tso(read(options)["commit_ts"].to_pylist()[4]))
    into.claim(first)
    into.claim(other, takes_over=True)
    into.claim(other)
    with pytest.raises(PipelineStopped, match="whose checkpoint is /lake/two"):
        into.claim(first)
