"""What a start costs with ten thousand tables and fifty thousand DDL jobs: CPU seconds, and memory.

    history_read_s      the file is parsed and kept, for the first time
    longest_turn_ms     CPU of the longest turn of the event loop in which nothing else was done
    history_applied_s   the schema is made from the jobs
    history_known_s     the same at the next start, when every job is kept already
    log_loaded_s        the schema is loaded from beside the checkpoint
    rss_mb              of the whole process in the end

`--jobs` and `--tables` for other sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.schema_log import SchemaLog
from binlogd.host.disk import PosixDisk
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.model import table_to_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.store import UpstreamStore
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef, TableDef, build_table

T = TypeVar("T")
COLUMNS = 10
FILLER = "x" * 2_000
"""TiDB writes some four kilobytes for a job."""


def history(jobs: int, tables: int) -> bytes:
    """One database, its tables, and then an ALTER of each in turn."""
    found = [
        {
            "id": 1,
            "type": 1,
            "schema_id": 2,
            "state": 6,
            "start_ts": 1,
            "query": "create database d",
            "binlog": {"SchemaVersion": 1, "FinishedTS": 3, "DBInfo": tidb.database_json(2, "d")},
        }
    ]
    kinds = [ColumnDef(f"c{n}", tidb.varchar(100)) for n in range(COLUMNS)]
    infos = [
        json.loads(
            table_to_json(build_table(TableDef("d", f"t{n}", tuple(kinds), ("c0",)), n + 10))
        )
        for n in range(tables)
    ]
    for number in range(2, jobs + 1):
        at = (number - 2) % tables
        is_new = number - 2 < tables
        found.append(
            {
                "id": number,
                "type": 3 if is_new else 17,
                "schema_id": 2,
                "table_id": infos[at]["id"],
                "state": 6,
                "start_ts": number * 10 + 1,
                "query": f"create table t{at}" if is_new else f"alter table t{at} comment 'c'",
                "binlog": {
                    "SchemaVersion": number,
                    "FinishedTS": number * 10 + 3,
                    "TableInfo": infos[at],
                },
                "filler": FILLER,
            }
        )
    return json.dumps(found).encode()


class Turns:
    """The longest CPU time of the loop between two turns of a task that always wants one."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        last = time.thread_time()
        while True:  # until cancelled
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now

    def say(self, name: str) -> None:
        """The longest since the last time."""
        say(f"{name}_longest_turn_ms", self.longest_s * 1000, "ms")
        self.longest_s = 0.0


def say(name: str, value: float, unit: str) -> None:
    """One line of the report."""
    print(json.dumps({"bench": f"schema_{name}", "value": round(value, 3), "unit": unit}))


async def measure(directory: Path, jobs: int, tables: int) -> None:
    """The first start, and the next."""
    path = directory / "history.json"
    path.write_bytes(history(jobs, tables))  # before anything is measured
    gc.collect()
    say("history_file_mb", path.stat().st_size / 1e6, "MB")  # as above
    store = await UpstreamStore.open(directory / "upstream.db")
    turns = Turns()
    watching = asyncio.get_running_loop().create_task(turns.watch())

    async def step(name: str, work: Awaitable[T]) -> T:
        gc.collect()
        await asyncio.sleep(0.01)
        turns.longest_s, began_s = 0.0, time.process_time()
        done = await work
        say(f"{name}_s", time.process_time() - began_s, "s")
        await asyncio.sleep(0.01)
        turns.say(name)
        return done

    source = SchemaHistory(job_source(str(path)), store)
    index = await step("history_read", source.index())
    tracker = await step("history_applied", applied(source, index))
    checkpoint = Checkpoint(Tso(jobs * 10 + 5), schema_version=tracker.version)
    kept = SchemaLog(directory / "schema", PosixDisk())
    await kept.load(checkpoint)
    await step("log_begun", kept.begin(tracker, checkpoint.commit_ts))
    del tracker, source, index
    again = SchemaHistory(job_source(str(path)), store)
    await step("history_known", again.index())
    loaded = await step("log_loaded", kept.load(checkpoint))
    watching.cancel()
    assert loaded is not None
    assert len(loaded.tables()) == tables
    say("rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")
    await kept.close()
    await store.close()


async def applied(source: SchemaHistory, index: JobIndex) -> SchemaTracker:
    """The schema that all jobs lead to."""
    tracker = SchemaTracker()
    due = [entry.id for entry in index.in_version_order()]
    for begin in range(0, len(due), 100):
        for job in await source.read(due[begin : begin + 100]):
            tracker.apply(job, 0)
    return tracker


def main() -> None:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--tables", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), arguments.jobs, arguments.tables))


if __name__ == "__main__":
    main()
