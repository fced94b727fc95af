"""One very large transaction: the peak memory of the process that replicates it, and how long.

The Pump's directory is filled by one child process, and replicated into MariaDB by another one,
whose peak resident memory is the figure: Pump, relay log and Drainer together. Beside it: what the
Go Drainer alone took at this size (and its Pump as much again and more).

    python tests/bench/bench_large.py [megabytes of rows, default 100]
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvloop

from binlogd.pump.pump import PumpOptions
from binlogd.tso import Tso
from tests.bench.load import Load, one_transaction
from tests.bench.pump_load import running_pump
from tests.bench.whole_path import SHARDS, draining, fill, until_applied
from tests.support.mariadb import MariaDb

PEER_MB = {100: 595, 500: 2200}
"""Resident memory of the Go Drainer while it replicates a transaction of so many megabytes."""
OPTIONS = PumpOptions(free_bytes_min=1)


@dataclass(frozen=True)
class Address:
    """Of a MariaDB that another process runs."""

    host: str
    port: int
    user: str
    password: str
    pid: int


@dataclass(frozen=True)
class Outline:
    """What is left of a load once its binlogs are in the Pump."""

    history: bytes
    last_ts: Tso
    payload_bytes: int


def write(directory: Path, megabytes: int) -> Outline:
    """Fills the Pump."""

    async def run(load: Load) -> None:
        async with running_pump(directory / "pump", shards=SHARDS, options=OPTIONS) as pump:
            await fill(pump, load.setup + load.binlogs)

    load = one_transaction(megabytes << 20)
    uvloop.run(run(load))
    (large,) = load.binlogs
    return Outline(load.history, large.commit_ts, len(large.payload))


def replicate(directory: Path, outline: Outline, mariadb: Address) -> tuple[float, int]:
    """Seconds, and the peak of resident memory in bytes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    load = Load("large", outline.history, [], [], 0)

    async def run() -> float:
        async with running_pump(directory / "pump", shards=SHARDS, options=OPTIONS) as pump:
            begin_s = time.perf_counter()
            async with draining(pump, mariadb, load, directory, lanes=2) as drainer:
                await until_applied(drainer, outline.last_ts)
                return time.perf_counter() - begin_s

    took_s = uvloop.run(run())
    return took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Prints its figures."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        mariadb = MariaDb(directory / "mariadb", is_durable=True, pool_mb=1024)
        mariadb.directory.mkdir()
        mariadb.start()
        try:
            address = Address(
                mariadb.host, mariadb.port, mariadb.user, mariadb.password, mariadb.pid
            )
            with processes.Pool(1) as pool:
                outline = pool.apply(write, (directory, megabytes))
            with processes.Pool(1) as pool:
                took_s, peak_bytes = pool.apply(replicate, (directory, outline, address))
        finally:
            mariadb.stop()
    peak_mb = peak_bytes / (1 << 20)
    figure = {"bench": "large_peak", "value": round(peak_mb), "unit": "MB"}
    if peer_mb := PEER_MB.get(megabytes):
        figure["ratio"] = round(peak_mb / peer_mb, 2)
    print(json.dumps({**figure, "payload_mb": round(outline.payload_bytes / (1 << 20))}))
    print(json.dumps({"bench": "large_took", "value": round(took_s, 1), "unit": "s"}), flush=True)


if __name__ == "__main__":
    main()
