"""The merged order as a stream: every source is pulled at once, ahead of the reader, within limits.

A source whose binlogs wait for the others is not pulled further than its limit. That cannot lock
up: the source that all others wait for has nothing waiting once it is popped, so it is pulled.

A source that cannot be reached is pulled again from its last promise for as long as it takes, if
`retry_after_s` says so: everything waits for it, and `statistics` says for whom, why and for how
long. Who is in it may change while the stream runs (`merge.members`).
A large binlog (`Pulled.next_bytes`) is pulled only when it is the next of all and the reader asks
for it, so that one of them is in memory at a time, however many sources have one.

Source: tidb-binlog drainer/collector.go, drainer/pump.go (1 s between attempts, logged every 10 s).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import msgspec
import structlog

from binlogd.binlog import Pulled
from binlogd.errors import BinlogdError, Unavailable
from binlogd.merge.members import FixedSources, MergeMembers, Puller
from binlogd.merge.merge import Merge, MergeSource, MergeStatistics
from binlogd.ports import BinlogSource, Sources
from binlogd.tso import Tso

TROUBLE_LOGGED_EVERY_S = 10.0

OnPulled = Callable[[str, Pulled], None]

log = structlog.get_logger(__name__)


class MergeLimits(msgspec.Struct, frozen=True):
    """How far one source may run ahead of the others; a single batch may exceed it.

    `retry_after_s`: how long a source that failed is left alone; None: its failure ends the stream.
    `offline_grace_s`: how long an offline one that cannot be reached is asked for the rest.
    """

    binlogs_waiting_max: int = 16_384
    bytes_waiting_max: int = 64 << 20
    retry_after_s: float | None = None
    offline_grace_s: float = 10.0


class MergedStream:
    """Batches in commit_ts order; made by `merged`, for one reader."""

    def __init__(
        self, after: Tso, limits: MergeLimits, group: asyncio.TaskGroup, on_pulled: OnPulled | None
    ) -> None:
        self._merge = Merge((), after)
        self._limits, self._group, self._on_pulled = limits, group, on_pulled
        self._clock = asyncio.get_running_loop().time
        self._pushed, self._popped = asyncio.Event(), asyncio.Event()
        self._members = MergeMembers(self._merge, self._pushed, limits.offline_grace_s)
        self._failure: BinlogdError | None = None
        self._is_stopped = self._is_asked = False
        self._blocking, self._blocked_at_s = "", 0.0

    def __aiter__(self) -> AsyncIterator[Pulled]:
        """Ends only by `stop`; raises what a source raised."""
        return self

    async def __anext__(self) -> Pulled:
        """The next batch, as soon as the last source has promised something."""
        self._is_asked = True
        self._popped.set()
        while True:  # ends with a batch, by `stop`, or with the failure of a source
            if self._is_stopped:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            pulled = self._merge.pop()
            if pulled is not None:
                self._blocking, self._is_asked = "", False
                self._popped.set()
                return pulled
            if (blocking := self._merge.blocking) != self._blocking:
                self._blocking, self._blocked_at_s = blocking, self._clock()
            self._pushed.clear()
            await self._pushed.wait()

    def stop(self) -> None:
        """Ends the iteration before its next batch."""
        self._is_stopped = True
        self._pushed.set()

    def statistics(self) -> MergeStatistics:
        """How it stands; cheap."""
        now = self._merge.statistics()
        blocked_s = self._clock() - self._blocked_at_s if self._blocking else 0.0
        sources = tuple(map(self._members.placed, now.sources))
        return replace(now, sources=sources, blocked_s=blocked_s)

    async def follow(self, sources: Sources) -> None:
        """Lets sources come and go, until cancelled."""
        try:
            async with aclosing(sources.watch()) as lists:
                async for members in lists:
                    for puller in self._members.updated(members):
                        pulling = self._fill(puller)
                        puller.task = self._group.create_task(pulling, name=f"pull {puller.name}")
            raise Unavailable("the list of sources ended")
        except BinlogdError as error:
            self._fail(error)

    def cancel(self) -> None:
        """Ends all pulling."""
        self._members.cancel()

    # --- pulling ---------------------------------------------------------------------------

    async def _fill(self, puller: Puller) -> None:
        """Pulls one source until it leaves, fails for good or is cancelled."""
        logged_at_s = -TROUBLE_LOGGED_EVERY_S
        while True:  # one turn for each connection
            try:
                await self._pull(puller)
                return
            except BinlogdError as error:
                retry_after_s = self._limits.retry_after_s
                if retry_after_s is None or not isinstance(error, Unavailable):
                    self._fail(error)
                    return
                puller.trouble = str(error)
                if self._clock() >= logged_at_s + TROUBLE_LOGGED_EVERY_S:
                    logged_at_s = self._clock()
                    log.warning("source_not_reached", source=puller.name, cause=str(error))
                if self._members.leaves_dead(puller):
                    return
                await asyncio.sleep(retry_after_s)

    async def _pull(self, puller: Puller) -> None:
        """Pulls until the source has left; raises what it raises, and Unavailable at its end."""
        source, held, name = puller.member.source, puller.held, puller.name
        async with aclosing(source.pull(held.resolved_ts)) as batches:
            is_large = False
            async for pulled in batches:
                promised, puller.trouble = held.resolved_ts, ""
                if self._on_pulled is not None:
                    self._on_pulled(name, pulled)
                self._merge.push(name, pulled)
                if held.resolved_ts > promised:  # not that it is there, and no more
                    puller.heard_at_s = self._clock()
                self._pushed.set()
                if self._members.leaves_drained(puller):
                    return
                upto, was_large, is_large = pulled.resolved_ts, is_large, pulled.next_bytes > 0
                del pulled  # it is the reader's alone
                await self._room(held)
                if is_large or was_large:
                    await self._turn(upto)
        raise Unavailable(f"source {name} ended its stream")

    async def _room(self, of: MergeSource) -> None:
        while (
            len(of.waiting) >= self._limits.binlogs_waiting_max
            or of.bytes_waiting >= self._limits.bytes_waiting_max
        ):  # ends when the reader pops
            self._popped.clear()
            await self._popped.wait()

    async def _turn(self, upto: Tso) -> None:
        """Waits until everything up to there has been read, and the reader asks for more."""
        while not (self._is_asked and self._merge.popped_ts >= upto):  # ends when it does
            self._popped.clear()
            await self._popped.wait()

    def _fail(self, error: BinlogdError) -> None:
        self._failure = self._failure or error
        self._pushed.set()


@asynccontextmanager
async def merged(
    sources: Sources | Sequence[BinlogSource],
    after: Tso,
    limits: MergeLimits | None = None,
    on_pulled: OnPulled | None = None,
) -> AsyncIterator[MergedStream]:
    """`async with merged(sources, after) as stream: async for pulled in stream: ...`

    Everything committed after `after`. A context, because the tasks that pull must end with the
    reader. `on_pulled` is told what a source gave, by its name. Raises, from the iteration, Corrupt
    of the first source that fails, and Unavailable where that is not waited out.
    """
    listed = FixedSources(sources) if isinstance(sources, Sequence) else sources
    raised: BinlogdError | None = None
    async with asyncio.TaskGroup() as group:
        stream = MergedStream(after, limits or MergeLimits(), group, on_pulled)
        following = group.create_task(stream.follow(listed), name="follow sources")
        try:
            yield stream
        except BinlogdError as error:
            raised = error  # raised again outside, so that the reader's own error stays bare
        finally:
            following.cancel()
            stream.cancel()
    if raised is not None:
        raise raised
