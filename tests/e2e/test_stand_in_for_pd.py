"""A whole process in the place of PD: found, asked for the time, watched, changed from outside, and
the same after a crash."""

from __future__ import annotations

import asyncio
import gzip
import json
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.node.upstreams import open_upstream
from binlogd.ports import NodeStatus
from binlogd.settings.config import parse
from binlogd.settings.setup import Setup
from binlogd.tso import Tso, compose
from binlogd.upstream.entry import DRAINER, PUMP
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated.etcdserverpb import RangeRequest
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance, run
from tests.support.nodes import own_registry
from tests.support.recordings_reader import RECORDINGS, history, info
from tests.support.replica_reader import replica_differences
from tests.support.wire_recordings import WIRE, say_whose
from tests.workload.recording import feed_recording

RECORDING = RECORDINGS / "few"
BASE = compose(1_700_000_000_000)


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path)
    appliance.configure(
        '[upstream]\nkind = "standalone"\n[security]\noperators-from = ["127.0.0.1"]\n',
        top='node-id = "pump0"\n',
    )
    yield appliance
    appliance.close()


def command(appliance: Appliance, *words: str) -> Any:
    return run(appliance.directory, *words, "--config", str(appliance.config_file))


async def found_by_its_address(appliance: Appliance) -> tuple[int, int]:
    """The cluster's id and a timestamp, as a client of PD gets them."""
    client = PdClient([appliance.target], None)
    tso = PdTso(client)
    try:
        return await client.cluster_id(), await tso.next()
    finally:
        await tso.close()
        await client.close()


def pd_api(url: str, word: str) -> Any:
    """What scripts that wait for a PD ask over HTTP."""
    with urllib.request.urlopen(f"{url}/pd/api/v1/{word}", timeout=60) as answer:
        return json.load(answer)


async def written(appliance: Appliance, cluster_id: int, start: Tso) -> None:
    async with PumpClient(*appliance.target, cluster_id=cluster_id) as pump:
        rows = encode_mutations(1, [])
        await pump.write(prewrite_binlog(start, prewrite_key=b"k", prewrite_value=rows))
        await pump.write(commit_binlog(start, Tso(start + 1)))


async def test_who_has_no_pd_finds_its_pump_through_the_pump(appliance: Appliance) -> None:
    appliance.start()
    cluster_id, ts = await found_by_its_address(appliance)
    assert cluster_id, "made for whoever asks first"
    far_ahead = compose(2_500_000_000_000)
    await written(appliance, cluster_id, far_ahead)
    assert (await found_by_its_address(appliance))[1] > far_ahead > ts
    async with EtcdClient([appliance.target]) as etcd:
        registry = NodeRegistry(etcd)
        (pump,) = await registry.nodes(PUMP)
        (drainer,) = await registry.nodes(DRAINER)
        assert (pump.node_id, pump.state, pump.is_alive) == ("pump0", "online", True)
        assert pump.host == f"127.0.0.1:{appliance.port}"
        assert (drainer.node_id, drainer.is_alive) == ("pump0-drainer", True)
        before = (await etcd.range(RangeRequest(key=b"/"))).header
        assert before is not None
    url = f"http://127.0.0.1:{appliance.port}"
    assert pd_api(url, "version") == {"version": "v5.1.0"}
    members = pd_api(url, "members")
    assert members["header"]["cluster_id"] == cluster_id
    assert members["leader"]["client_urls"] == [url]
    assert members["leader"]["member_id"] == before.member_id
    assert [each["health"] for each in pd_api(url, "health")] == [True]
    assert pd_api(url, "stores")["stores"][0]["store"]["address"] == url.removeprefix("http://")
    appliance.kill()
    appliance.start()
    again, later = await found_by_its_address(appliance)
    assert again == cluster_id
    assert later > far_ahead + 1
    async with EtcdClient([appliance.target]) as etcd:
        after = (await etcd.range(RangeRequest(key=b"/"))).header
        assert after is not None
        assert after.revision > before.revision
        assert (after.cluster_id, after.member_id) == (before.cluster_id, before.member_id)
    assert appliance.stop() == 0


