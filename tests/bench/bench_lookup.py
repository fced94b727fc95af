"""Looking up a row by table and key in a log of several segments, with the row index and without.

One JSON line per figure; the log is made by a Pump's own parts. What seven days take is worked out
from the frames: they are looked through one by one.
Run: python -m tests.bench.bench_lookup [TRANSACTIONS]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from itertools import chain, islice
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter, process_time

import msgspec

from binlogd.log.directory import STORE_FILE, shards_below
from binlogd.pump.pump import PumpOptions
from binlogd.serving.answers import LookUp, Question
from binlogd.tidb.model import jobs_from_json
from binlogd.tools.row_index import frames, picked
from binlogd.tools.row_indexing import FRAME_BYTES, index_rows
from binlogd.upstream.history import stored_job
from binlogd.upstream.store import UpstreamStore
from tests.bench.pump_load import running_pump
from tests.support.shop import Shop

TRANSACTIONS = 300_000
SEGMENT_BYTES = 16 << 20
SEVEN_DAYS_BYTES = 60 << 30
"""Some 200 transactions a second."""


def report(bench: str, value: float, unit: str, **more: float) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more}), flush=True)


async def make_log(data_dir: Path, transactions: int) -> int:
    """Orders made and paid, as a Pump files them; the number of orders."""
    shop, orders = Shop(1_700_000_000_000), transactions // 2
    written = chain(
        shop.ddls(),
        (shop.make(number, f"customer {number}") for number in range(orders)),
        (shop.pay(number) for number in range(orders)),
    )
    options = PumpOptions(free_bytes_min=1, segment_bytes_max=SEGMENT_BYTES)
    async with running_pump(data_dir, shards=4, options=options) as pump:
        while batch := list(chain.from_iterable(islice(written, 500))):
            assert not any(await pump.write(batch))
    store = await UpstreamStore.open(data_dir / STORE_FILE)
    await store.put_jobs([stored_job(job.raw) for job in jobs_from_json(shop.history())])
    await store.close()
    return orders


def children_s() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def look_up(data_dir: Path, row: str) -> tuple[float, float, LookUp]:
    """As the page does it: a process, from its start to its answer; its seconds, and of CPU."""
    question = Question(table="shop.orders", row={"id": row}, paths=(str(data_dir),), seconds=300)
    begin, cpu_s = perf_counter(), children_s()
    answer = subprocess.run(
        [sys.executable, "-m", "binlogd.tools.search"],
        input=msgspec.json.encode(question),
        capture_output=True,
        check=True,
    )
    found = msgspec.json.decode(answer.stdout, type=LookUp)
    return perf_counter() - begin, children_s() - cpu_s, found


def main() -> None:
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        orders = asyncio.run(make_log(data_dir, transactions))
        log_bytes = sum(
            path.stat().st_size
            for shard in shards_below(data_dir)
            for path in shard.segments().values()
        )
        report("log", log_bytes / 2**20, "MiB", transactions=transactions)
        for name in ("without an index", "with the index"):
            for row in (orders - 5, orders // 2, orders + 7):
                took_s, cpu_s, found = look_up(data_dir, str(row))
                report(f"look-up {name}", took_s, "s", cpu_s=cpu_s, found=len(found.transactions))
            if name == "without an index":
                begin = process_time()
                index_rows(data_dir, bytes_max=1 << 50, new_bytes_min=0)
                took_s = process_time() - begin
                files = list(data_dir.glob("pump/shard-*/rows/*.rows"))
                size = sum(path.stat().st_size for path in files)
                report("index size", size / log_bytes * 100, "% of the log")
        contents = [memoryview(path.read_bytes()) for path in files]
        begin, table = process_time(), ("shop", "orders", ("id",))
        rounds = 500
        for number in range(rounds):
            for content in contents:
                for frame, _ in frames(content):
                    picked(frame, table, {"id": str(number)})
        each_s = (process_time() - begin) / rounds / len(contents)
        report("a frame", each_s * 1e6, "µs")
        seven_days_s = each_s * SEVEN_DAYS_BYTES / FRAME_BYTES
        report("frames of seven days, worked out", seven_days_s, "s", gib=SEVEN_DAYS_BYTES / 2**30)


if __name__ == "__main__":
    main()
