"""What it costs to keep an archive a second behind: CPU of the process that follows the log, for
each second of log, at some rates, and what stands in the archive then.

    python -m tests.bench.bench_archive_tail [--seconds 60]

The log grows by one second's worth between two rounds, with binlogs of 1 KB rows in four shards; a
round is not timed by the clock. `read` is what a reader of the catalog pays for the tail.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from binlogd.archive.catalog import read_catalog, read_tail
from binlogd.archive.follower import Follower
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.growing_log import GrowingLog

RATES = (0, 1_000, 100_000, 10_000_000)
ROW_BYTES = 1_000


def transaction(number: int) -> list[bytes]:
    """One row of about a kilobyte."""
    start_ts = Tso((number + 1) << 18)
    rows = Mutation(7, [bytes([number & 255]) * ROW_BYTES], [], [], b"\x00")
    value = encode_mutations(1, [rows])
    commit = commit_binlog(start_ts, Tso(start_ts + 5))
    return [prewrite_binlog(start_ts, prewrite_value=value), commit]


def measured(rate: int, seconds: int, directory: Path) -> str:
    """A line of the table."""
    log, url = GrowingLog(directory / "data", segment_bytes=500 << 20), str(directory / "archive")
    (directory / "history.json").write_bytes(b"[]")
    history = str(directory / "history.json")
    archive(Task(data_dir=str(log.data_dir), url=url, history=history))
    follower, store = Follower(log.data_dir, url), ArchiveStore.open(url)
    number, used, put, most = 0, 0.0, 0, 0
    for second in range(seconds):
        if not rate:
            log.append([fake(Tso((second + 1) << 18))] if second % 3 == 0 else [])
        while number * (ROW_BYTES + 60) < rate * (second + 1):
            log.append(transaction(number))
            number += 1
        asked, begun, before = log.follow(url), time.process_time(), _written_bytes()
        follower.follow(asked)
        used += time.process_time() - begun
        put += _written_bytes() - before
        most = max(most, len(read_tail(store).parts))
    begun = time.process_time()
    catalog = read_catalog(store)
    read_ms = (time.process_time() - begun) * 1000
    assert sum(each.transactions for each in catalog.segments) == number
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    share = used / seconds * 1000
    times = put / (number * (ROW_BYTES + 60)) if number else 0.0
    figures = f"{share:.1f} ms | {times:.1f} | {most} | {read_ms:.1f} ms | {memory} MB"
    return f"| {rate / 1e6:g} MB/s | {figures} |"


def _written_bytes() -> int:
    """By this process, to whatever."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    print("| log | CPU a second | bytes put, times | parts at most | read | memory |")
    print("|---|---|---|---|---|---|")
    for rate in RATES:
        with tempfile.TemporaryDirectory() as directory:
            print(measured(rate, seconds, Path(directory)), flush=True)


if __name__ == "__main__":
    main()
