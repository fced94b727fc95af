"""A real file system of a few megabytes, where one may be mounted, and how to fill it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, *, megabytes: int, inodes: int = 0) -> Iterator[Path]:
    """A tmpfs at a directory, which is made; with as many inodes as memory holds, or as said. Skips
    where one may not mount."""
    directory.mkdir()
    size = f"size={megabytes}m,nr_inodes={inodes}"
    words = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(directory)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> None:
    """Leaves not a byte free, by a file `filler` that is not binlogd's."""
    descriptor = os.open(directory / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while (status := os.statvfs(directory)).f_bavail:
            free_bytes = status.f_bavail * status.f_frsize
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, free_bytes)
    finally:
        os.close(descriptor)
