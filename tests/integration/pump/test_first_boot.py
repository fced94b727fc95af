"""The power goes in the very first life of a data directory: nothing of the index may have reached
the disk that was not synced, and the log may end in anything that was not acknowledged.

What was synced is read off the system calls of a real process; the files are cut to that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.host import disk as host_disk
from binlogd.log import record
from binlogd.log.index_file import FILES
from tests.support import strace
from tests.support.pump_lives import killed_writer, nothing_is_lost
from tests.support.pump_world import posix_world, prewrite
from tests.support.pump_writer import OPTIONS

_WRITTEN = re.compile(r"pwrite64\(\d+<([^>]+)>, .*, (\d+), (\d+)(?:\)| <unfinished)")
_SYNCED = re.compile(r"f(?:data)?sync\(\d+<([^>]+)>")
_HOLE = bytes(100)


def _synced_bytes(trace: str) -> dict[str, int]:
    """How much of each file had been synced."""
    written: dict[str, int] = {}
    synced: dict[str, int] = {}
    for line in trace.splitlines():
        if found := _WRITTEN.search(line):
            path, size, offset = found[1], int(found[2]), int(found[3])
            written[path] = max(written.get(path, 0), offset + size)
        elif found := _SYNCED.search(line):
            synced[found[1]] = written.get(found[1], 0)
    return synced


def _indexes(directory: Path) -> Iterator[Path]:
    for name in FILES:
        yield from directory.rglob(name)


async def test_a_first_start_that_ends_with_the_power_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strace.skip_without()
    directory, trace = tmp_path / "data", tmp_path / "trace"
    calls = "trace=pwrite64,fsync,fdatasync"
    under = [*strace.UNDER, "-y", "-s", "0", "--signal=none", "-o", str(trace), "-e", calls]
    acknowledged, _ = await killed_writer(directory, 1_000, 50, under=under)
    synced = _synced_bytes(trace.read_text())
    for path in _indexes(directory):
        os.truncate(path, min(path.stat().st_size, synced.get(str(path.resolve()), 0)))
    for segments in directory.rglob("value"):
        last = max(segments.glob("*.vlog"))
        with last.open("ab") as torn:  # pages come to the disk in any order
            torn.write(_HOLE + record.encode(prewrite(900_000, 3)))
    (boot := tmp_path / "boot_id").write_text("another boot\n")
    monkeypatch.setattr(host_disk, "_BOOT_ID", boot)
    async with posix_world(directory) as world, world.pump(OPTIONS, shards=2):
        pass
    upto = max(commit_ts for _, commit_ts in acknowledged) + 10_000
    await nothing_is_lost(directory, acknowledged, upto=upto, lives=1)
