"""A file that is compressed by a disk: whole, or as if nothing had been begun."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import closing
from pathlib import Path

from binlogd.host.disk import PosixDisk


async def test_a_caller_who_goes_at_any_moment_leaves_the_source_or_the_whole_target(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target.gz"
    content = bytes(range(256)) * 40_000
    gone = done = 0
    with closing(PosixDisk(threads=2)) as disk:
        for turns in range(60):
            source.write_bytes(content)
            task = asyncio.create_task(disk.compress(source, target))
            for _ in range(turns // 6):
                await asyncio.sleep(0.002 * (turns % 6))
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            for _ in range(10_000):  # what its thread was at comes to an end
                if not under_way(tmp_path):
                    break
                await asyncio.sleep(0.001)
            assert not under_way(tmp_path)
            is_done = target.exists()
            assert is_done or source.read_bytes() == content
            assert not is_done or gzip.decompress(target.read_bytes()) == content
            gone, done = gone + isinstance(outcome, asyncio.CancelledError), done + is_done
            target.unlink(missing_ok=True)
    assert gone
    assert gone + done >= 60


def under_way(directory: Path) -> list[Path]:
    return list(directory.glob("*.tmp"))
