"""Lag into MariaDB: from the acknowledgement of a Commit to its row being visible there.

A child process `binlogd serve` with a relay log, fed over gRPC; a probe, one row each 50 ms, is
looked for every millisecond on a connection of its own. Idle, and beside 100 and 300 transactions
a second of ten rows. All of it, the load generator too, shares the machine. A line of JSON a
figure; `ratio` is to the Go Pump and Drainer (from TiDB's acknowledgement, TiDB on the same cores).

    python tests/bench/bench_lag_mysql.py [probes, default 100]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path

import structlog
import uvloop

from binlogd.client.pump_client import PumpClient
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.wire import peek
from tests.bench.load import Stream
from tests.bench.whole_path import halves, server_of
from tests.support.appliance import into_mariadb
from tests.support.machine import Appliance
from tests.support.mariadb import MariaDb

RUNS = (("idle", 0, 55, 105), ("100_txns", 100, 67, 110), ("300_txns", 300, 84, 170))
"""Name, transactions a second beside the probe, and the p50 and p99 of the original in ms."""
PROBE_EVERY_S = 0.05
LOOK_EVERY_S = 0.001
CATCH_UP_S = 60.0
WARM_UP = 10
"""Probes that do not count."""


class Lag:
    """One run."""

    def __init__(self, client: PumpClient, stream: Stream, session: SqlSession) -> None:
        self._client, self._stream, self._session = client, stream, session
        self._acknowledged_at: dict[int, float] = {}
        self._seen_at: dict[int, float] = {}
        self._is_over = False

    async def run(self, rate: int, probes: int) -> list[float]:
        """Lags of the probes in ms, ascending."""
        async with asyncio.timeout(PROBE_EVERY_S * probes + CATCH_UP_S):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look(probes))
                load = group.create_task(self._load(rate)) if rate else None
                await self._probe(probes)
                if load is not None:
                    load.cancel()
        counted = sorted(self._acknowledged_at)[WARM_UP:]
        return sorted(
            max(0.0, self._seen_at[number] - self._acknowledged_at[number]) * 1000
            for number in counted
        )

    async def _probe(self, probes: int) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for count in range(probes):
            await asyncio.sleep(max(0.0, begin_s + count * PROBE_EVERY_S - loop.time()))
            number = await self._transaction(0, 1)
            self._acknowledged_at[number] = loop.time()

    async def _load(self, rate: int) -> None:
        loop = asyncio.get_running_loop()
        begin_s, count = loop.time(), 0
        async with asyncio.TaskGroup() as group:
            while True:  # until cancelled
                count += 1
                await asyncio.sleep(max(0.0, begin_s + count / rate - loop.time()))
                group.create_task(self._transaction(1, 10))

    async def _transaction(self, table: int, count: int) -> int:
        key, value, last = self._stream.rows(table, count)
        start_ts = self._stream.timestamp()
        await self._client.write(
            peek.prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value)
        )
        commit_ts = self._stream.timestamp()
        await self._client.write(peek.commit_binlog(start_ts, commit_ts, prewrite_key=key))
        return last

    async def _look(self, probes: int) -> None:
        loop = asyncio.get_running_loop()
        seen = 0
        while seen < probes:  # ends when all are there, or by the limit of the run
            rows = await self._session.rows(b"SELECT MAX(id) FROM load.t0")
            newest, now_s = int(rows[0][0] or 0), loop.time()
            for number in range(seen + 1, newest + 1):
                self._seen_at[number] = now_s
            seen = newest
            await asyncio.sleep(LOOK_EVERY_S)


async def measure(mariadb: MariaDb, name: str, rate: int, probes: int) -> list[float]:
    """One rate, on a fresh appliance."""
    mariadb.reset()
    stream = Stream()
    load = stream.load
    with tempfile.TemporaryDirectory(prefix="binlogd-lag-") as directory:
        history = Path(directory) / "ddl_history.json"
        history.write_bytes(load.history)
        appliance = Appliance(Path(directory) / name, history=history, syncer=into_mariadb(mariadb))
        try:
            await appliance.start()
            async with PumpClient(appliance.host, appliance.port, cluster_id=1) as client:
                for binlog in load.setup:
                    for payload in halves(binlog):
                        await client.write(payload)
                session = await SqlSession.connect(server_of(mariadb))
                await _made(session)
                lags = await Lag(client, stream, session).run(rate, probes)
                session.close()
                return lags
        finally:
            await appliance.close()


async def _made(session: SqlSession) -> None:
    """Returns when both tables are there."""
    query = b"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'load'"
    async with asyncio.timeout(CATCH_UP_S):
        while True:  # until they are, or the time is over
            if (await session.rows(query))[0][0] == 2:
                return
            await asyncio.sleep(LOOK_EVERY_S)


def main() -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    probes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as directory:
        mariadb = MariaDb(Path(directory), is_durable=True, pool_mb=256)
        mariadb.start()
        try:
            for name, rate, *peer_ms in RUNS:
                lags = uvloop.run(measure(mariadb, name, rate, probes + WARM_UP))
                for share, peer in zip((50, 99), peer_ms, strict=True):
                    value = lags[len(lags) * share // 100]
                    figure = {"bench": f"lag_mysql_{name}_p{share}", "value": round(value, 2)}
                    print(json.dumps({**figure, "unit": "ms", "ratio": round(value / peer, 2)}))
        finally:
            mariadb.stop()


if __name__ == "__main__":
    main()
