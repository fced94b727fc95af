"""Batches through the Drainer into a database, as the pipeline does it: cut, killed, done again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark import database
from binlogd.spark.base_binlogs import binlogs_of_base
from binlogd.spark.base_loader import load_base
from binlogd.spark.database import DatabaseSink, Joined
from binlogd.spark.lake.manifest import Claim, PipelineStopped
from binlogd.spark.request import request
from binlogd.tso import Tso
from tests.support import recordings_reader
from tests.support.appliance import into_mariadb
from tests.support.data_directory import collect_garbage, write_log
from tests.support.logged import read
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import SKIPPED
from tests.support.spark import WarmSpark

NAME = "keys"


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


def sink(mariadb: MariaDb, options: dict[str, str], directory: Path) -> DatabaseSink:
    ignored = (
        'ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,keys_tidb,keys_wrong"\n'
    )
    text = into_mariadb(mariadb, extra=ignored)
    setup = Setup(config.parse(text, "the test's"))
    return DatabaseSink(setup, request(options))


def dying(binlogs: list[Joined], after: int) -> Iterator[Joined]:
    yield from binlogs[:after]
    raise Killed


def test_a_database_holds_what_was_recorded_wherever_batches_end_or_die(
    mariadb: MariaDb, options: dict[str, str], tmp_path: Path
) -> None:
    found = read(options).to_pylist()
    binlogs = [(each["start_ts"], each["commit_ts"], each["payload"]) for each in found]
    into, rng, start = sink(mariadb, options, tmp_path), Random(7), 0
    size = len(binlogs) // 4
    for at in range(0, len(binlogs), size):
        batch = binlogs[at : at + size]
        end = batch[-1][1]
        with pytest.raises(BaseExceptionGroup):
            into.apply(dying(batch, rng.randrange(len(batch))), Tso(start), Tso(end))
        into.apply(batch, Tso(start), Tso(end))
        into.apply(batch, Tso(start), Tso(end))
        start = end
    connection = mariadb.connect()
    try:
        assert compare(RECORDINGS / NAME, connection, SKIPPED[NAME]) == []
    finally:
        connection.close()


@pytest.mark.soak
def test_a_database_begins_with_a_snapshot_however_often_that_is_killed(
    mariadb: MariaDb, options: dict[str, str], spark: WarmSpark, tmp_path: Path
) -> None:
    found = read(options).to_pylist()
    binlogs = [(each["start_ts"], each["commit_ts"], each["payload"]) for each in found]
    base_ts, end = binlogs[len(binlogs) // 2][1], binlogs[-1][1]
    data_dir, history = Path(options["path"]), Path(options["schemaHistory"]).read_bytes()
    snapshot = spark.export(data_dir, history, Tso(base_ts), types=TypeOptions())
    assert collect_garbage(data_dir, Tso(base_ts)) > 0
    into, asked = sink(mariadb, options, tmp_path), request(options)
    begin = load_base(str(snapshot), "", asked, tmp_path, into.wants, needs_keys=False)
    with pytest.raises(PipelineStopped, match="the log is complete behind"):
        into.apply(binlogs, Tso(0), Tso(end), is_first=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            database, "binlogs_of_base", lambda *words: dying(list(binlogs_of_base(*words)), 25)
        )
        with pytest.raises(BaseExceptionGroup):
            into.begin(begin)
    into.begin(begin)
    into.begin(begin)
    rest = [each for each in binlogs if each[1] > base_ts]
    into.apply(rest, Tso(base_ts), Tso(end), is_first=True)
    into.begin(begin)
    connection = mariadb.connect()
    try:
        assert compare(RECORDINGS / NAME, connection, SKIPPED[NAME]) == []
    finally:
        connection.close()


def test_a_downstream_that_lacks_what_was_before_a_batch_is_told(
    mariadb: MariaDb, options: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(PipelineStopped, match="what lies between would be lost"):
        sink(mariadb, options, tmp_path).apply([], Tso(1000), Tso(2000))


def test_what_the_downstream_refuses_stops_the_batch_with_the_way_past(
    mariadb: MariaDb, options: dict[str, str], tmp_path: Path
) -> None:
    found = read(options).to_pylist()
    binlogs = [(each["start_ts"], each["commit_ts"], each["payload"]) for each in found]
    setup = Setup(config.parse(into_mariadb(mariadb), "the test's"))
    with pytest.raises(PipelineStopped, match="refused a statement"):
        DatabaseSink(setup, request(options)).apply(binlogs, Tso(0), Tso(binlogs[-1][1]))


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
    found = read(options).to_pylist()
    binlogs = [(each["start_ts"], each["commit_ts"], each["payload"]) for each in found[:5]]
    into.apply(binlogs, Tso(0), Tso(binlogs[-1][1]))
    into.claim(first)
    into.claim(other, takes_over=True)
    into.claim(other)
    with pytest.raises(PipelineStopped, match="whose checkpoint is /lake/two"):
        into.claim(first)
