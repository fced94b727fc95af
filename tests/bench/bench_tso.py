"""Timestamps of PD: one at a time, and for many who wait together."""

from __future__ import annotations

import asyncio
import json
import time

from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.tso import PdTso
from tests.support.pd_cluster import pd_cluster

ALONE, ROUNDS, TOGETHER = 2_000, 40, 1_000


async def measured() -> None:
    async with pd_cluster() as pd:
        client = PdClient(pd.addresses)
        await client.cluster_id()
        tso = PdTso(client)
        await tso.next()
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(ALONE):
            await tso.next()
        _say("tso alone", ALONE / (time.perf_counter() - begin), "timestamps/s")
        _say("tso alone, CPU of both ends", (time.process_time() - cpu) / ALONE * 1e6, "us each")
        begin, before = time.perf_counter(), pd.tso_requests
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(tso.next())
        count = ROUNDS * TOGETHER
        _say("tso together", count / (time.perf_counter() - begin), "timestamps/s")
        _say("tso together, requests", (pd.tso_requests - before) / ROUNDS, "for 1000")
        await tso.close()
        await client.close()


def _say(name: str, value: float, unit: str) -> None:
    print(json.dumps({"bench": name, "value": round(value, 1), "unit": unit, "ratio": None}))


def main() -> None:
    """Prints JSON lines."""
    asyncio.run(measured())


if __name__ == "__main__":
    main()
