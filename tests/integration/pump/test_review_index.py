"""What the index promises to the disk before segments are deleted."""

from __future__ import annotations

from pathlib import Path

from binlogd.pump.index import FILES, Marks, SqliteIndex
from binlogd.pump.pointer import FileId


async def test_segments_are_forgotten_durably_before_they_are_deleted(tmp_path: Path) -> None:
    """A power cut that took this transaction back would leave an index that misses its segments,
    and no way to tell that from a loss."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    said: list[str] = []
    await index._writer.set_trace_callback(said.append)
    await index.forget_segments([FileId(0)], marks=Marks())
    await index.put((), Marks())
    await index.close()
    wanted = ("PRAGMA", "DELETE FROM segments", "COMMIT")
    assert [line.partition(" WHERE")[0] for line in said if line.startswith(wanted)] == [
        "PRAGMA synchronous = FULL",
        "DELETE FROM segments",
        "COMMIT",
        "PRAGMA synchronous = NORMAL",
        "COMMIT",
    ]
