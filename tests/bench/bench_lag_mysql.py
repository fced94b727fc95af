"""Lag into MariaDB: from the acknowledgement of a Commit to its row being visible there.

A child process `binlogd serve` with a relay log, fed over gRPC; a probe, one row each 50 ms, is
looked for by a process of its own, some 0.3 ms between two looks. Idle, and beside 100 and 300
transactions a second of ten rows. All of it, the load generator too, shares the machine. A line of
JSON a figure; `ratio` is to the Go Pump and Drainer (from TiDB's acknowledgement, TiDB on the same
cores). The time is not the loop's, which counts whole milliseconds.

    python tests/bench/bench_lag_mysql.py [probes, default 100]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pymysql
import structlog
import uvloop

from binlogd.client.pump_client import PumpClient
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.bench.load import Stream
from tests.bench.whole_path import halves, server_of
from tests.support.appliance import into_mariadb
from tests.support.machine import Appliance
from tests.support.mariadb import MariaDb

RUNS = (("idle", 0, 55, 105), ("100_txns", 100, 67, 110), ("300_txns", 300, 84, 170))
"""Name, transactions a second beside the probe, and the p50 and p99 of the original in ms."""
PROBE_EVERY_S = 0.05
LOOK_EVERY_S = 0.0003
CATCH_UP_S = 60.0
WARM_UP = 10
"""Probes that do not count."""


class Lag:
    """One run."""

    def __init__(self, client: PumpClient, stream: Stream) -> None:
        self._client, self._stream = client, stream
        self._acknowledged_at: dict[int, float] = {}

    async def run(self, rate: int, probes: int, port: int) -> list[float]:
        """Lags of the probes in ms, ascending."""
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(1, get_context("spawn")) as looker:
            await loop.run_in_executor(looker, seen, port, 0)  # it is there before the first
            async with asyncio.TaskGroup() as group:
                looking = loop.run_in_executor(looker, seen, port, probes)
                load = group.create_task(self._load(rate)) if rate else None
                await self._probe(probes)
                seen_at = await looking
                if load is not None:
                    load.cancel()
        counted = sorted(self._acknowledged_at)[WARM_UP:]
        return sorted(
            max(0.0, seen_at[number] - self._acknowledged_at[number]) * 1000 for number in counted
        )

    async def _probe(self, probes: int) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for count in range(probes):
            await asyncio.sleep(max(0.0, begin_s + count * PROBE_EVERY_S - loop.time()))
            number = await self._transaction(0, 1)
            self._acknowledged_at[number] = time.perf_counter()

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
        await self._client.write(prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value))
        commit_ts = self._stream.timestamp()
        await self._client.write(commit_binlog(start_ts, commit_ts, prewrite_key=key))
        return last


def seen(port: int, probes: int) -> dict[int, float]:
    """When each of so many probes was there, by a clock that all processes have. Raises
    TimeoutError."""
    found: dict[int, float] = {}
    newest, end_s = 0, time.perf_counter() + PROBE_EVERY_S * probes + CATCH_UP_S
    with pymysql.connect(host=MariaDb.host, port=port, user=MariaDb.user) as session:
        session.autocommit(True)
        cursor = session.cursor()
        while newest < probes:  # ends when all are there, or by the limit
            cursor.execute("SELECT MAX(id) FROM load.t0")
            ((latest,),) = cursor.fetchall()
            now_s, before, newest = time.perf_counter(), newest, latest or 0
            found |= dict.fromkeys(range(before + 1, newest + 1), now_s)
            if now_s > end_s:
                raise TimeoutError(f"{newest} of {probes} probes arrived")
            time.sleep(LOOK_EVERY_S)
    return found


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
                session.close()
                return await Lag(client, stream).run(rate, probes, mariadb.port)
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
