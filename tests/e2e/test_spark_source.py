"""A binlogd that runs, its directory and its archive: three inputs, one truth."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.archive.places import DirectoryIndex
from binlogd.archive.upload import verify
from binlogd.spark.source import BinlogdSource
from tests.support.appliance import Appliance, killed_at_random, run
from tests.support.logged import read
from tests.support.recordings_reader import history
from tests.workload.recording import feed_recording

RECORDING = Path(__file__).parents[1] / "recordings" / "keys"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    machine = Appliance(tmp_path_factory.mktemp("machine"), history=history(RECORDING))
    with machine.config_file.open("a") as file:
        file.write(
            'segment-size = "16 KiB"\ngc = "1s"\n'
            '[drainer]\nenabled = false\n[archive]\nurl = "archive"\ninterval = 0.2\n'
        )
    try:
        machine.start()
        asyncio.run(feed_recording(RECORDING, machine.target))
        machine.wait(lambda status: status["archive"]["segments"] > 3 and not waits(status))
        yield machine
    finally:
        machine.close()


def waits(status: dict[str, dict[str, int]]) -> bool:
    return status["archive"]["waiting"] > 0


@pytest.mark.parametrize("options", [{"form": "binlog"}, {}])
def test_grpc_directory_and_archive_give_the_same(
    options: dict[str, str], machine: Appliance
) -> None:
    archive = str(machine.directory / "archive")
    archived = machine.status()["archive"]["resolved_ts"]
    upto = str(min(archived, DirectoryIndex(machine.data_dir).resolved_ts()))
    found = read({"path": archive, "to": upto, **options})
    assert found.num_rows > 100
    assert read({"path": str(machine.data_dir), "to": upto, **options}).equals(found)
    pump = {"path": f"binlogd://127.0.0.1:{machine.port}", "to": upto, **options}
    assert read(pump).equals(found)
    first = str(found["commit_ts"][0].as_py())
    parts = read({**pump, "from": first, "partitions": "3"})
    whole = read({"path": archive, "to": upto, "from": first, **options})
    assert parts.equals(whole)


def test_the_archive_has_what_was_durable_some_seconds_ago(machine: Appliance) -> None:
    now = DirectoryIndex(machine.data_dir).resolved_ts()
    status = machine.wait(lambda status: status["archive"]["resolved_ts"] >= now)
    assert status["archive"]["behind_s"] < 60
    options = {"form": "binlog", "to": str(now)}
    found = read({"path": str(machine.directory / "archive"), **options})
    assert found.equals(read({"path": str(machine.data_dir), **options}))
    assert found.num_rows > 100


def test_the_history_is_told_as_a_tidb_tells_it(machine: Appliance) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/ddl/history") as answer:
        told = {job["id"] for job in json.load(answer)}
    assert told == {job["id"] for job in json.loads(history(RECORDING))}


def test_a_stream_over_grpc_stops_where_it_is_told(machine: Appliance) -> None:
    source = BinlogdSource(
        {"path": f"binlogd://127.0.0.1:{machine.port}", "maxTransactionsPerTrigger": "40"}
    )
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(begin, limit)
    (part,) = reader.partitions(begin, end)
    starts = {row["start_ts"] for batch in reader.read(part) for row in batch.to_pylist()}
    assert 0 < len(starts) <= 40
    assert reader.latestOffset(end, limit)["commit_ts"] > end["commit_ts"]


def test_segments_are_deleted_behind_the_archive_alone(machine: Appliance) -> None:
    status = machine.status()
    assert "archive" in status["gc"]["holds"]
    newest = status["archive"]["resolved_ts"]
    assert status["gc"]["holds"]["archive"] >= 0 < newest
    done = run(machine.directory, "archive", "--check", "--config", str(machine.config_file))
    assert done.returncode == 0, done.stderr
    assert "0 problems" in done.stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/metrics") as answer:
        said = answer.read().decode()
    assert "binlogd_archive_segments_waiting 0" in said


@pytest.mark.soak
def test_a_snapshot_comes_out_of_the_archive_alone(machine: Appliance) -> None:
    archive = str(machine.directory / "archive")
    words = ("export", "--archive", archive, "--out", "snapshots", "--json")
    done = run(machine.directory, *words, timeout_s=240)
    assert done.returncode == 0, done.stderr
    snapshot = json.loads(done.stdout)
    assert snapshot["commit_ts"] <= machine.status()["archive"]["resolved_ts"]
    assert snapshot["rows"] > 100
    assert not list((machine.directory / "snapshots").glob(".archive*"))


@pytest.mark.soak
def test_a_node_that_is_killed_leaves_an_archive_that_it_goes_on_with(tmp_path: Path) -> None:
    machine = Appliance(tmp_path, history=history(RECORDING))
    with machine.config_file.open("a") as file:
        file.write(
            'segment-size = "16 KiB"\n[drainer]\nenabled = false\n'
            '[archive]\nurl = "archive"\ninterval = 2\ntail-interval = 0.1\n'
        )
    try:
        machine.start()
        with killed_at_random(machine, seed=7, kills=6):
            asyncio.run(feed_recording(RECORDING, machine.target))
        now = machine.wait(lambda status: status["state"] == "online")["max_commit_ts"]
        machine.wait(lambda status: status["archive"]["resolved_ts"] >= now and not waits(status))
        assert machine.stop() == 0
    finally:
        machine.close()
    archive = str(tmp_path / "archive")
    assert verify(archive).problems == ()
    options = {"form": "binlog", "to": str(now)}
    found = read({"path": archive, **options})
    assert found.num_rows > 100
    assert found.equals(read({"path": str(machine.data_dir), **options}))
