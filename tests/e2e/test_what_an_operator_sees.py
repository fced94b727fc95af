"""A running Pump tells who holds what, how slowChaser stands, and whether it takes writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.client.pump_client import PumpClient
from tests.support.appliance import Appliance, run
from tests.support.large_binlogs import CLUSTER
from tests.support.pump_world import at, commit, prewrite


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    made = Appliance(tmp_path)
    yield made
    made.close()


async def test_a_base_declared_by_command_is_held_by_the_running_process(
    appliance: Appliance,
) -> None:
    appliance.configure("[drainer]\nenabled = false\n")
    appliance.start()
    async with PumpClient(*appliance.target, cluster_id=CLUSTER) as client:
        await client.write(prewrite(1))
        await client.write(commit(1, 2))
    words = ("base", "nightly", "--config", str(appliance.config_file), "--json")
    declared = run(appliance.directory, *words, "--at", str(at(2)))
    assert json.loads(declared.stdout) == {"nightly": at(2)}

    status = appliance.wait(lambda now: now["gc"]["holds"])
    assert status["gc"] == {
        "holds": {"export base nightly": at(2)},
        "held_by": [],
        "gc_ts": 0,
        "failed": "",
    }
    assert status["refuses_because"] == ""
    for shard in status["shards"]:
        assert shard["chaser"] == "off"
        assert shard["chaser_counts"] == {
            "turned_on": 0,
            "catch_ups": 0,
            "recoveries": 0,
            "records_read": 0,
        }
    assert run(appliance.directory, *words, "--withdraw").returncode == 0
    appliance.wait(lambda now: not now["gc"]["holds"])
    assert run(appliance.directory, *words, "--withdraw").returncode == 2
    assert appliance.stop() == 0
