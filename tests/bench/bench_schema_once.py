"""The schema in the tasks of a job, with a long DDL history: CPU and memory of one worker.

    python -m tests.bench.bench_schema_once [jobs] [tasks]

An archive of few transactions whose history has 20,000 jobs, a tenth of them new tables, the rest
changes of these. `alone`: each task makes it by itself, as it was. `once`: as it is.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark import inputs
from binlogd.spark.source import BinlogdSource
from tests.bench.bench_export import history, log
from tests.support.data_directory import write_log

CHANGES = 2_000


def main() -> None:
    """Prints one JSON line per figure."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    tasks = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_log(directory / "data", log(CHANGES), segment_bytes=8 << 20)
        (directory / "history.json").write_bytes(long_history(jobs))
        url = str(directory / "archive")
        given = str(directory / "history.json")
        archive(Task(data_dir=str(directory / "data"), url=url, history=given, with_open=True))
        for way in ("alone", "once"):
            code = (
                f"from tests.bench import bench_schema_once as b; b.one({way!r}, {url!r}, {tasks})"
            )
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=Path(__file__).parents[2],
                check=True,
                capture_output=True,
            )
            print(done.stdout.decode().strip())


def long_history(jobs: int) -> bytes:
    """A tenth of them makes tables; the others change them, long before the log begins."""
    made: list[dict[str, Any]] = json.loads(history(max(1, jobs // 10)))
    for each in made[2:]:
        each["binlog"]["FinishedTS"] = 2
    for number in range(jobs - len(made)):
        of = made[2 + number % (jobs // 10 - 1)]
        version = len(made) + number
        changed = {**of, "id": 1 << 20 | number, "type": 5}
        made_at = {"SchemaVersion": version, "FinishedTS": 3}
        made.append({**changed, "start_ts": 1, "binlog": {**of["binlog"], **made_at}})
    return json.dumps(made).encode()


def one(way: str, url: str, tasks: int) -> None:
    """In the child: some tasks, one after the other."""
    options = {"path": url, "form": "changes", "partitionTransactions": "20"}
    source = BinlogdSource(options)
    reader = source.reader(source.schema())
    parts = reader.partitions()[1 : 1 + tasks]
    begin_s, begin_kb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    each_s = []
    for part in parts:
        if way == "alone":
            inputs._archived_history.cache_clear()
        task_s = time.process_time()
        assert sum(batch.num_rows for batch in reader.read(part))
        each_s.append(time.process_time() - task_s)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin_kb
    print(
        json.dumps(
            {
                "bench": f"schema_{way}",
                "tasks": len(parts),
                "cpu_s": round(time.process_time() - begin_s, 2),
                "first_s": round(each_s[0], 3),
                "each_later_s": round(sum(each_s[1:]) / max(1, len(each_s) - 1), 3),
                "peak_mb": round(peak_kb / 1024),
            }
        )
    )


if __name__ == "__main__":
    main()
