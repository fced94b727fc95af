"""What a Pump keeps in memory: for a million binlogs stored, for open prewrites, for large ones."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.pump.pump import Pump
from binlogd.tso import Tso
from binlogd.wire.peek import commit_binlog, prewrite_binlog
from tests.bench.pump_load import BASE, batches, prewrites, report, running_pump
from tests.large_binlogs import memory_bytes

SHARDS = 4
MIB = 1 << 20
OPEN = 100_000


def resident() -> float:
    """MiB of this process now."""
    return memory_bytes("self", "VmRSS") / MIB


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
            before = resident()
            for first in range(transactions, transactions + OPEN, 500):
                assert not any(await pump.write(prewrites(first, 500, payload_bytes=200)))
            report("memory_open_prewrite", (resident() - before) * MIB / OPEN, "bytes", open=OPEN)
        for size in (1, 64, 256):
            async with running_pump(directory, shards=SHARDS) as pump:
                before = resident()
                rows = bytes(size * MIB)
                await one_large(pump, transactions + OPEN + size, rows)
                del rows
                report("memory_after_large", resident() - before, "MiB", binlog_mib=size)


async def one_large(pump: Pump, number: int, rows: bytes) -> None:
    """Writes one transaction with that many bytes of rows."""
    start_ts, commit_ts = Tso(BASE + number * 4), Tso(BASE + number * 4 + 2)
    prewrite = prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=rows)
    assert not any(await pump.write([prewrite]))
    assert not any(await pump.write([commit_binlog(start_ts, commit_ts)]))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
