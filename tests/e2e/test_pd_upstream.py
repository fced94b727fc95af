"""A whole process whose upstream is PD and TiKV: it learns cluster, time, schema and the fate of
transactions from them, and receives without them."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import threading
import urllib.request
from pathlib import Path
from typing import Any

from binlogd.binlog import BinlogType
from binlogd.tidb.meta_keys import job_key
from binlogd.tidb.model import job_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.binlogs import rollback_binlog
from tests.support.appliance import Appliance, run
from tests.support.cluster_thread import ClusterThread, running_cluster
from tests.support.recordings_reader import RECORDINGS, history, info
from tests.support.replica_reader import replica_differences
from tests.support.tikv_schema import keep_schema
from tests.workload.recording import cluster_id, feed_recording, payloads

RECORDING = RECORDINGS / "few"
FIRST_TS: int = info(RECORDING)["first_tso"]
LAST_TS: int = info(RECORDING)["last_tso"]
METRICS = (Path(__file__).parents[2] / "docs" / "METRICS.md").read_text()


def binlogd(directory: Path, cluster: ClusterThread) -> Appliance:
    appliance = Appliance(directory)
    appliance.configure(
        f'[upstream]\nkind = "pd"\npd-urls = "{cluster.urls}"\n[syncer]\ndb-type = "sqlite"\n'
    )
    return appliance


def part(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = status["upstream"]["parts"][0]
    return found


def test_pd_may_move_and_be_away_while_binlogs_are_received(tmp_path: Path) -> None:
    with running_cluster(cluster_id(RECORDING), history(RECORDING), FIRST_TS) as cluster:
        appliance = binlogd(tmp_path, cluster)
        try:
            appliance.start()
            status = appliance.wait(lambda now: part(now)["leader"] == "pd0")
            assert status["cluster_id"] == cluster_id(RECORDING), "before anybody has written"
            feeding = threading.Thread(
                target=lambda: asyncio.run(feed_recording(RECORDING, appliance.target))
            )
            feeding.start()
            cluster.do(lambda: _lead(cluster, 1))
            appliance.wait(lambda now: part(now)["leader"] == "pd1")
            for number in (0, 1, 2):
                cluster.do(cluster.pd.members[number].stop)
            feeding.join()  # everything is acknowledged, whether PD is there or not
            said = appliance.wait(lambda now: part(now)["trouble"])
            assert said["refuses_because"] == ""
            shown = ("status", "--config", "binlogd.toml")
            appliance.wait(lambda now: part(now)["trouble"] in run(tmp_path, *shown).stdout)
            cluster.pass_until(LAST_TS)
            for number in (0, 1, 2):
                cluster.do(cluster.pd.members[number].start)
            cluster.do(lambda: _lead(cluster, 2))
            appliance.wait_until_applied(LAST_TS)
            well = appliance.wait(lambda now: part(now)["leader"] == "pd2")
            assert well["upstream"]["tso"]["last_ts"] > LAST_TS
            _expect_metrics(appliance)
            assert appliance.stop() == 0
            assert (
                replica_differences(RECORDING, tmp_path / "data/drainer/replica.db", ["keys_wrong"])
                == []
            )
        finally:
            appliance.close()


def test_commits_that_are_lost_or_said_to_be_rolled_back_are_replicated_all_the_same(
    tmp_path: Path,
) -> None:
    with running_cluster(cluster_id(RECORDING), history(RECORDING), FIRST_TS) as cluster:
        lossy, orphans = tmp_path / "lossy", _lose_commits(tmp_path / "lossy")

        async def commit_in_tikv() -> None:
            for start_ts, (key, commit_ts) in orphans.items():
                cluster.tikv.records.put(key, b"row", start_ts, commit_ts)

        cluster.do(commit_in_tikv)
        appliance = binlogd(tmp_path, cluster)
        try:
            appliance.start()
            asyncio.run(feed_recording(lossy, appliance.target))
            cluster.pass_until(LAST_TS)
            told = appliance.wait_until_applied(LAST_TS)["upstream"]["tikv"]["fates"]
            assert told["committed"] >= len(orphans)
            assert told["rolled_back"] == 0
            assert appliance.stop() == 0
            replica = tmp_path / "data/drainer/replica.db"
            assert replica_differences(RECORDING, replica, ["keys_wrong"]) == []
        finally:
            appliance.close()


def _lose_commits(directory: Path) -> dict[Tso, tuple[bytes, Tso]]:
    """The recording as a TiDB would have sent it whose every ninth Commit is lost, and every ninth
    commit without an answer; the keys and commit_ts of these transactions."""
    directory.mkdir()
    (directory / "info.json").write_bytes((RECORDING / "info.json").read_bytes())
    orphans: dict[Tso, tuple[bytes, Tso]] = {}
    with gzip.open(directory / "binlogs.rec.gz", "wb", compresslevel=1) as out:
        for number, (pump, sent) in enumerate(payloads(RECORDING)):
            payload, head = sent, peek.peek(sent)
            if head.tp == BinlogType.COMMIT and number % 9 < 2 and head.commit_ts < LAST_TS:
                key = peek.prewrite_key(sent)
                orphans[Tso(head.start_ts)] = key, Tso(head.commit_ts)
                if number % 9 == 0:
                    continue
                payload = rollback_binlog(Tso(head.start_ts), prewrite_key=key)
            out.write(struct.pack("<QII", 0, pump, len(payload)) + payload)
    assert len(orphans) > 20
    return orphans


async def _lead(cluster: ClusterThread, number: int) -> None:
    cluster.pd.leader = cluster.pd.members[number]


def _expect_metrics(appliance: Appliance) -> None:
    lines = (
        'binlogd_upstream_up{part="pd"} 1',
        'binlogd_upstream_up{part="tikv"} 1',
        'binlogd_upstream_tikv_calls{method="KvScan"}',
        'binlogd_upstream_leader_changes{part="pd"}',
    )
    # who was away is up again with the first answer to whoever asks next
    appliance.wait(lambda _: all(line in _metrics(appliance) for line in lines))
    text = _metrics(appliance)
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    own = {name for name in names if name.startswith("binlogd_upstream_")}
    assert len(own) == 19
    for name in own:
        assert (
            name in METRICS
            or f"`{name.removeprefix('binlogd_upstream')}`" in METRICS
            or (f"`{name.removeprefix('binlogd')}`" in METRICS)
            or (f"`{name.removeprefix('binlogd_upstream_tikv')}`" in METRICS)
        ), name


def _metrics(appliance: Appliance) -> str:
    url = f"http://127.0.0.1:{appliance.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        said: str = answer.read().decode()
        return said


def test_a_restart_while_pd_is_away_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with running_cluster(cluster_id(RECORDING), history(RECORDING), FIRST_TS, members=1) as cluster:
        appliance = binlogd(tmp_path, cluster)
        (pd,) = cluster.pd.members
        try:
            appliance.start()
            cluster.do(pd.stop)
            assert appliance.stop() == 0, "in good order, and in time"
            appliance.start(is_ready=False)
            appliance.wait_for_log("port_answers_that_it_waits")
            alive = run(tmp_path, "health", "--config", "binlogd.toml")
            assert alive.returncode == 0
            assert "alive, not ready: starting, and waiting: the registry" in alive.stdout
            asked = run(tmp_path, "status", "--config", "binlogd.toml")
            assert asked.returncode == 1
            assert "starting, and waiting" in asked.stdout + asked.stderr
            cluster.do(pd.start)
            appliance.wait(lambda now: now["state"] == "online" and not part(now)["trouble"])
            assert appliance.stop() == 0
        finally:
            appliance.close()


def test_a_drainer_begins_with_the_tables_of_tikv_where_the_history_is_cut_off(
    tmp_path: Path,
) -> None:
    """As after a restore of a backup, and with the lease that keeps those tables there."""
    jobs = sorted(json.loads(history(RECORDING)), key=lambda job: job["binlog"]["SchemaVersion"])
    begin_ts = jobs[len(jobs) // 2]["binlog"]["FinishedTS"] + 1
    before = SchemaTracker()
    for job in jobs[: len(jobs) // 2 + 1]:
        before.apply(job_from_json(json.dumps(job).encode()), 0)
    later = jobs[len(jobs) // 2 - 5 :]  # the binlog of a DDL comes a little after it
    with running_cluster(cluster_id(RECORDING), b"[]", FIRST_TS, members=1) as cluster:
        cluster.tikv.tso.now = Tso(begin_ts - (5_000 << 18))
        cluster.do(lambda: _keep(cluster, before, later))
        cluster.pd.services = {b"gc_worker": begin_ts - (600_000 << 18)}
        appliance = Appliance(tmp_path)
        appliance.configure(
            f'[upstream]\nkind = "pd"\npd-urls = "{cluster.urls}"\n'
            f"[drainer]\ninitial-commit-ts = {begin_ts}\n"
            "[syncer]\nload-schema-snapshot = true\n"
        )
        try:
            appliance.start()
            asyncio.run(feed_recording(RECORDING, appliance.target))
            cluster.pass_until(LAST_TS)
            status = appliance.wait_until_applied(LAST_TS)
            assert status["drainer"]["rows"] > 100
            appliance.wait(lambda _: len(cluster.pd.services) == 2)
            held = {name: ts for name, ts in cluster.pd.services.items() if name != b"gc_worker"}
            assert held.keys() == {f"binlogd_127.0.0.1:{appliance.port}_checkpoint".encode()}
            assert min(held.values()) >= begin_ts
            assert "schema_read" in appliance.log_file.read_text()
            assert appliance.stop() == 0
        finally:
            appliance.close()


async def _keep(cluster: ClusterThread, tracker: SchemaTracker, jobs: list[dict[str, Any]]) -> None:
    kept_ts = keep_schema(cluster.tikv, tracker, tracker.snapshot())
    for job in jobs:
        raw = json.dumps(job).encode()
        cluster.tikv.records.put(job_key(job["id"]), raw, Tso(kept_ts + 1), Tso(kept_ts + 2))


def test_what_an_upstream_says_is_looked_at_before_a_start(tmp_path: Path) -> None:
    with running_cluster(cluster_id(RECORDING), history(RECORDING), FIRST_TS) as cluster:
        appliance = binlogd(tmp_path, cluster)
        cluster.pass_until(LAST_TS)
        words = ("check-config", "--config", "binlogd.toml", "--ask")
        well = run(tmp_path, *words)
        assert well.returncode == 0, well.stderr
        assert f"cluster {cluster_id(RECORDING)}" in well.stdout
        assert "pd pd0 at 127.0.0.1:" in well.stdout
        told = json.loads(run(tmp_path, *words, "--json").stdout)["upstream"]
        assert told["cluster_id"] == cluster_id(RECORDING)
        assert told["tso"]["last_ts"] > LAST_TS
        text = appliance.config_file.read_text().replace("pd-urls", "cluster-id = 5\npd-urls")
        appliance.config_file.write_text(text)
        refused = run(tmp_path, *words)
        assert refused.returncode == 2
        assert "but upstream.cluster-id is 5" in refused.stderr
        assert not (tmp_path / "data").exists()
