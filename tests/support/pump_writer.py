"""A process that writes transactions into a Pump until it is killed.

Prints `start commit` of each transaction once its commit is durable, and `refused` for each binlog
that the Pump could not make durable: a prewrite is given up then, a commit tried again, as TiDB
does. Arguments: the data directory, and the first timestamp to use.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

from binlogd.errors import Unavailable
from tests.support.pump_world import ROOMY, commit, posix_world, prewrite, rollback, written

OPTIONS = replace(ROOMY, segment_bytes_max=100_000, index_queue_max=500, window_bytes_max=20_000)
WRITERS = 32


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(directory: Path, first: int) -> None:
    """Runs until SIGKILL."""
    rng = random.Random(first)
    ts = first

    def following() -> int:
        nonlocal ts
        ts += 1
        return ts

    async with posix_world(directory) as world, world.pump(OPTIONS, shards=2) as pump:

        async def insist(payload: bytes) -> None:
            while True:  # ends when it is durable, or with the process
                try:
                    return await written(pump, payload)
                except Unavailable:
                    say("refused")
                    await asyncio.sleep(0.01)

        async def writer() -> None:
            while True:  # ends with the process
                start = following()
                try:
                    await written(pump, prewrite(start, rng.randrange(1, 100)))
                except Unavailable:
                    say("refused")
                    await insist(rollback(start))
                    continue
                commit_ts = following()
                await insist(commit(start, commit_ts))
                say(f"{start} {commit_ts}")

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(writer())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
