"""Taking binlogs: the value log alone against the disk's own speed, and the whole of Pump.write.

The limit is measured in the same run: the same bytes in the same groups, written and synced by a
thread that does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.tso import NO_TS
from tests.bench.pump_load import batches, cpu_s, prewrites, report, running_pump

GROUP = 64
GROUPS = 300


def raw_rate(path: Path, groups: Sequence[Sequence[bytes]]) -> float:
    """Records a second of write and fdatasync alone."""
    joined = [b"".join(map(record.encode, group)) for group in groups]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begin_s = time.perf_counter()
    for content in joined:
        os.write(descriptor, content)
        os.fdatasync(descriptor)
    took_s = time.perf_counter() - begin_s
    os.close(descriptor)
    return sum(map(len, groups)) / took_s


async def log_rate(directory: Path, groups: Sequence[Sequence[bytes]]) -> float:
    """Records a second through `ValueLog.append`."""
    disk = PosixDisk(threads=2)
    value_log = await ValueLog.begin(await Segments.open(directory, disk=disk), LogLimits())
    begin_s = time.perf_counter()
    for group in groups:
        await value_log.append(group, NO_TS)
    took_s = time.perf_counter() - begin_s
    await value_log.close()
    disk.close()
    return sum(map(len, groups)) / took_s


async def pump_rate(directory: Path, *, writers: int, count: int, size: int) -> tuple[float, float]:
    """Binlogs a second through `Pump.write` with some batches in flight, and CPU µs of each."""
    work = iter(list(batches(count, GROUP, payload_bytes=size)))

    async with running_pump(directory, shards=4) as pump:

        async def writer() -> None:
            for batch in work:  # prewrites of one writer may meet commits of another: all are taken
                assert not any(await pump.write(batch))

        begin_s, begin_cpu_s = time.perf_counter(), cpu_s()
        async with asyncio.TaskGroup() as group:
            for _ in range(writers):
                group.create_task(writer())
        took_s, took_cpu_s = time.perf_counter() - begin_s, cpu_s() - begin_cpu_s
    return 2 * count / took_s, took_cpu_s / (2 * count) * 1e6


async def main() -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for size in (200, 1024):
        groups = [prewrites(n * GROUP, GROUP, payload_bytes=size) for n in range(GROUPS)]
        with TemporaryDirectory() as home:
            raw = raw_rate(Path(home) / "raw", groups)
            rate = await log_rate(Path(home) / "log", groups)
        report(
            f"append_log_{size}", rate, "records/s", group=GROUP, ratio_to_disk=round(rate / raw, 3)
        )
        for writers in (1, 4):
            with TemporaryDirectory() as home:
                rate, cpu_us = await pump_rate(
                    Path(home), writers=writers, count=300 * GROUP, size=size
                )
            report(
                f"pump_write_{size}",
                rate,
                "binlogs/s",
                batch=GROUP,
                in_flight=writers,
                cpu_us=round(cpu_us, 2),
                ratio_to_disk=round(rate / raw, 3),
            )


if __name__ == "__main__":
    uvloop.run(main())
