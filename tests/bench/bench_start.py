"""How long a Pump takes to start with a million binlogs: after a clean stop, after kill -9, and
without its index; and how long a check of all of them takes.

The process that writes is killed at full speed, so the next one scans what was written since its
marks were saved. That an index is far behind is played by going back to older marks.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.host.disk import PosixDisk
from binlogd.pump.checking.check import check
from tests.bench.pump_load import batches, last_commit, report, running_pump

SHARDS = 4
BEHIND = 0.3


async def fill(directory: Path, transactions: int) -> None:
    """Writes two binlogs for each transaction, says so, and waits to be killed."""
    async with running_pump(directory, shards=SHARDS) as pump:
        for batch in batches(transactions, 1_000, payload_bytes=200):
            assert not any(await pump.write(batch))
        print("filled", flush=True)
        await asyncio.sleep(600)


async def filled_and_killed(directory: Path, transactions: int) -> None:
    """Has another process fill the directory, and kills it the moment it has."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "fill", str(directory), str(transactions), stdout=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"filled\n"
    process.kill()
    await process.wait()


async def opened_s(directory: Path, transactions: int) -> float:
    """Seconds until a Pump is ready, which must then know everything."""
    begin_s = time.perf_counter()
    async with running_pump(directory, shards=SHARDS) as pump:
        took_s = time.perf_counter() - begin_s
        assert pump.max_commit_ts == last_commit(transactions)
    return took_s


async def checked_s(directory: Path) -> float:
    """Seconds of CPU that `binlogd check` takes; it must find nothing."""
    disk = PosixDisk(threads=2)
    begin_s = time.process_time()
    assert (await check(directory, disk, lambda *_: None)).is_clean
    took_s = time.process_time() - begin_s
    disk.close()
    return took_s


def go_back(directory: Path, share: float) -> None:
    """Sets every shard's marks back by a share of its log."""
    for index in directory.rglob("index.db"):
        with sqlite3.connect(index) as connection:
            (fid, offset, ts) = connection.execute(
                "SELECT fid, offset, commit_ts FROM commits ORDER BY fid DESC, offset DESC"
                " LIMIT 1 OFFSET (SELECT cast(count(*) * ? AS INTEGER) FROM commits)",
                (share,),
            ).fetchone()
            connection.execute(
                "DELETE FROM marks WHERE name = 'checksum'"
            )  # as before there was one
            pointer = fid.to_bytes(4, "little") + offset.to_bytes(8, "little")
            connection.execute("UPDATE marks SET value = ? WHERE name LIKE '%_pointer'", (pointer,))
            connection.execute("UPDATE marks SET value = ? WHERE name = 'max_commit_ts'", (ts - 2,))
        connection.close()


async def main(binlogs: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    transactions = binlogs // 2
    with TemporaryDirectory() as home:
        directory = Path(home) / "data"
        begin_s = time.perf_counter()
        await filled_and_killed(directory, transactions)
        report("start_fill", binlogs / (time.perf_counter() - begin_s), "binlogs/s")
        took_s = await opened_s(directory, transactions)
        report("start_after_kill", took_s, "s", binlogs=binlogs)
        for _ in range(2):
            report("start_clean", await opened_s(directory, transactions), "s", binlogs=binlogs)
        took_s = await checked_s(directory)
        report("check", binlogs / took_s, "binlogs/s of CPU", binlogs=binlogs)
        await asyncio.get_running_loop().run_in_executor(None, go_back, directory, BEHIND)
        took_s = await opened_s(directory, transactions)
        scanned = int(binlogs * BEHIND)
        report("start_far_behind", took_s, "s", binlogs=binlogs, scanned=scanned)
        for index in directory.rglob("index.db*"):
            index.unlink()
        took_s = await opened_s(directory, transactions)
        report("start_without_index", took_s, "s", binlogs=binlogs, per_s=round(binlogs / took_s))
        shutil.rmtree(directory)


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
        uvloop.run(fill(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
