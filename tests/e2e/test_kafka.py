"""A recording through a process into a real Kafka, by TLS and with a login: each change once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.txn import Dml
from tests.integration.drainer.test_debezium_avro import Reader
from tests.support.appliance import Appliance, killed_at_random
from tests.support.kafka import PASSWORD, USER, Kafka, read_committed
from tests.support.recordings_reader import RECORDINGS, history, info
from tests.support.replay import translated
from tests.support.schema_registry import SmallRegistry
from tests.workload.recording import feed_recording


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_each_row_is_there_once_whatever_is_killed(
    kills: int, tmp_path: Path, kafka: Kafka
) -> None:
    syncer = (
        '[syncer]\ndb-type = "kafka"\n[syncer.to]\n'
        f'kafka-addrs = "{kafka.at("BOTH")}"\ntopic-name = "kills"\npartitions = 3\n'
        'protocol = "canal-json"\nkafka-compression = "zstd"\n'
        f'kafka-sasl-mechanism = "SCRAM-SHA-256"\nuser = "{USER}"\npassword = "{PASSWORD}"\n'
        f'[syncer.to.security]\nssl-ca = "{kafka.authority.file}"\n'
    )
    recording = RECORDINGS / "few"
    appliance = Appliance(tmp_path, history=history(recording), syncer=syncer)
    try:
        appliance.start()
        with killed_at_random(appliance, seed=5, kills=kills):
            asyncio.run(feed_recording(recording, appliance.target))
            kafka.kill()
            kafka.start()
        appliance.wait_until_applied(0)
        assert appliance.stop() == 0
    finally:
        appliance.close()
    messages = kafka.read("kills")
    rows = [json.loads(each.value) for each in messages]
    told = [int(dict(each.headers)["commit_ts"]) for each in messages]
    assert told == [each["_tidb"]["commitTs"] for each in rows]
    sent = Counter(each["_tidb"]["commitTs"] for each in rows if not each["isDdl"])
    assert sent == rows_by_commit_ts("few")
    progress = kafka.read(f"binlogd_progress_{info(recording)['cluster_id']}")
    assert json.loads(progress[-1].value)["commit-ts"] >= max(sent)


@pytest.mark.soak
async def test_a_registry_that_is_away_is_a_problem_and_loses_nothing(
    tmp_path: Path, kafka: Kafka
) -> None:
    registry, recording = SmallRegistry(), RECORDINGS / "keys"
    await kafka.remove(f"binlogd_progress_{info(recording)['cluster_id']}")  # of the test above
    async with registry.serving():
        syncer = (
            '[syncer]\ndb-type = "kafka"\nsync-ddl = false\n[syncer.to]\n'
            f'kafka-addrs = "{kafka.address}"\ntopic-name = "away.{{schema}}.{{table}}"\n'
            f'protocol = "debezium-avro"\nschema-registry = "{registry.url}"\n'
        )
        appliance = Appliance(tmp_path, history=history(recording), syncer=syncer)
        try:
            await asyncio.to_thread(appliance.start)
            registry.fails_with = 503
            await feed_recording(recording, appliance.target)
            seen = await asyncio.to_thread(
                appliance.wait, lambda status: status["drainer"]["state"] == "retrying"
            )
            failure = seen["drainer"]["failure"]
            assert failure["kind"] == "DownstreamUnavailable"
            assert f"the schema registry at {registry.url}" in failure["told"]
            registry.fails_with = 0
            await asyncio.to_thread(appliance.wait_until_applied, 0)
            assert await asyncio.to_thread(appliance.stop) == 0
        finally:
            appliance.close()
    reader, sent = Reader(registry), Counter[int]()
    for topic in {each.removesuffix("-value") for each in registry.posted if "-value" in each}:
        for message in await read_committed(kafka.address, topic):
            if message.value is not None:
                sent[reader.read(message.value)["source"]["commit_ts"]] += 1
    assert sent == rows_by_commit_ts("keys")


def rows_by_commit_ts(name: str) -> Counter[int]:
    notation = CanalJson()
    return Counter(
        {
            txn.commit_ts: sum(1 for _ in notation.rows(txn))
            for txn in translated(RECORDINGS / name, dialect=Dialect.FILE)
            if isinstance(txn, Dml)
        }
    )
