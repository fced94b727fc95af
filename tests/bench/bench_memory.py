"""What a Pump keeps in memory: for a million binlogs stored, for open prewrites, for large ones."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.log.pointer import FileId, Place
from binlogd.pump.pump import Pump
from binlogd.pump.shard.sorter import Sorter
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.bench.pump_load import BASE, batches, report, running_pump
from tests.support.large_binlogs import memory_bytes

SHARDS = 4
MIB = 1 << 20
OPEN = 100_000


def resident() -> float:
    """MiB of this process now."""
    return memory_bytes("self", "VmRSS") / MIB


def open_prewrite_bytes() -> float:
    """What a transaction without an outcome takes, beside its bytes in the log."""
    sorter = Sorter()
    tracemalloc.start()
    for number in range(OPEN):
        sorter.prewrite(Tso(BASE + number), Place(FileId(0), number * 250, 234), 0.0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / OPEN


async def main(binlogs: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    transactions = binlogs // 2
    with TemporaryDirectory() as home:
        directory = Path(home)
        async with running_pump(directory, shards=SHARDS) as pump:
            before = resident()
            for batch in batches(transactions, 500, payload_bytes=200):
                assert not any(await pump.write(batch))
            report("memory_after_writing", resident() - before, "MiB", binlogs=binlogs)
        async with running_pump(directory, shards=SHARDS) as pump:
            report("memory_after_start", resident() - before, "MiB", binlogs=binlogs)
        for size in (1, 64, 256):
            async with running_pump(directory, shards=SHARDS) as pump:
                before = resident()
                rows = bytes(size * MIB)
                await one_large(pump, transactions + OPEN + size, rows)
                del rows
                report("memory_after_large", resident() - before, "MiB", binlog_mib=size)
    report("memory_open_prewrite", open_prewrite_bytes(), "bytes", open=OPEN)


async def one_large(pump: Pump, number: int, rows: bytes) -> None:
    """Writes one transaction with that many bytes of rows."""
    start_ts, commit_ts = Tso(BASE + number * 4), Tso(BASE + number * 4 + 2)
    prewrite = prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=rows)
    assert not any(await pump.write([prewrite]))
    assert not any(await pump.write([commit_binlog(start_ts, commit_ts)]))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
