"""A server of another program, for as long as a block."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 180.0
_LOOK_EVERY_S = 0.2


@contextmanager
def started(
    words: Sequence[str],
    answers: Callable[[], bool],
    *,
    directory: Path,
    log: Path,
    environ: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """It answers when the block begins, and is gone when that has ended. Raises AssertionError with
    what it wrote to `log` where it ends before."""
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, cwd=directory, env=environ)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers():  # until it does, ends or takes too long
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        process.terminate()
        process.wait(60)
