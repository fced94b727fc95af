"""The C library's memory is not split into a part for each thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_COUNT = """
import ctypes, sys, threading
from binlogd import app

app.share_arenas()
held, together = [], threading.Barrier(24)

def hold():
    together.wait()
    for _ in range(20):
        held.append(bytearray(20_000))
    together.wait()

threads = [threading.Thread(target=hold) for _ in range(24)]
for each in threads:
    each.start()
for each in threads:
    each.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(sys.stdout.fileno(), b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def arenas(**environment: str) -> int:
    """How many there are when many threads have allocated at once."""
    words = [sys.executable, "-c", _COUNT]
    said = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout
    return said.count("<heap nr=")


@pytest.mark.parametrize("asked", [None, "5"], ids=["alone", "asked"])
def test_threads_share_two_arenas_or_as_many_as_the_environment_says(asked: str | None) -> None:
    if asked is None:
        assert arenas() <= 2
    else:
        assert 2 < arenas(MALLOC_ARENA_MAX=asked) <= 5
