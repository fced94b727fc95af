"""What an export by executors costs a change: whole, by spark-submit, and by itself, step by step.

    python -m tests.bench.bench_cluster_export [changes]

The log is that of `bench_export`, in an archive of segments. CPU is that of all processes: the
driver, the executors and their Python. What a start costs is that of an export of few changes, and
is taken off. Steps are those of one Python process without Spark, in its processor time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

from binlogd.archive.catalog import all_segments, read_catalog
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.log.events import WantedTables, events
from binlogd.snapshot.log.packets import Spread, folded, unpacked, winners_of
from binlogd.snapshot.process.session import EXPORT_SETTINGS
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import catalog
from binlogd.snapshot.writing import writer
from binlogd.snapshot.writing.files import FileTarget
from binlogd.spark.archived_rows import looked, looks, parts, prewrites
from binlogd.spark.export_places import Sending
from binlogd.spark.submit import write_package
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import Tso
from tests.bench.bench_export import TABLE_CHANGES_MAX, cpu_s, ddl, history, log, report
from tests.support.data_directory import write_log

CHANGES, FEW = 4_000_000, 1_000
SEGMENT_BYTES = 64 << 20
CORES = 2
MASTERS = f"local[{CORES}]", f"local-cluster[{CORES},1,1024]"
END = Tso(1 << 62)
T = TypeVar("T")


def main(changes: int) -> None:
    """Prints one JSON line per figure."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        few, many = made(directory / "few", FEW), made(directory / "many", changes)
        steps(many, directory / "alone", changes)
        package = directory / "job"
        write_package(package)
        for master in MASTERS:
            start = submitted(package, few, master)
            whole = submitted(package, many, master)
            seconds, cpu, java = (two - one for one, two in zip(start, whole, strict=True))
            report(
                "cluster_export",
                changes / seconds,
                "changes/s",
                master=master,
                cpu_us=1e6 * cpu / changes,
                cpu_java_us=1e6 * java / changes,
                by_cpu=CORES * changes / cpu,
                start_s=start[0],
                start_cpu=start[1],
            )


def tables_of(changes: int) -> int:
    """Making rows takes longer than exporting them, so that a log of more has tables alike."""
    return max(1, changes // TABLE_CHANGES_MAX)


def made(directory: Path, changes: int) -> str:
    """An archive of so many changes."""
    tables = tables_of(changes)
    binlogs = log(changes // tables, copies=tables)
    write_log(directory / "data", binlogs, segment_bytes=SEGMENT_BYTES)
    (directory / "history").write_bytes(history(tables))
    url = str(directory / "archive")
    data_dir, jobs = str(directory / "data"), str(directory / "history")
    archive(Task(data_dir=data_dir, url=url, history=jobs, with_open=True))
    return url


def submitted(package: Path, url: str, master: str) -> tuple[float, float, float]:
    """Seconds, seconds of processor time, and those of the JVMs, of an export by spark-submit."""
    spark = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(spark), "PYSPARK_PYTHON": sys.executable}
    command = [str(spark / "bin" / "spark-submit"), "--master", master, "--driver-memory", "1g"]
    settings = {name: value for name, value in EXPORT_SETTINGS.items() if ".sql." in name}
    for key, value in {**settings, "spark.ui.enabled": "false"}.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--py-files", str(package / "binlogd.zip"), str(package / "export.py")]
    with tempfile.TemporaryDirectory() as out, (package / "said").open("wb") as said:
        child = subprocess.Popen(
            [*command, "--archive", url, "--out", out],
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        began, cpu, java = time.perf_counter(), 0.0, 0.0
        while child.poll() is None:
            cpu = max(cpu, cpu_s(child.pid))
            java = max(java, cpu_s(child.pid, is_java=True))
            time.sleep(0.1)
    assert child.returncode == 0, (package / "said").read_text(errors="replace")[-3000:]
    return time.perf_counter() - began, cpu, java


def steps(url: str, out: Path, changes: int) -> None:
    """What each step takes of a change, in one process."""
    spent: dict[str, float] = {}

    def took(step: str, act: Callable[..., Iterable[T]], *given: object) -> list[T]:
        began = time.process_time()
        found = list(act(*given))
        spent[step] = spent.get(step, 0.0) + time.process_time() - began
        return found

    store = ArchiveStore.open(url)
    segments = list(all_segments(store, read_catalog(store)))
    work = looks(segments)
    for number in range(len(work)):
        took("look", looked(url, work), number)
    jobs, binlogs = jobs_from_json(history(tables_of(changes))), ddl(tables_of(changes))
    known = catalog(jobs, binlogs, log_begins=Tso(1), ignore_schemas=())
    tables = dict(known.tables)
    wanted = WantedTables({each: plan.handle for each, plan in tables.items()}, frozenset())
    tasks = parts(segments, END, CORES)
    spread = Spread.of(8, sum(part.size_bytes for task in tasks for part in task))
    packets: list[pa.RecordBatch] = []
    for part in (part for task in tasks for part in task):
        found = took("fetch", prewrites, store, part, END)
        for batch in took("rows", events, found, wanted):
            few = took("fold in tasks", map, folded, [batch])
            packets += took("packets", map, spread.packets, few)
    table = pa.Table.from_batches(packets)
    target = FileTarget(str(out / "made"), TypeOptions(), 5_000_000, send=Sending(str(out)))
    for number in range(spread.partitions):
        mine = table.filter(pc.equal(table["partition"], number))
        mine = mine.sort_by([("table_id", "ascending"), ("piece", "ascending")])
        pieces = took("unpack", unpacked, mine.to_batches(), str)
        last = took("last of each key", winners_of, pieces, ())
        write = partial(writer.write, part=f"{number:05d}.0")
        took("decode, write, put", write, last, tables, known.tracker, target)
    for step, seconds in spent.items():
        report("cluster_export_step", 1e6 * seconds / changes, "us", step=step)
    report("cluster_export_steps", 1e6 * sum(spent.values()) / changes, "us")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES)
