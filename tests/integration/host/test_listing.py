"""A directory is listed while others make, rename and remove files in it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from binlogd.host.disk import PosixDisk
from binlogd.pump.bases import BASES_DIRECTORY, Bases
from binlogd.tso import Tso

LOOKS, OTHERS = 60, 20
STAYS = {f"base-{number}": 1 for number in range(300)}
"""Enough that a file may go between its name's turn and its own."""


@contextmanager
def restless(directory: Path) -> Iterator[None]:
    """Somebody writes files as `write_whole` does, and removes them soon after, all the time."""
    is_over = threading.Event()

    def work() -> None:
        there: deque[Path] = deque()
        for number in count():
            beside = directory / f"other-{number}.new"
            beside.write_bytes(b"1\n")
            there.append(beside.rename(directory / f"other-{number}"))
            if len(there) > OTHERS:
                there.popleft().unlink()
            if is_over.is_set():
                break
        for path in there:
            path.unlink()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        is_over.set()
        worker.join()


async def test_a_file_that_goes_meanwhile_hides_no_other(tmp_path: Path) -> None:
    disk = PosixDisk(threads=1)
    for name in STAYS:
        (tmp_path / name).write_bytes(b"1")
    with restless(tmp_path):
        for _ in range(LOOKS):
            sizes, modified_ms = await disk.sizes(tmp_path), await disk.modified_ms(tmp_path)
            assert sizes.items() >= STAYS.items()
            assert modified_ms.keys() >= STAYS.keys()
    disk.close()


async def test_bases_are_held_while_another_is_declared_and_withdrawn(tmp_path: Path) -> None:
    """Else the garbage collection of that moment would delete what they need."""
    disk = PosixDisk(threads=1)
    bases = Bases(tmp_path, disk)
    await bases.declare("mine", Tso(5))
    for name in STAYS:
        (tmp_path / BASES_DIRECTORY / name).write_bytes(b"1\n")
    with restless(tmp_path / BASES_DIRECTORY):
        for _ in range(LOOKS // 4):
            assert "mine" in [each.name for each in await bases.declared()]
    disk.close()
