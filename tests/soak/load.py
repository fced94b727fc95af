"""An hour of mixed load with random faults: does anything rise, and is every row there at the end?

A whole `binlogd serve` in a process of its own takes transactions over gRPC at the pace of their
timestamps (some 100 a second: inserts, updates, deletes, DDLs, large ones, rollbacks, tables
without keys, late and repeated binlogs) and replicates them into a MariaDB. Random faults meet it:
kill -9 of the process, kill -9 of MariaDB, connections reset or silent on either side, SIGSTOP.

The process is killed in the first sixth of the time alone, ten minutes at most: what it uses is
measured in one life that begins then; the other faults go on. Its warm-up is left out: the first
half of that life, and what passes until its caches are full. The process tells how many entries
they have (`caches.py`). Where they are still filling at the end, the run was too short to judge
memory, and says so. Containers without a limit are counted
apart, and so is what is in use of the memory: what an allocator has taken it keeps for later. At
the end it is killed once more, catches up, and every row is compared with what the model says.

    python -m tests.soak.load --minutes 60

Prints a table and writes build/load.json, and all samples beside it. Exit code 1 where rows
differ, where a figure rises, or where the process ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from rich.console import Console
from rich.table import Table

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.errors import Unavailable
from tests.soak.caches import Look, full_since_s
from tests.soak.network import Way
from tests.soak.slopes import Slope, Verdict, by_interval, fitted
from tests.soak.watched import VARIABLE
from tests.support.commit import commit
from tests.support.machine import Appliance
from tests.support.mariadb import MariaDb
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.mysql_check import MySqlReader, MySqlUrl, as_mysql_prints
from tests.workload.replica import differences
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

RESULT, SAMPLES = Path("build/load.json"), Path("build/load-samples.json")
KILLED_SHARE, KILLED_MAX_S = 1 / 6, 600.0
"""Of the time, and seconds at most: with kills of the process."""
WARM_UP_SHARE, FITTED_SHARE = 1 / 2, 0.25
"""The least warm-up, of its last life; and what is left of the time at least when its caches are
full."""
LOOKS = 40
"""So often a process is asked what it holds."""
SAMPLE_EVERY_S, GC_EVERY_S = 2.0, 20.0
QUIET_S = (6.0, 20.0)
"""Between two faults."""
CATCH_UP_S, START_S, LOOK_S = 600.0, 300.0, 30.0
PREFIX = "soak_"
UNLIMITED = "entries of containers without a limit"
BLOCKS, BYTES = "small objects in memory", "larger ones in memory"
THREADS = "threads, but for pools with a limit"
_CLUSTER_ID = 4712
_KEPT = "2m"
"""How long binlogs are kept: so the log has its full size when the warm-up is over."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What is sampled, and the largest rise an hour that does not matter."""

    name: str
    unit: str
    tolerated_per_hour: float
    is_memory: bool = False


MEASURES = (
    Measure("resident memory", "MB", 6.0, is_memory=True),
    Measure("memory of its own", "MB", 6.0, is_memory=True),
    Measure(BLOCKS, "thousand", 20.0, is_memory=True),
    Measure(BYTES, "MB", 3.0, is_memory=True),
    Measure(UNLIMITED, "", 1_000.0),
    Measure("descriptors", "", 1.0),
    Measure(THREADS, "", 0.5),
    Measure("lag", "s", 0.5),
    Measure("disk, but the schema's history", "MB", 3.0),
)
"""The history of DDL jobs grows with each DDL, for good: each job is kept."""


@dataclass(slots=True)
class Ran:
    """What a run has seen so far."""

    faults: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    is_over: bool = False
    acknowledged: int = 0
    retries: int = 0


