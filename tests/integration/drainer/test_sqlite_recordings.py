"""Recordings into a SQLite replica: its tables are the recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.host.disk import PosixDisk
from tests.support.recordings_reader import RECORDINGS
from tests.support.replay import apply_all, translated
from tests.support.replica_reader import replica_differences

SKIPPED = {
    "types": (),
    "keys": ("keys_wrong",),
    "fuzz": (),
    "ddl": (
        "fl",
        "fl_back",
        *(f"ddl_{a}.{name}" for a in "ab" for name in ("rec*",)),
        "ddl_a.conv",
    ),
    "race": (),
    "windows": (),
}
"""Rows that come back; a TIMESTAMP that became a DATETIME in the zone of a session."""


@pytest.mark.parametrize(
    "name",
    [
        *("types", "keys", "ddl", "windows", "fuzz"),
        pytest.param("race", marks=pytest.mark.soak),  # in short: windows, DDL beside rows as well
    ],
)
async def test_a_replica_holds_the_recorded_tables(name: str, tmp_path: Path) -> None:
    directory = RECORDINGS / name
    skip = SKIPPED[name]
    txns = translated(directory, skip, Dialect.FILE)
    disk = PosixDisk(threads=2)
    sink = SqliteSink(tmp_path / "replica.db", disk)
    await apply_all(sink, txns)
    disk.close()
    assert sink.statistics().rows_not_found == 0
    assert replica_differences(directory, tmp_path / "replica.db", skip) == []
