"""A file that is replaced as a whole is one of its contents, and in the end the last."""

from __future__ import annotations

import asyncio
import os
import resource
from functools import partial
from pathlib import Path

import pytest

from binlogd.host.disk import PosixDisk
from tests.support.pump_world import eventually

LARGE, LAST = bytes(4 << 20), b"the last"


def is_begun(beside: Path, path: Path) -> bool:
    return beside.exists() or path.exists()


async def test_a_write_that_was_given_up_does_not_meet_the_next_one(tmp_path: Path) -> None:
    disk = PosixDisk()
    for number in range(10):
        path, beside = tmp_path / str(number), tmp_path / f"{number}.new"
        given_up = asyncio.create_task(disk.write_whole(path, LARGE))
        # until its thread is at work, or done already
        await eventually(partial(is_begun, beside, path))
        given_up.cancel()
        await disk.write_whole(path, LAST)
        assert path.read_bytes() == LAST
    disk.close()
    assert {(tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {LAST}


async def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    disk, path = PosixDisk(), tmp_path / "file"
    await disk.write_whole(path, LAST)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, hard))  # the system takes so much of it
    try:
        with pytest.raises(OSError, match="File too large"):
            await disk.write_whole(path, LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == LAST
    disk.close()
