"""Whatever a node has done, it holds no more than before, but for caches up to their limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from tests.soak.caches import Look
from tests.soak.watched import VARIABLE
from tests.support.machine import Appliance
from tests.support.mariadb import MariaDb
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

TRANSACTIONS = 6_000
"""So many, and as many again."""
SHARDS = 4
RESTED = 30
"""So often the watermark is the same, ten times a second."""
GROWN_MAX = 600
"""Objects of a type, or entries of a container without a limit, that come with the second half: one
for ten transactions is as many."""
KEPT = ("_Kept", "KeyVersion", "Sample", "Stages", "JobEntry", "Place")
"""Types of what is in caches with a limit."""


def _syncer(port: int) -> str:
    return (
        'gc = "1m"\nfake-binlog-interval = 1\nmemory-budget = "64 MiB"\n'
        'max-message-size = 33554432\n\n[syncer]\ndb-type = "mysql"\n[syncer.to]\n'
        f'host = "127.0.0.1"\nport = {port}\nuser = "root"\npassword = ""\n'
    )


@pytest.mark.soak
async def test_the_second_half_of_a_load_leaves_no_more_than_the_first(
    mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "held.json"
    monkeypatch.setenv(VARIABLE, str(told))
    options = Options(
        transactions=2 * TRANSACTIONS, sessions=32, rows_max=2_000, ddl_every=2_000, history=False
    )
    workload, history = Workload(options), tmp_path / "ddl_history.json"
    write_history(history, b"[]")
    node = Appliance(tmp_path / "node", history=history, syncer=_syncer(mariadb.port))
    node.module = "tests.soak.watched"
    await node.start()
    found: list[tuple[Look, dict[str, int]]] = []

    seen: list[int] = []

    def has_rested(status: dict[str, Any]) -> bool:
        """What is open in the middle holds the watermark, until the second half closes it."""
        seen.append(status["max_commit_ts"])
        return len(seen) > RESTED and len(set(seen[-RESTED:])) == 1

    async def rested(until: Any) -> None:
        await node.wait(until, timeout_s=600)
        told.unlink(missing_ok=True)
        os.kill(node.pid, signal.SIGUSR2)
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(told.exists):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
        answer: dict[str, Any] = json.loads(await asyncio.to_thread(told.read_text))
        found.append((Look(0, answer["containers"], answer["objects"]), answer["types"]))

    records = _with_history(workload, history)
    try:
        async with PumpClient(
            "127.0.0.1", node.port, cluster_id=4712, limits=ClientLimits(prewrite_retry_s=300)
        ) as client:
            feeder = Feeder([client], in_flight=64, patience_s=300)
            await feeder.feed(_until(workload, records, TRANSACTIONS))
            await rested(has_rested)
            await feeder.feed(_until(workload, records, 3 * TRANSACTIONS))
            last = workload.model.last_commit_ts
            await rested(lambda now: now["max_commit_ts"] >= last and now["lag_s"] == 0)
        assert await node.stop() == 0
    finally:
        await node.close()
    (first, types), (second, types_then) = found
    assert second.above_limit(SHARDS) == {}
    assert _grown(first.unlimited, second.unlimited) == {}
    of_caches = {name for name in types_then if name.endswith(KEPT)}
    assert _grown(types, {n: c for n, c in types_then.items() if n not in of_caches}) == {}


def _with_history(workload: Workload, history: Path) -> Iterator[Record]:
    jobs = 0
    for record in workload.records():
        if workload.job_count != jobs:
            jobs = workload.job_count
            write_history(history, workload.history())
        yield record


async def _until(
    workload: Workload, records: Iterator[Record], committed: int
) -> AsyncIterator[Record]:
    for record in records:
        yield record
        if workload.statistics().committed >= committed:
            return


def _grown(before: Any, after: Any) -> dict[str, int]:
    return {
        name: count - before.get(name, 0)
        for name, count in after.items()
        if count - before.get(name, 0) > GROWN_MAX
    }
