"""A process that fails ends, whatever it has left open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDS_S_MAX = 60.0
"""Without the promise it never ends."""
FAILS = """
import asyncio, sys
from pathlib import Path
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.pump.checking.index_audit import IndexAudit
from binlogd.pump.shard.index import SqliteIndex
from binlogd.upstream.store import UpstreamStore

async def main() -> None:
    path = Path(sys.argv[1])
    kept = await {opens}
    raise SystemExit(7)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "opens",
    ["UpstreamStore.open(path / 'upstream.db')", "SqliteIndex.open(path / 'index.db')"],
)
def test_a_process_that_fails_with_a_database_open_ends(tmp_path: Path, opens: str) -> None:
    """A stop that took too long left a process that waited for the threads of its databases."""
    ran = subprocess.run(
        [sys.executable, "-c", FAILS.format(opens=opens), str(tmp_path)],
        timeout=ENDS_S_MAX,
        check=False,
    )
    assert ran.returncode == 7
