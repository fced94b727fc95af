"""A recording through a process into a real Kafka, by TLS and with a login: each change once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.txn import Dml
from tests.support.appliance import Appliance, killed_at_random
from tests.support.kafka import PASSWORD, USER, Kafka
from tests.support.recordings_reader import RECORDINGS, history, info
from tests.support.replay import translated
from tests.workload.recording import feed_recording


def test_each_row_is_there_once_whatever_is_killed(tmp_path: Path, kafka: Kafka) -> None:
    syncer = (
        '[syncer]\ndb-type = "kafka"\n[syncer.to]\n'
        f'kafka-addrs = "{kafka.at("BOTH")}"\ntopic-name = "kills"\npartitions = 3\n'
        'protocol = "canal-json"\nkafka-compression = "zstd"\n'
        f'kafka-sasl-mechanism = "SCRAM-SHA-256"\nuser = "{USER}"\npassword = "{PASSWORD}"\n'
        f'[syncer.to.security]\nssl-ca = "{kafka.authority.file}"\n'
    )
    recording = RECORDINGS / "keys"
    appliance = Appliance(tmp_path, history=history(recording), syncer=syncer)
    try:
        appliance.start()
        with killed_at_random(appliance, seed=5, kills=3):
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
    assert sent == rows_by_commit_ts("keys")
    progress = kafka.read(f"binlogd_progress_{info(recording)['cluster_id']}")
    assert json.loads(progress[-1].value)["commit-ts"] >= max(sent)


def rows_by_commit_ts(name: str) -> Counter[int]:
    notation = CanalJson()
    return Counter(
        {
            txn.commit_ts: sum(1 for _ in notation.rows(txn))
            for txn in translated(RECORDINGS / name, dialect=Dialect.FILE)
            if isinstance(txn, Dml)
        }
    )
