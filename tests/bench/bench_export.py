"""Snapshots by Spark: cold and warm start, row changes per second from the log to synced Parquet on
one core and on two, a hundred small tables, and the memory of all its processes. Sessions use a
class archive, which is made first; the last one does without.

    python -m tests.bench.bench_export [row changes]

The same transformation by this process alone, with the same reader, decoder and writer but without
Spark, stands beside it: `ratio` is Spark's rate over that one. `cpu` is processor time of all
processes of the job, which repeats better than time on a machine that is shared.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from binlogd.snapshot.export import PARTITION_BYTES
from binlogd.snapshot.log import reader
from binlogd.snapshot.log.events import WantedTables, committed_prewrites, events
from binlogd.snapshot.log.packets import newest, winners_of
from binlogd.snapshot.log.prewrites import LogHeads, heads
from binlogd.snapshot.process.jobdir import pinned
from binlogd.snapshot.process.launcher import JobProcess, running
from binlogd.snapshot.process.preflight import warm_up
from binlogd.snapshot.spec import ExportSpec, PinnedSegment, SessionSpec, Started, TypeOptions
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.catalog import DdlBinlog, catalog
from binlogd.snapshot.writing import writer
from binlogd.snapshot.writing.files import FileTarget
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Table, jobs_from_json, table_to_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.data_directory import write_log

ROWS_PER_TRANSACTION = 5
CHANGES = 200_000
TABLE_CHANGES_MAX = 1_000_000
"""A log of more has several tables alike: making rows takes longer than exporting them."""
TABLES = 100
CORES = 2, 1
POLL_S = 0.2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def main(changes: int) -> None:
    """Prints one JSON line per figure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
        began = time.perf_counter()
        archive = await warm_up()
        size_mib = archive.size_bytes >> 20
        report("export_class_archive", time.perf_counter() - began, "s", size_mib=size_mib)
        write_log(directory / "small", log(1_000))
        write_log(directory / "many", log(20_000, TABLES))
        copies = max(1, changes // TABLE_CHANGES_MAX)
        binlogs = log(changes // copies, copies=copies)
        write_log(directory / "large", binlogs, segment_bytes=64 << 20)
        by_python, cpu = changes_alone(directory, changes, copies)
        report("export_without_spark", by_python, "changes/s", cpu=cpu)
        for cores in CORES:
            job = Job(directory / f"on-{cores}", directory, cores, str(archive.path))
            by_spark = await job.measure(changes, copies)
            report("export", by_spark, "changes/s", cores=cores, ratio=by_spark / by_python)
        await Job(directory / "cold", directory, 2, "").start()


def changes_alone(directory: Path, changes: int, tables: int) -> tuple[float, float]:
    """Changes per second without Spark, and seconds of processor time."""
    with pinned(directory / "large", directory / "alone") as found:
        began, cpu = time.perf_counter(), time.process_time()
        alone(found.segments, directory / "alone" / "out", tables)
        return changes / (time.perf_counter() - began), time.process_time() - cpu


class Job:
    """One job process and what is asked of it."""

    def __init__(self, home: Path, logs: Path, cores: int, classes: str) -> None:
        self._home, self._logs, self._cores, self._classes = home, logs, cores, classes
        (home / "spark").mkdir(parents=True)

    async def start(self) -> None:
        """How long it takes until there is a session."""
        began = time.perf_counter()
        async with running(self._session(), self._home / "job.log") as child:
            await self._started(child, began)

    async def measure(self, changes: int, copies: int) -> float:
        """Starts, the first export, the second, many tables, and changes per second at last."""
        began = time.perf_counter()
        async with running(self._session(), self._home / "job.log") as child:
            await self._started(child, began)
            await self._export(child, "small", "export_first")
            await self._export(child, "small", "export_second")
            await self._export(child, "many", "export_100_tables", TABLES)
            seconds = await self._export(child, "large", "export_large", copies)
        return changes / seconds

    async def _started(self, child: JobProcess, began: float) -> None:
        while not isinstance(event := await child._hear(), Started):
            assert event is not None, "it ended before there was a session"
        seconds, cpu = time.perf_counter() - began, cpu_s(child.pid)
        report("export_session_start", seconds, "s", archive=bool(self._classes), cpu=cpu)

    def _session(self) -> SessionSpec:
        scratch = str(self._home / "spark")
        return SessionSpec(scratch=scratch, cores=self._cores, class_archive=self._classes)

    async def _export(self, child: JobProcess, of: str, bench: str, many: int = 1) -> float:
        place = self._home / bench
        with pinned(self._logs / of, place) as found:
            began, cpu = time.perf_counter(), cpu_s(child.pid)
            java = cpu_s(child.pid, is_java=True)
            asked = spec(found.segments, place, many, self._cores)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(memory_peak(child.pid))
                done = await child.export(asked, lambda _: None)
                seconds, spent = time.perf_counter() - began, cpu_s(child.pid) - cpu
                watching.cancel()
        assert len(done.tables) == many
        java = cpu_s(child.pid, is_java=True) - java
        more = {"cpu": spent, "cpu_java": java, "pss_peak_mib": PEAK.pop()}
        report(bench, seconds, "s", cores=self._cores, **more)
        return seconds


PEAK: list[int] = []


async def memory_peak(session: int) -> None:
    """Puts down the largest memory of all processes of a session, shared pages shared out."""
    largest = 0
    try:
        while True:  # until it is cancelled
            largest = max(largest, sum(map(pss_mib, members(session))))
            await asyncio.sleep(POLL_S)
    finally:
        PEAK.append(largest)


def members(session: int) -> Iterator[Path]:
    """Processes of a session."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == session:
                yield entry
        except OSError:
            continue


def pss_mib(process: Path) -> int:
    """Memory of a process."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) >> 10


def cpu_s(session: int, *, is_java: bool | None = None) -> float:
    """Processor time of a session's processes, and of those of their children that ended."""
    ticks = 0
    for entry in members(session):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if is_java is None or is_java == ((entry / "comm").read_text() == "java\n"):
            ticks += sum(int(each) for each in fields[11:15])
    return ticks / TICKS_PER_S


def report(bench: str, value: float, unit: str, **more: Any) -> None:
    """One figure."""
    rounded = {
        key: round(each, 2) if isinstance(each, float) else each for key, each in more.items()
    }
    print(json.dumps({"bench": bench, "value": round(value, 2), "unit": unit, **rounded}))


def spec(segments: tuple[PinnedSegment, ...], place: Path, tables: int, cores: int) -> ExportSpec:
    """As `binlogd export` would ask."""
    staging, scratch = place / "out", place / "scratch"
    staging.mkdir(parents=True)
    scratch.mkdir()
    jobs = place / "history.json"
    jobs.write_bytes(history(tables))
    log_bytes = sum(each.size_bytes for each in segments)
    return ExportSpec(
        segments=segments,
        schema_history=str(jobs),
        as_of=0,
        known_resolved_ts=0,
        out=str(place),
        staging=str(staging),
        scratch=str(scratch),
        ignore_schemas=("mysql",),
        partitions=min(max(8, 2 * cores), 1 + log_bytes // PARTITION_BYTES),
    )


def alone(segments: tuple[PinnedSegment, ...], staging: Path, tables: int) -> None:
    """The same snapshot in one process, without a shuffle: all changes are folded at once."""
    parts = reader.slices(segments, 16 << 20)
    log = LogHeads(parts, [heads(part) for part in parts])
    jobs = jobs_from_json(history(tables))
    known = catalog(jobs, ddl(tables), log_begins=Tso(1), ignore_schemas=("mysql",))
    handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
    wanted = WantedTables(handles, frozenset())
    reads = transactions.reads(log, Tso(1 << 62), NO_TS)
    batches = [
        newest(batch)
        for part, of_part in zip(parts, reads, strict=True)
        for batch in events(committed_prewrites(part, of_part), wanted)
    ]
    winners = winners_of([pa.concat_batches(batches)], ())
    target = FileTarget(str(staging), TypeOptions(), 5_000_000)
    list(writer.write(winners, dict(known.tables), known.tracker, target, "0"))


# --- the log -------------------------------------------------------------------------------

KINDS = (
    ("id", Tp.LONGLONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL, 20, -1, "binary"),
    ("name", Tp.VARCHAR, 0, 40, -1, "utf8mb4"),
    ("amount", Tp.NEW_DECIMAL, 0, 12, 2, "binary"),
    ("at", Tp.DATETIME, 0, 23, 3, "binary"),
    ("state", Tp.LONG, 0, 11, -1, "binary"),
    ("note", Tp.VARCHAR, 0, 200, -1, "utf8mb4"),
)
TABLE = Table(
    100,
    "orders",
    tuple(
        Column(number, name, number - 1, FieldType(tp, flag, flen, decimal, charset))
        for number, (name, tp, flag, flen, decimal, charset) in enumerate(KINDS, 1)
    ),
    pk_is_handle=True,
)


def history(tables: int) -> bytes:
    """The jobs that made so many tables, all alike."""
    jobs: list[dict[str, Any]] = [
        {"id": 1, "type": 1, "schema_id": 2, "binlog": {"SchemaVersion": 1}, "schema_name": "shop"}
    ]
    for number in range(tables):
        table = replace(TABLE, id=TABLE.id + number, name=f"orders{number}")
        info = json.loads(table_to_json(table))
        jobs.append(
            {
                "id": 2 + number,
                "type": 3,
                "schema_id": 2,
                "table_id": table.id,
                "binlog": {"SchemaVersion": 2 + number, "TableInfo": info},
            }
        )
    return json.dumps([{"state": 6, "schema_state": 5, **job} for job in jobs]).encode()


def ddl(tables: int) -> list[DdlBinlog]:
    """Their binlogs."""
    return [DdlBinlog(Tso(10 * number), number, 5, "") for number in range(1, tables + 2)]


def log(changes: int, tables: int = 1, copies: int = 1) -> Iterator[bytes]:
    """Inserts, updates and deletes 5 : 4 : 1, a fifth of the updates on a hundredth of the rows.

    Of one table there may be copies, each written in transactions of its own.
    """
    rng = random.Random(1)
    held: list[list[dict[int, Value]]] = [[] for _ in range(tables)]
    for binlog in ddl(tables * copies):
        start_ts = Tso(binlog.commit_ts - 1)
        yield prewrite_binlog(
            start_ts, ddl_query=b"-", ddl_job_id=binlog.job_id, ddl_schema_state=5
        )
        yield commit_binlog(
            start_ts,
            binlog.commit_ts,
            ddl_query=b"-",
            ddl_job_id=binlog.job_id,
            ddl_schema_state=5,
        )
    ts = 10 * (tables * copies + 10)
    for first in range(0, changes, ROWS_PER_TRANSACTION):
        place = first // ROWS_PER_TRANSACTION % tables
        rows: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
        kinds = bytearray()
        for number in range(first, min(changes, first + ROWS_PER_TRANSACTION)):
            kinds.append(_change(rng, held[place], number, rows))
        for copy in range(copies):
            table_id = TABLE.id + place + copy
            whole = Mutation(table_id, rows[0], rows[1], rows[4], bytes(kinds))
            value = encode_mutations(1 + tables * copies, [whole])
            ts += 10
            yield prewrite_binlog(Tso(ts), prewrite_value=value)
            yield commit_binlog(Tso(ts), Tso(ts + 5))


def _change(
    rng: random.Random, held: list[dict[int, Value]], number: int, rows: dict[int, list[bytes]]
) -> int:
    chance = rng.random()
    if chance < 0.5 or len(held) < 10:
        row: dict[int, Value] = {
            1: number,
            2: b"customer %d" % rng.randrange(10_000),
            3: f"{rng.randrange(1_000_000)}.{rng.randrange(100):02d}",
            4: f"2024-05-{rng.randrange(1, 29):02d} 12:{rng.randrange(60):02d}:00.123",
            5: rng.randrange(5),
            6: b"n" * rng.randrange(60),
        }
        held.append(row)
        rows[0].append(encode_insert(TABLE, row, handle=number))
        return 0
    place = rng.randrange(len(held) if rng.random() < 0.8 else max(1, len(held) // 100))
    old = held[place]
    handle = old[1]
    assert isinstance(handle, int)
    if chance < 0.9:
        held[place] = {**old, 5: rng.randrange(5), 3: f"{rng.randrange(1000)}.50"}
        rows[1].append(encode_update(TABLE, old, held[place], handle=handle))
        return 1
    held[place] = held[-1]
    held.pop()
    rows[4].append(encode_delete(TABLE, old, handle=handle))
    return 4


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES))