class Load:
    """One run."""

    def __init__(self, directory: Path, *, minutes: float, seed: int) -> None:
        self._directory, self._seconds, self._seed = directory, minutes * 60, seed
        self.killed_s = min(self._seconds * KILLED_SHARE, KILLED_MAX_S)
        self._rng = random.Random(seed)
        self.workload = Workload(
            Options(
                seed=seed,
                transactions=1 << 40,
                sessions=32,
                rows_max=2_000,
                ddl_every=2_000,
                prefix=PREFIX,
                begin_ms=time.time_ns() // 1_000_000,
                history=False,
            )
        )
        self._history = directory / "ddl_history.json"
        write_history(self._history, b"[]")
        self.mariadb = MariaDb(directory / "mariadb")
        self.mariadb.directory.mkdir()
        self.ran = Ran()
        self._began_s = 0.0

    async def run(self) -> list[str]:
        """Feeds, disturbs and measures; then what differs, a line each."""
        self.mariadb.start()
        try:
            async with AsyncExitStack() as stack:
                down = await stack.enter_async_context(Way(self.mariadb.port).running())
                os.environ[VARIABLE] = str(self._directory / "held.json")
                self._node = Appliance(
                    self._directory / "node", history=self._history, syncer=_tables(down.port)
                )
                self._node.module = "tests.soak.watched"
                stack.push_async_callback(self._node.close)
                up = await stack.enter_async_context(Way(self._node.port).running())
                await self._start()
                limits = ClientLimits(prewrite_retry_s=300, outcome_retry_interval_s=0.1)
                client = await stack.enter_async_context(
                    PumpClient("127.0.0.1", up.port, cluster_id=_CLUSTER_ID, limits=limits)
                )
                await self._disturbed(client, up, down)
                return await self._ended()
        finally:
            self.mariadb.stop()

    def measured(self) -> dict[str, Slope]:
        """The line through each measure, of the last life without its warm-up."""
        first_s = self.first_s
        rest_s = self._seconds - first_s
        interval_s = min(60.0, rest_s / 12)
        found = {}
        for measure in MEASURES:
            samples = [each for each in self.ran.samples[measure.name] if each[0] >= first_s]
            found[measure.name] = fitted(by_interval(samples, interval_s))
        return found

    @property
    def is_full(self) -> bool:
        """Whether the caches of the last life were full before the last part of the run."""
        full_s = full_since_s(self.ran.looks)
        return full_s is not None and full_s <= self._seconds * (1 - FITTED_SHARE)

    @property
    def first_s(self) -> float:
        """Where the warm-up ends."""
        least_s = self.killed_s + (self._seconds - self.killed_s) * WARM_UP_SHARE
        full_s = full_since_s(self.ran.looks)
        return least_s if full_s is None or not self.is_full else max(least_s, full_s)

    # --- load --------------------------------------------------------------------------------

    async def _disturbed(self, client: PumpClient, up: Way, down: Way) -> None:
        self._began_s = time.monotonic()
        feeder = Feeder([client], in_flight=64, patience_s=600)
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(work)
                for work in (
                    self._faults(up, down),
                    self._sampling(),
                    self._collecting(),
                    self._looking(),
                )
            ]
            await feeder.feed(self._records())
            self.ran.is_over = True
            for each in others:
                await each
        self.ran.acknowledged = feeder.statistics().acknowledged
        self.ran.retries = feeder.statistics().retries

    async def _records(self) -> AsyncIterator[Record]:
        """Those of the workload, none before the moment that its timestamp names."""
        jobs, finished = 0, False
        for record in self.workload.records():
            if self.workload.job_count != jobs:
                jobs = self.workload.job_count
                write_history(self._history, self.workload.history())
            ahead_s = (record.ts >> 18) / 1000 - time.time()
            if ahead_s > 0.01:
                await asyncio.sleep(ahead_s)
            if not finished and self._passed_s() > self._seconds:
                self.workload.end()
                finished = True
            yield record

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    # --- faults ------------------------------------------------------------------------------

    async def _faults(self, up: Way, down: Way) -> None:
        rng = self._rng
        faults: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill -9 of MariaDB": self._restart_mariadb,
            "downstream connections reset": lambda: down.cut_for(rng.uniform(0.1, 4)),
            "downstream silent, then reset": lambda: down.silent_for(rng.uniform(1, 8)),
            "writers' connections reset": lambda: up.cut_for(rng.uniform(0.1, 3)),
            "writers silent, then reset": lambda: up.silent_for(rng.uniform(1, 5)),
            "SIGSTOP": self._stop_for_a_while,
        }
        while not self.ran.is_over:
            await asyncio.sleep(rng.uniform(*QUIET_S))
            name = rng.choice(sorted(faults))
            if self._passed_s() < self.killed_s - 5 and rng.random() < 0.4:
                name = "kill -9 of binlogd"
                await self._kill_node()
            elif not self.ran.is_over:
                await faults[name]()
            self.ran.faults[name] += 1

    async def _kill_node(self) -> None:
        await self._node.kill()
        await self._start()

    async def _start(self) -> None:
        """A machine that others use as well may be slow: how long it takes is not what is tried."""
        try:
            await self._node.start()
        except Unavailable:
            await self._node.wait(lambda _: True, timeout_s=START_S)

    async def _restart_mariadb(self) -> None:
        await asyncio.to_thread(self.mariadb.restart)

    async def _stop_for_a_while(self) -> None:
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(0.5, 6))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _pid(self) -> int:
        return self._node._running().pid

    # --- measures ----------------------------------------------------------------------------

    async def _sampling(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
            while not self.ran.is_over:
                found = await asyncio.to_thread(self._of_process)
                with suppress(aiohttp.ClientError, TimeoutError):  # down or stopped just now
                    async with session.get(f"http://{self._where()}/status") as answer:
                        lag_s = (await answer.json())["lag_s"]
                        if lag_s is not None:
                            found["lag"] = lag_s
                for name, value in found.items():
                    self.ran.samples.setdefault(name, []).append((self._passed_s(), value))
                await asyncio.sleep(SAMPLE_EVERY_S)

    async def _looking(self) -> None:
        """Asks the last life what it holds."""
        while not self.ran.is_over:
            await asyncio.sleep(self._seconds / LOOKS)
            if self._passed_s() < self.killed_s or self.ran.is_over:
                continue
            look = await asyncio.to_thread(self._look)
            if look is not None:
                self.ran.looks.append(look)
                for name, value in (
                    (UNLIMITED, sum(look.unlimited.values())),
                    (THREADS, look.lasting_threads),
                    (BLOCKS, look.memory["blocks"] / 1e3),
                    (BYTES, look.memory["bytes_in_use"] / (1 << 20)),
                ):
                    self.ran.samples.setdefault(name, []).append((look.at_s, value))

    def _look(self) -> Look | None:
        """What it tells; None where it does not, since it was stopped just now."""
        told = Path(os.environ[VARIABLE])
        told.unlink(missing_ok=True)
        at_s = self._passed_s()
        os.kill(self._pid(), signal.SIGUSR2)
        while not told.exists():  # ends when it has told, or after LOOK_S
            if self._passed_s() > at_s + LOOK_S:
                return None
            time.sleep(0.1)
        found = json.loads(told.read_text())
        return Look(
            at_s,
            found["containers"],
            found["objects"],
            found["lasting_threads"],
            found["memory"],
        )

    def _of_process(self) -> dict[str, float]:
        """What the system says about it; nothing while it is being started."""
        process = Path(f"/proc/{self._pid()}")
        try:
            status = (process / "status").read_text()
            descriptors = len(list((process / "fd").iterdir()))
        except OSError:
            return {}
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in lines:  # it has just ended
            return {}
        return {
            "resident memory": int(lines["VmRSS"].split()[0]) / 1024,
            "memory of its own": int(lines["RssAnon"].split()[0]) / 1024,
            "descriptors": descriptors,
            "disk, but the schema's history": _disk_mb(self._node.data_dir),
        }

    async def _collecting(self) -> None:
        """Asks for garbage collection more often than each hour, as an operator may."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
            while not self.ran.is_over:
                await asyncio.sleep(min(GC_EVERY_S, self._seconds / 20))
                token = (self._node.data_dir / "admin-token").read_text().strip()
                with suppress(aiohttp.ClientError, TimeoutError):  # down or stopped just now
                    async with session.post(
                        f"http://{self._where()}/debug/gc/trigger",
                        headers={"Authorization": f"Bearer {token}"},
                    ) as answer:
                        answer.raise_for_status()

    def _where(self) -> str:
        return f"127.0.0.1:{self._node.port}"

    # --- the end -----------------------------------------------------------------------------

    async def _ended(self) -> list[str]:
        """Killed once more, caught up, compared, stopped."""
        await self._kill_node()
        self.ran.faults["kill -9 of binlogd"] += 1
        last = self.workload.model.last_commit_ts
        await self._node.wait(
            lambda status: status["max_commit_ts"] >= last and status["lag_s"] == 0,
            timeout_s=CATCH_UP_S,
        )
        expected, tables = self.workload.model.contents(), self.workload.model.tables()
        url = MySqlUrl("127.0.0.1", self.mariadb.port, self.mariadb.user, self.mariadb.password)
        async with MySqlReader.connected(url) as reader:
            held = await reader.contents(tables, PREFIX)
        printed = {name: as_mysql_prints(each, tables[name]) for name, each in expected.items()}
        found = list(differences(printed, held))
        code = await self._node.stop()
        if code != 0:
            found.append(f"binlogd ended with exit code {code} after SIGTERM")
        return found


def _tables(port: int) -> str:
    """The configuration from `[pump]` on, for a downstream behind a way."""
    return (
        f'gc = "{_KEPT}"\nsegment-size = "2 MiB"\nfake-binlog-interval = 1\n'
        # what is kept in memory for pullers is full when the warm-up is over
        'memory-budget = "64 MiB"\nmax-message-size = 33554432\n\n'
        '[syncer]\ndb-type = "mysql"\n[syncer.relay]\nlog-dir = "data/relay"\n'
        f'[syncer.to]\nhost = "127.0.0.1"\nport = {port}\nuser = "root"\npassword = ""\n'
    )


def _disk_mb(directory: Path) -> float:
    """What the files take on the disk; one that goes meanwhile counts nothing."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            if name.startswith("upstream.db") or "schema" in Path(place).name:
                continue
            with suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total / (1 << 20)


def document(load: Load, minutes: float, seed: int, different: list[str]) -> dict[str, Any]:
    """What build/load.json holds."""
    made, slopes = load.workload.statistics(), load.measured()
    return {
        "commit": commit(),
        "minutes": minutes,
        "seed": seed,
        "transactions": made.committed,
        "rolled_back": made.rolled_back,
        "rows": made.rows,
        "ddl_jobs": made.ddl_jobs,
        "binlogs_acknowledged": load.ran.acknowledged,
        "faults": dict(sorted(load.ran.faults.items())),
        "differences": len(different),
        "warm_up_s": round(load.first_s - load.killed_s),
        "fitted_s": round(minutes * 60 - load.first_s),
        "caches_full": load.is_full,
        "cache_entries": [look.limited for look in load.ran.looks],
        "memory": [dict(look.memory) for look in load.ran.looks],
        "containers": dict(load.ran.looks[-1].containers) if load.ran.looks else {},
        "measures": [
            {
                "name": each.name,
                "unit": each.unit,
                "mean": round(slopes[each.name].mean, 3),
                "slope_per_hour": round(slopes[each.name].per_hour, 3),
                "error_per_hour": round(slopes[each.name].error, 3),
                "tolerated_per_hour": each.tolerated_per_hour,
                "intervals": slopes[each.name].intervals,
                "verdict": (
                    Verdict.UNDECIDED
                    if each.is_memory and not load.is_full
                    else slopes[each.name].verdict(each.tolerated_per_hour)
                ),
            }
            for each in MEASURES
        ],
    }


def _shown(console: Console, found: dict[str, Any], different: list[str]) -> None:
    table = Table(title=f"{found['minutes']} minutes, seed {found['seed']}")
    for column in ("measure", "mean", "slope an hour", "error", "tolerated", "verdict"):
        table.add_column(column, justify="left" if column in ("measure", "verdict") else "right")
    for each in found["measures"]:
        table.add_row(
            f"{each['name']} {each['unit']}".strip(),
            f"{each['mean']:,.2f}",
            f"{each['slope_per_hour']:+,.2f}",
            f"±{2 * each['error_per_hour']:,.2f}",
            f"{each['tolerated_per_hour']:,.1f}",
            each["verdict"],
        )
    console.print(table)
    console.print(
        f"{found['transactions']:,} transactions, {found['rows']:,} rows,"
        f" {found['ddl_jobs']:,} DDL jobs; faults: "
        + ", ".join(f"{name} {count}" for name, count in found["faults"].items())
    )
    for line in different[:20]:
        console.print(f"differs: {line}", highlight=False, markup=False)
    if not found["caches_full"]:
        console.print("caches were still filling at the end: run longer to judge memory")
    console.print(f"{found['differences']} differences at the end")


def main() -> None:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # of the ways that are cut
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="binlogd-load-") as name:
        load = Load(Path(name), minutes=arguments.minutes, seed=arguments.seed)
        different = asyncio.run(load.run())
        found = document(load, arguments.minutes, arguments.seed, different)
    RESULT.parent.mkdir(exist_ok=True)
    SAMPLES.write_text(json.dumps(load.ran.samples) + "\n")
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    _shown(Console(), found, different)
    rises = [each for each in found["measures"] if each["verdict"] == Verdict.RISES]
    sys.exit(1 if different or rises else 0)


if __name__ == "__main__":
    main()
