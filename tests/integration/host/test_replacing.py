"""A file that is replaced as a whole is one of its contents, and in the end the last."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from binlogd.host.disk import PosixDisk
from tests.pump_world import eventually

LARGE, LAST = bytes(4 << 20), b"the last"


async def test_a_write_that_was_given_up_does_not_meet_the_next_one(tmp_path: Path) -> None:
    disk = PosixDisk()
    for number in range(10):
        path = tmp_path / str(number)
        given_up = asyncio.create_task(disk.write_whole(path, LARGE))
        await eventually(path.with_name(f"{number}.new").exists)  # its thread is at work
        given_up.cancel()
        await disk.write_whole(path, LAST)
        assert path.read_bytes() == LAST
    disk.close()
    assert {(tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {LAST}