async def test_what_is_changed_by_one_way_is_seen_by_every_other(appliance: Appliance) -> None:
    appliance.start()
    pd = ("--pd-urls", f"http://127.0.0.1:{appliance.port}")
    async with EtcdClient([appliance.target]) as etcd:
        registry = NodeRegistry(etcd)
        far = NodeStatus(DRAINER, "far", "10.0.0.9:8249", "online", BASE, BASE)
        await registry.register(far)
        async with asyncio.timeout(120), aclosing(registry.watch(DRAINER)) as seen:
            assert {node.node_id for node in await anext(seen)} == {"far", "pump0-drainer"}
            listed = json.loads(command(appliance, "ctl", "drainers", "--json").stdout)
            assert {each["nodeId"] for each in listed["drainers"]} == {"far", "pump0-drainer"}
            command(appliance, "nodes", "far", "--mark", "offline")
            states: dict[str, str] = {}
            while states.get("far") != "offline":
                states = {node.node_id: node.state for node in await anext(seen)}
        # as binlogctl does it, from anywhere; a living node puts it right with its next heartbeat
        words = ("ctl", "update-pump", "--node-id", "pump0", "--state", "paused", *pd)
        assert run(appliance.directory, *words).returncode == 0
        async with asyncio.timeout(120), aclosing(registry.watch(PUMP)) as seen:
            while (await anext(seen))[0].state != "online":  # ends with a heartbeat
                pass
    meta = run(appliance.directory, "ctl", "generate_meta", *pd, "--time-zone", "Asia/Shanghai")
    assert meta.returncode == 0, meta.stderr
    written = (appliance.directory / "binlog_position/savepoint").read_text()
    first, utc, there = written.splitlines()
    assert tomllib.loads(written) == {"commitTS": int(first.removeprefix("commitTS = "))}
    assert ("+0000 UTC" in utc, "+0800" in there) == (True, True)
    assert first.removeprefix("commitTS = ") in meta.stdout
    closed = run(appliance.directory, "ctl", "offline-drainer", "--node-id", "pump0-drainer", *pd)
    assert (closed.returncode, closed.stdout) == (0, "apply action close success!\n")
    appliance.wait(lambda status: status["drainer"]["node_state"] == "offline")
    path, answered = _asked_of_a_go_pump()
    assert _put(appliance, path) == answered, "as a Go Pump answers binlogctl, to the byte"
    assert appliance.end() == 0
    async with own_registry(appliance.data_dir) as after:
        assert {node.node_id: node.state for node in await after.nodes(PUMP)} == {
            "pump0": "offline"
        }


def _put(appliance: Appliance, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {appliance.token}"}
    url = f"http://127.0.0.1:{appliance.port}{path}"
    request = urllib.request.Request(url, method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def _asked_of_a_go_pump() -> tuple[str, bytes]:
    """What binlogctl's offline-pump asked a Go Pump over HTTP, and what it was told."""
    say_whose("binlogctl", "pump")
    with gzip.open(WIRE / "binlogctl-to-pump.jsonl.gz", "rt") as recorded:
        said = next(each for each in map(json.loads, recorded) if each["dir"] == "http-response")
    return said["method"].removeprefix("PUT "), bytes.fromhex(said["hex"])


async def test_a_registry_can_be_kept_to_itself(tmp_path: Path) -> None:
    for is_served in (True, False):
        config = parse(f"[upstream]\nembedded-pd = {str(is_served).lower()}\n", "a test")
        store = await UpstreamStore.open(tmp_path / "upstream.db")
        upstream = await open_upstream(Setup(config), store)
        assert (upstream.own_pd is not None, upstream.shares_registry) == (is_served, is_served)
        await upstream.ends.aclose()
        await store.close()


def test_a_drainer_elsewhere_finds_pump_schema_and_time_there(tmp_path: Path) -> None:
    for name in ("pump", "drainer"):
        (tmp_path / name).mkdir()
    pump = Appliance(tmp_path / "pump", history=history(RECORDING))
    pump.configure(
        '[upstream]\nkind = "standalone"\nschema-history = "ddl_history.json"\n',
        top='roles = ["pump"]\nnode-id = "pump-a"\n',
    )
    drainer = Appliance(tmp_path / "drainer")
    drainer.configure(
        f'[upstream]\nkind = "pd"\npd-urls = "127.0.0.1:{pump.port}"\n'
        '[syncer]\ndb-type = "sqlite"\n',
        top='roles = ["drainer"]\nnode-id = "drainer-c"\n',
    )
    try:
        pump.start()
        drainer.start(is_ready=False)  # whose cluster this is, nobody has told yet: it waits
        drainer.wait_for_log("cluster_id_waited_for")
        asyncio.run(feed_recording(RECORDING, pump.target))
        drainer.wait_until_applied(info(RECORDING)["last_tso"])
        listed = command(pump, "ctl", "drainers", "--json")
        assert [each["nodeId"] for each in json.loads(listed.stdout)["drainers"]] == ["drainer-c"]
        # one that was offline tells the Drainer, who looks for it in the registry that it serves
        assert command(pump, "ctl", "offline-pump", "--node-id", "pump-a").returncode == 0
        assert pump.end() == 0
        pump.start()
        assert "pd_serves_first" in pump.log_file.read_text()
        drainer.wait(
            lambda status: [each["state"] for each in status["drainer"]["sources"]] == ["online"]
        )
        assert drainer.stop() == 0
        assert pump.stop() == 0
        replica = tmp_path / "drainer/data/drainer/replica.db"
        assert replica_differences(RECORDING, replica, ["keys_wrong"]) == []
    finally:
        drainer.close()
        pump.close()
