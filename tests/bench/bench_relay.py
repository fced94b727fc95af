"""The relay log: what an append costs, beside the same bytes written and synced bare, and reading.

One JSON line per figure. Groups are what gathers while a group is synced: 500 rows. The log lies in
the directory for temporary files. Run: python -m tests.bench.bench_relay
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import FrameKind, RelayEntry, RelayPos, encode_entries, encode_frame
from binlogd.relay.log import RelayWriter
from binlogd.relay.reader import read_relay
from binlogd.tso import NO_TS, Tso
from tests.bench.load import Load, inserts, mixed

ROWS = 100_000
GROUP_ROWS = 500
ROUNDS = 3
Groups = Sequence[Sequence[RelayEntry]]


def groups_of(load: Load) -> Groups:
    """The entries of a load, some of them to an append."""
    per_group = GROUP_ROWS * len(load.binlogs) // load.rows
    entries = [RelayEntry(each.commit_ts, each.payload, b"") for each in load.binlogs]
    return [entries[at : at + per_group] for at in range(0, len(entries), per_group)]


def report(bench: str, value: float, unit: str, **more: float) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more}))


def encode(load: Load, groups: Groups) -> None:
    """CPU of making the bytes, without the disk."""
    best_s = min(_encode_s(groups) for _ in range(ROUNDS))
    report(f"relay_encode_{load.name}", best_s * 1e6 / load.rows, "us CPU/row")


def _encode_s(groups: Groups) -> float:
    begun = process_time()
    for group in groups:
        body = encode_entries(group)
        encode_frame(FrameKind.GROUP, RelayPos(0, 0), group[-1].commit_ts, body)
    return process_time() - begun


async def append(load: Load, groups: Groups, disk: PosixDisk, directory: Path) -> None:
    """Appends with their syncs, against bare ones of the same size."""
    writer = RelayWriter(directory, disk, max_file_bytes=10 << 20)
    await writer.open(after=NO_TS, snapshot=lambda: b"{}")
    begun, begun_cpu = perf_counter(), process_time()
    for group in groups:
        await writer.append(group)
    seconds, cpu = perf_counter() - begun, process_time() - begun_cpu
    await writer.close()
    bare_s, bare_cpu = await _bare(groups, disk, directory / "bare")
    report(
        f"relay_append_{load.name}",
        load.rows / seconds,
        "rows/s",
        cpu_us_per_row=round(cpu * 1e6 / load.rows, 3),
        bare_cpu_us_per_row=round(bare_cpu * 1e6 / load.rows, 3),
        groups=len(groups),
        ratio_to_bare=round(bare_s / seconds, 3),
    )


async def _bare(groups: Groups, disk: PosixDisk, path: Path) -> tuple[float, float]:
    parts = [b"".join(bytes(entry.payload) for entry in group) for group in groups]
    file = await disk.open_append(path, create=True)
    begun, begun_cpu = perf_counter(), process_time()
    for part in parts:
        await file.append([part], sync=True)
    seconds, cpu = perf_counter() - begun, process_time() - begun_cpu
    await file.close()
    return seconds, cpu


async def read(load: Load, disk: PosixDisk, directory: Path) -> None:
    """The whole log, verified and cut into entries."""
    begun = perf_counter()
    relay = await read_relay(disk, directory, Tso(0))
    entries = sum([len(batch) async for batch in relay.batches])
    seconds = perf_counter() - begun
    assert entries == len(load.binlogs)
    report(f"relay_read_{load.name}", load.rows / seconds, "rows/s")


async def measure() -> None:
    """All figures of both loads."""
    for load in (inserts(ROWS), mixed(ROWS)):
        groups = groups_of(load)
        encode(load, groups)
        with tempfile.TemporaryDirectory() as name:
            disk = PosixDisk(threads=2)
            await append(load, groups, disk, Path(name))
            await read(load, disk, Path(name))
            disk.close()


def main() -> None:
    """Measures and prints."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
