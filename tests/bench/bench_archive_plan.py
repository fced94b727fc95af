"""Planning a read of an archive: seconds, megabytes and files, now and by the way of before.

    python -m tests.bench.bench_archive_plan [segments] [transactions of each]

The archive is made of indexes alone (tests/support/synthetic_archives.py), 100 of 1,000,000
transactions by default, 2 GB. Each figure is of a process of its own. The way of before read every
index of the range whole, each entry an object of Python; it is measured over some of the segments,
and its ratio is for each transaction.
"""

from __future__ import annotations

import heapq
import json
import resource
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq

from binlogd.archive.catalog import all_segments, read_catalog
from binlogd.archive.files import places_path
from binlogd.archive.places import ArchivedIndex
from binlogd.archive.store import ArchiveStore
from binlogd.log.segment_index import LogPosition
from binlogd.tso import NO_TS, Tso
from tests.support.synthetic_archives import Shape, make

EVERY = 20_000
BEFORE_SEGMENTS = 4
PART = 20_000


def main() -> None:
    """Prints one JSON line per figure."""
    segments = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    transactions = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), Shape(segments=segments, transactions=transactions))
        held = min(segments, BEFORE_SEGMENTS)
        before = _measured(f"before_{held}", name)
        share = segments / held
        for way in ("plan", "one_part", "reach"):
            cpu_s, peak_mb, count = _measured(way, name)
            print(
                json.dumps(
                    {
                        "bench": f"archive_{way}",
                        "cpu_s": round(cpu_s, 3),
                        "peak_mb": round(peak_mb, 1),
                        "count": count,
                        "before_cpu_s": round(before[0] * share, 1),
                        "before_peak_mb": round(before[1] * share),
                        "ratio_cpu": round(before[0] * share / cpu_s),
                    }
                )
            )


def _measured(way: str, directory: str) -> tuple[float, float, int]:
    """CPU seconds, megabytes at the most, and how many parts or places there are."""
    code = f"from tests.bench import bench_archive_plan as b; b.one({way!r}, {directory!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, capture_output=True
    )
    cpu_s, peak_mb, count = json.loads(done.stdout)
    return cpu_s, peak_mb, count


def one(way: str, directory: str) -> None:
    """In the child."""
    begin_s, begin_kb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = ArchiveStore.open(directory)
    if way.startswith("before_"):
        count = _before(store, int(way.removeprefix("before_")))
    else:
        index = ArchivedIndex(store, read_catalog(store))
        resolved = index.resolved_ts()
        assert index.has_any(NO_TS, resolved)
        bounds = index.bounds(NO_TS, resolved, EVERY)
        count = len(bounds)
        if way == "one_part":
            middle = len(bounds) // 2
            count = sum(1 for _ in index.found(bounds[middle], bounds[middle + 1]))
        elif way == "reach":
            found = index.found(Tso(bounds[len(bounds) // 2]), resolved, at_most=PART)
            count = sum(1 for _, _ in zip(range(PART), found, strict=False))
    cpu_s = time.process_time() - begin_s
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin_kb
    print(json.dumps([cpu_s, peak_kb / 1024, count]))


def _before(store: ArchiveStore, held: int) -> int:
    """Every index whole, merged over all segments; a part begins at every so many."""
    segments = list(all_segments(store, read_catalog(store)))[:held]

    def of(shard: int, fid: int) -> list[LogPosition]:
        table = pq.read_table(BytesIO(store.read(places_path(shard, fid))))
        columns = [column.to_pylist() for column in table.columns]
        return [LogPosition(c, s, shard, fid, *p) for c, s, *p in zip(*columns, strict=True)]

    streams = [of(each.shard, each.fid) for each in segments]
    return sum(1 for at, _ in enumerate(heapq.merge(*streams)) if at % EVERY == 0)


if __name__ == "__main__":
    main()
