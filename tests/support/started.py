"""Servers of other programs: started and waited for."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

START_TIMEOUT_S = 180.0
_LOOK_EVERY_S = 0.02


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
    what it wrote to `log` where it does not come to that."""
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, cwd=directory, env=environ)
    try:
        wait_for(process, answers, log)
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_for(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    """Returns when it answers. Raises AssertionError with the end of what it wrote to `log` where
    it ends before, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{process.args!r} does not start ({ended}): {tail}")
        time.sleep(_LOOK_EVERY_S)


def says_ok(url: str) -> bool:
    """Whether somebody answers there, with 200."""
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def listens(port: int) -> bool:
    """Whether somebody does, at a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
