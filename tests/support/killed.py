"""Programs that are killed while they work, recorded or not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.traced_files import Recording, under

ROOT = Path(__file__).parents[2]


def child_of(strace: int) -> int:
    """The process that a strace runs; strace ends with it."""
    (child,) = Path(f"/proc/{strace}/task/{strace}/children").read_text().split()
    return int(child)


def end(process: int) -> None:
    """SIGKILL; nothing happens where it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


async def recorded(
    recording: Recording,
    words: Sequence[str],
    *,
    is_enough: Callable[[list[bytes]], bool] | None = None,
) -> list[bytes]:
    """Runs Python with these words, kills it when it has said enough, or lets it end, and adds
    what it did to the recording. Returns the lines that it said."""
    trace = recording.root.with_name(f"{recording.root.name}.trace")
    process = await asyncio.create_subprocess_exec(
        *(*under(trace), sys.executable, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said: list[bytes] = []
    is_killed = False
    async for line in process.stdout:
        said.append(line)
        if is_enough is not None and not is_killed and is_enough(said):
            is_killed = True
            end(child_of(process.pid))
    code = await process.wait()
    assert is_killed == (is_enough is not None), said[-3:]
    assert code == 0 or is_killed, said[-3:]
    recording.take(trace)
    recording.settle()
    trace.unlink()
    return said
