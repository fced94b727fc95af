"""Processes of ours that end sooner than who has begun them expects."""

from __future__ import annotations

import asyncio

from binlogd.host.child import tell
from binlogd.host.loop import run
from tests.support.pump_world import eventually


def test_a_child_that_has_ended_already_is_told_nothing() -> None:
    """As `java -version` on a busy machine: it reads nothing, and is gone before it is asked."""

    async def ended() -> bytes:
        child = await asyncio.create_subprocess_exec(
            *("echo", "an answer"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        await child.wait()
        assert child.stdin is not None
        await eventually(child.stdin.is_closing)
        tell(child.stdin, b"a question")
        assert child.stdout is not None
        return await child.stdout.read()

    assert run(ended()) == b"an answer\n"
