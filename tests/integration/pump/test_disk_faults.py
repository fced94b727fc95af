"""Errors of the disk, given to a real process by strace: writers are told, nothing is lost.

Whatever fails, the process goes on, or says why not; then it is killed, and the next one finds all
that was acknowledged. Skipped where strace is missing or processes may not be traced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import strace
from tests.support.faults import RecordProperty, counted
from tests.support.pump_lives import killed_writer, nothing_is_lost

SEGMENTS = [f"value/{fid:06d}.vlog" for fid in range(40)]


@pytest.fixture(scope="module", autouse=True)
def _needs_strace() -> None:
    strace.skip_without()


FAULTS = {
    # name: (system calls, error, which ones of a thread, where, binlogs that must be refused)
    "sync of a segment": ("fdatasync", "EIO", "20", SEGMENTS, 1),
    "every tenth sync": ("fdatasync", "EIO", "20+10", SEGMENTS, 5),
    "write to a full disk": ("write", "ENOSPC", "20", SEGMENTS, 1),
    "disk full for a while": ("write", "ENOSPC", "20..40", SEGMENTS, 5),
    "sync of the directory": ("fsync", "EIO", "4", ["value"], 1),
    "a new segment": ("openat", "ENOSPC", "1..2", ["value/000001.vlog", "value/000002.vlog"], 0),
    "write of the index": ("pwrite64", "ENOSPC", "40..80", ["index.db", "index.db-wal"], 0),
}


LONG = ("every tenth sync", "disk full for a while")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in FAULTS],
)
async def test_a_disk_error_is_told_and_loses_nothing(
    tmp_path: Path, name: str, record_property: RecordProperty
) -> None:
    with counted(record_property, fault=f"{FAULTS[name][1]}: {name}", target="Pump") as cases:
        await _is_told_and_loses_nothing(tmp_path, name)
        cases.one()


async def _is_told_and_loses_nothing(tmp_path: Path, name: str) -> None:
    calls, error, when, where, refusals = FAULTS[name]
    directory, trace = tmp_path / "data", tmp_path / "trace"
    begun, _ = await killed_writer(
        directory, 1_000, 50, spooled_of=0
    )  # so that the error meets no start
    shards = [directory / "pump" / shard for shard in ("shard-0", "shard-1")]
    paths = [word for shard in shards for each in where for word in ("-P", str(shard / each))]
    under = [*strace.UNDER, "--signal=none", "-o", str(trace), "-e", f"trace={calls}"]
    inject = f"inject={calls}:error={error}:when={when}"
    acknowledged, refused = await killed_writer(
        directory,
        100_000,
        900,
        under=[*under, *paths, "-e", inject],
        refusals=refusals,
        spooled_of=0,  # a spool gets its place as a segment by another call
        is_due=lambda: "(INJECTED)" in trace.read_text(),  # a fast machine needs fewer calls
    )
    assert refused >= refusals
    upto = max(commit_ts for _, commit_ts in acknowledged) + 10_000
    await nothing_is_lost(directory, begun + acknowledged, upto=upto, lives=2)
