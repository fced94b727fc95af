"""The merged order as a stream: every source is pulled at once, ahead of the reader, within limits.

A source whose binlogs wait for the others is not pulled further than its limit. That cannot lock
up: the source that all others wait for has nothing waiting once it is popped, so it is pulled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from binlogd.binlog import Pulled
from binlogd.errors import BinlogdError, Unavailable
from binlogd.merge import Merge, MergeStatistics
from binlogd.ports import BinlogSource
from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """How far one source may run ahead of the others; a single batch may exceed it."""

    binlogs_waiting_max: int = 16_384
    bytes_waiting_max: int = 64 << 20


class MergedStream:
    """Batches in commit_ts order; made by `merged`, for one reader."""

    def __init__(self, sources: Sequence[BinlogSource], after: Tso, limits: MergeLimits) -> None:
        self._merge = Merge((source.name for source in sources), after)
        self._after = after
        self._limits = limits
        self._pushed = asyncio.Event()
        self._popped = asyncio.Event()
        self._failure: BinlogdError | None = None
        self._is_stopped = False

    def __aiter__(self) -> AsyncIterator[Pulled]:
        """Ends only by `stop`; raises what a source raised."""
        return self

    async def __anext__(self) -> Pulled:
        """The next batch, as soon as the last source has promised something."""
        while True:  # ends with a batch, by `stop`, or with the failure of a source
            if self._is_stopped:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            pulled = self._merge.pop()
            if pulled is not None:
                self._popped.set()
                return pulled
            self._pushed.clear()
            await self._pushed.wait()

    def stop(self) -> None:
        """Ends the iteration before its next batch."""
        self._is_stopped = True
        self._pushed.set()

    def statistics(self) -> MergeStatistics:
        """How it stands; cheap."""
        return self._merge.statistics()

    async def fill(self, source: BinlogSource) -> None:
        """Pulls one source until it fails or is cancelled."""
        try:
            async with AsyncExitStack() as stack:
                batches = source.pull(self._after)
                if isinstance(batches, AsyncGenerator):
                    await stack.enter_async_context(aclosing(batches))
                async for pulled in batches:
                    self._merge.push(source.name, pulled)
                    self._pushed.set()
                    await self._room(source.name)
            raise Unavailable(f"source {source.name} ended its stream")
        except BinlogdError as error:
            self._failure = self._failure or error
            self._pushed.set()

    async def _room(self, name: str) -> None:
        while (
            self._merge.binlogs_waiting(name) >= self._limits.binlogs_waiting_max
            or self._merge.bytes_waiting(name) >= self._limits.bytes_waiting_max
        ):  # ends when the reader pops
            self._popped.clear()
            await self._popped.wait()


@asynccontextmanager
async def merged(
    sources: Sequence[BinlogSource], after: Tso, limits: MergeLimits | None = None
) -> AsyncIterator[MergedStream]:
    """`async with merged(sources, after) as stream: async for pulled in stream: ...`

    Everything committed after `after`. A context, because the tasks that pull must end with the
    reader. Raises, from the iteration, Unavailable or Corrupt of the first source that fails.
    """
    stream = MergedStream(sources, after, limits or MergeLimits())
    raised: BinlogdError | None = None
    async with asyncio.TaskGroup() as group:
        fillers = [
            group.create_task(stream.fill(source), name=f"pull {source.name}") for source in sources
        ]
        try:
            yield stream
        except BinlogdError as error:
            raised = error  # raised again outside, so that the reader's own error stays bare
        finally:
            for filler in fillers:
                filler.cancel()
    if raised is not None:
        raise raised
