"""What a real TiDB sent, through a running process, is what its tables held: kill -9 or not."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from tests.support.appliance import Appliance, into_mariadb, killed_at_random, run
from tests.support.artefacts import ARTEFACTS
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import compare, connect, history, info
from tests.support.replica_reader import replica_differences
from tests.workload.recording import feed_recording

GO_PUMPS = ARTEFACTS / "pump_value_ddl.tar.gz"
RECORDINGS = Path(__file__).parents[1] / "recordings"
SYSTEM = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"

CANNOT_FOLLOW: dict[str, tuple[str, ...]] = {
    "types": ("types_tidb",),
    "keys": ("keys_tidb", "keys_wrong"),
    "few": ("keys_tidb", "keys_wrong"),
    "ddl": ("fl", "fl_back", "ddl_a.~^rec.*$"),
    "mixed": (),
    "large": (),
}
"""What MariaDB does not understand, or what no binlog holds: schemas, and patterns of tables."""

UNLIKE = {
    "ddl": ("rec_back", "rec_old"),
}
"""Tables of ddl_a that a pattern above leaves out."""


def ignoring(name: str) -> str:
    """The part of `[syncer]` that leaves out what the downstream cannot follow."""
    schemas = [each for each in CANNOT_FOLLOW[name] if "." not in each]
    tables = [each.split(".", 1) for each in CANNOT_FOLLOW[name] if "." in each]
    lists = "".join(
        f'[[syncer.ignore-table]]\ndb-name = "{database}"\ntbl-name = "{table}"\n'
        for database, table in tables
    )
    return f'ignore-schemas = "{",".join([SYSTEM, *schemas])}"\n{lists}'


def skipped(name: str) -> list[str]:
    """What the comparison leaves out."""
    schemas = [each for each in CANNOT_FOLLOW[name] if "." not in each]
    return schemas + [f"ddl_a.{table}" for table in UNLIKE.get(name, ())]


def expect_equal(name: str, appliance: Appliance, server: MariaDb) -> None:
    """Waits until everything is applied, stops, and compares every table and the checkpoint."""
    recording = RECORDINGS / name
    appliance.wait_until_applied(0)
    assert appliance.stop() == 0
    connection = connect(server.host, server.port, server.user, server.password)
    assert compare(recording, connection, skipped(name)) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint")
        ((cluster_id, checkpoint),) = cursor.fetchall()
    assert int(cluster_id) == info(recording)["cluster_id"]
    assert b'"consistent":true' in checkpoint


def expect_equal_replica(appliance: Appliance) -> None:
    """The same for `keys` in one file of SQLite."""
    appliance.wait_until_applied(0)
    assert appliance.stop() == 0
    replica = appliance.data_dir / "drainer" / "replica.db"
    assert replica_differences(RECORDINGS / "keys", replica, ["keys_wrong"]) == []


def appliance_for(name: str, directory: Path, server: MariaDb) -> Appliance:
    """A binlogd with four shards and four lanes, its relay log on."""
    return Appliance(
        directory,
        history=history(RECORDINGS / name),
        syncer=into_mariadb(server, extra=ignoring(name)),
    )


@pytest.mark.parametrize(
    "name",
    [
        # in short: "keys" with kill -9 below, without a process in test_mysql_recordings, and large
        # ones through a process in test_large_transactions
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("types", "keys", "ddl", "mixed", "large")
    ],
)
def test_a_recording_ends_in_the_recorded_tables(
    name: str, tmp_path: Path, mariadb: MariaDb
) -> None:
    appliance = appliance_for(name, tmp_path, mariadb)
    try:
        appliance.start()
        asyncio.run(feed_recording(RECORDINGS / name, appliance.target))
        expect_equal(name, appliance, mariadb)
    finally:
        appliance.close()


def expect_equal_after_kills(
    name: str, seed: int, appliance: Appliance, server: MariaDb, kills: int
) -> None:
    """Kills it again and again while the recording is fed."""
    try:
        appliance.start()
        with killed_at_random(appliance, seed, kills):
            asyncio.run(feed_recording(RECORDINGS / name, appliance.target))
        expect_equal(name, appliance, server)
    finally:
        appliance.close()


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # in short: without a process, in test_mysql_recordings; killed, in test_demo and
        # test_exactly_once; and taken over from Go Pumps below
        pytest.param("keys", 2, marks=pytest.mark.soak),
        pytest.param("types", 1, marks=pytest.mark.soak),
        pytest.param("ddl", 3, marks=pytest.mark.soak),
    ],
)
def test_a_recording_survives_kill_9(
    name: str, seed: int, tmp_path: Path, mariadb: MariaDb
) -> None:
    appliance = appliance_for(name, tmp_path, mariadb)
    expect_equal_after_kills(name, seed, appliance, mariadb, kills=4)


@pytest.mark.soak  # in short: the page tutorial, and test_sink_contract for each step
def test_a_replica_in_one_file_survives_kill_9(tmp_path: Path) -> None:
    appliance = Appliance(
        tmp_path, history=history(RECORDINGS / "keys"), syncer='[syncer]\ndb-type = "sqlite"\n'
    )
    try:
        appliance.start()
        with killed_at_random(appliance, seed=4, kills=3):
            asyncio.run(feed_recording(RECORDINGS / "keys", appliance.target))
        expect_equal_replica(appliance)
    finally:
        appliance.close()


def test_go_pumps_are_taken_over(tmp_path: Path, mariadb: MariaDb) -> None:
    """From what two Go Pumps left on their disks alone, without anybody who writes."""
    with tarfile.open(GO_PUMPS) as archive:
        archive.extractall(tmp_path / "go", filter="data")
    cluster_id = info(RECORDINGS / "ddl")["cluster_id"]
    appliance = Appliance(tmp_path, syncer=into_mariadb(mariadb, extra=ignoring("ddl")))
    document = appliance.config_file.read_text()
    (tmp_path / "ddl_history.json").write_bytes(history(RECORDINGS / "ddl"))
    upstream = f'[upstream]\ncluster-id = {cluster_id}\nschema-history = "ddl_history.json"\n'
    appliance.config_file.write_text(document.replace("[upstream]\n", upstream))
    done = run(tmp_path, "adopt", "go/pump0", "go/pump1", "--config", "binlogd.toml")
    assert done.returncode == 0, done.stderr
    try:
        appliance.start()
        expect_equal("ddl", appliance, mariadb)
    finally:
        appliance.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["types", "keys", "ddl", "mixed", "large"])
def test_a_recording_survives_many_kills(
    name: str, seed: int, tmp_path: Path, mariadb: MariaDb
) -> None:
    appliance = appliance_for(name, tmp_path, mariadb)
    expect_equal_after_kills(name, seed, appliance, mariadb, kills=12)
