"""Work that would hold up the event loop, in a process of its own: a question in, an answer out.

Invariant. The parent outlives whatever the child does: time and the size of the answer have a
limit, the child sets one for its memory itself, and it ends with whoever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from binlogd.errors import BinlogdError, ConfigError, Unavailable
from binlogd.host.privacy import environment_of_children

CANNOT, WRONG = 3, 2
"""Exit codes of a child of ours that has said in a sentence why it gives no answer: it cannot, or
what it was asked makes no sense."""
_SAID_CHARS_MAX = 2_000
_READ_BYTES = 1 << 16
_NICE = 10
_FIRST_TO_GO = "1000"


class ChildEnded(Unavailable):
    """A child gave no answer: its exit code, and the end of what it said on standard error."""

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said
        super().__init__(said or f"the process that looked ended with {code}")


class Died(Exception):
    """A child of ours ended as nobody foresaw. What it said, a traceback as a rule, is a note."""

    def __init__(self, code: int, said: str) -> None:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        last = said.rpartition("\n")[2] or "it said nothing"
        super().__init__(f"its process ended by {how}: {last}")
        self.add_note(said)


async def answer_of(
    module: str, question: bytes, *, timeout_s: float, answer_bytes_max: int
) -> bytes:
    """What a module of ours answers in a process of its own.

    Raises Unavailable as `answered` does, with the sentence of a child that ended by CANNOT or
    WRONG (ChildEnded has the code); Died where it ended otherwise.
    """
    command = (sys.executable, "-m", module)
    try:
        return await answered(
            command, question, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max
        )
    except ChildEnded as error:
        raise _named(error) from None


def _named(error: ChildEnded) -> Exception:
    return error if error.code in (CANNOT, WRONG) else Died(error.code, error.said)


Ask = Callable[[bytes, float], Awaitable[bytes]]
"""Gives a line, and has another within so many seconds."""


@asynccontextmanager
async def conversation(module: str, *, answer_bytes_max: int) -> AsyncIterator[Ask]:
    """A process of a module of ours that answers a line with a line, as long as the block: one
    question at a time. Asking raises what `answer_of` does, and then it is over."""
    child = await _started((sys.executable, "-m", module), limit=answer_bytes_max)
    said = asyncio.create_task(_end_of(child.stderr))

    async def ask(line: bytes, timeout_s: float) -> bytes:
        """The answer, with its line's end. Raises Unavailable, and what the child ended with."""
        assert child.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                await _give(child, line + b"\n")
                answer = await child.stdout.readline()
                if answer.endswith(b"\n"):
                    return answer
                raise _named(ChildEnded(await child.wait(), await said))
        except TimeoutError:
            raise Unavailable(f"it took longer than {timeout_s:g} s") from None
        except ValueError:  # of StreamReader.readline
            raise Unavailable(f"the answer is larger than {answer_bytes_max} bytes") from None

    try:
        yield ask
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await said
        await _kill(child)


async def _started(command: Sequence[str], *, limit: int) -> asyncio.subprocess.Process:
    """Its lines may have so many bytes. Its session is its own: Ctrl-C, and a signal to the group
    of who asks, are for that one to act on."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=limit,
        env=environment_of_children(os.environ),
        start_new_session=True,
    )


async def answered(
    command: Sequence[str], question: bytes, *, timeout_s: float, answer_bytes_max: int
) -> bytes:
    """What `command` answers to `question`, from its standard input to its standard output.

    Raises Unavailable when it fails, says more than `answer_bytes_max`, or takes longer than
    `timeout_s`; it is gone in each of these cases, and when the caller is cancelled.
    """
    child = await _started(command, limit=_READ_BYTES)
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            answer = group.create_task(_whole(child, answer_bytes_max))
            said = group.create_task(_end_of(child.stderr))
            stdin = await _give(child, question)
            stdin.close()
        code = await child.wait()
    except TimeoutError:
        raise Unavailable(f"it took longer than {timeout_s:g} s") from None
    finally:
        await _kill(child)
    if len(answer.result()) > answer_bytes_max:
        raise Unavailable(f"the answer is larger than {answer_bytes_max} bytes")
    if code:
        raise ChildEnded(code, said.result())
    return answer.result()


def tell(stdin: asyncio.StreamWriter, said: bytes) -> None:
    """Writes to a child. Of one that has ended, to which uvloop refuses to write, the exit code
    tells why."""
    if not stdin.is_closing():
        stdin.write(said)


async def _give(child: asyncio.subprocess.Process, question: bytes) -> asyncio.StreamWriter:
    assert child.stdin is not None
    tell(child.stdin, question)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await child.stdin.drain()
    return child.stdin


async def _whole(child: asyncio.subprocess.Process, bytes_max: int) -> bytes:
    """What it answers; one byte more than is allowed where there is more, and that is its end."""
    assert child.stdout is not None
    found = bytearray()
    while part := await child.stdout.read(_READ_BYTES):
        found += part[: bytes_max + 1 - len(found)]
        if len(found) > bytes_max and child.returncode is None:
            child.kill()
    return bytes(found)


async def _kill(child: asyncio.subprocess.Process) -> None:
    """It is gone on return. A pipe that nobody empties would keep its end from being noticed."""
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    for stream in (child.stdout, child.stderr):
        while stream is not None and await stream.read(_READ_BYTES):
            continue
    await child.wait()


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """The last that it said, while the rest is read and forgotten."""
    assert stream is not None
    found = b""
    while part := await stream.read(_READ_BYTES):
        found = (found + part)[-_SAID_CHARS_MAX:]
    return found.decode(errors="replace").strip()


# --- what the child does for itself --------------------------------------------------------------


def give(answered: Callable[[], bytes], too_large: str = "") -> int:
    """Of a child of ours: writes its answer and returns its exit code, which is CANNOT or WRONG
    behind a sentence on standard error where it has none; `too_large` is that for want of memory.
    """
    try:
        answer = answered()
    except (BinlogdError, OSError, MemoryError) as error:
        said = too_large if isinstance(error, MemoryError) else ""
        sys.stderr.write(f"{said or error or 'out of memory'}\n")
        return WRONG if isinstance(error, ConfigError) else CANNOT
    sys.stdout.buffer.write(answer)
    return 0


class TimeOver(Exception):
    """The time that a child gave itself is over."""


def yield_to_others(memory_bytes_max: int) -> None:
    """`step_back`, and a limit for its memory."""
    step_back()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def step_back() -> None:
    """Makes this process the one that waits, and that goes first when memory runs out."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # not on every system
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def stop_after(seconds: float) -> None:
    """Raises TimeOver in this thread when the time is over; 0 takes that back."""

    def over(_number: int, _frame: object) -> None:
        raise TimeOver

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
