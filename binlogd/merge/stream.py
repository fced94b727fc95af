"""The merged order as a stream: every source is pulled at once, ahead of the reader, within limits.

A source whose binlogs wait for the others is not pulled further than its limit. That cannot lock
up: the source that all others wait for has nothing waiting once it is popped, so it is pulled.

Sources may join, pause, move and leave while the stream runs (`ports.Sources`). One that cannot be
reached is pulled again from its last promise for as long as it takes, if `retry_after_s` says so:
everything waits for it, and `statistics` says for whom, why and for how long.
A large binlog (`Pulled.next_bytes`) is pulled only when it is the next of all and the reader asks
for it, so that one of them is in memory at a time, however many sources have one.

Source: tidb-binlog drainer/collector.go, drainer/pump.go (1 s between attempts, logged every 10 s).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import msgspec
import structlog

from binlogd.binlog import Pulled
from binlogd.errors import BinlogdError, Unavailable
from binlogd.merge.merge import Merge, MergeSource, MergeStatistics
from binlogd.ports import BinlogSource, Member, Sources, SourceState
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


class FixedSources:
    """`Sources` that never change."""

    def __init__(self, sources: Sequence[BinlogSource]) -> None:
        self._members = [Member(source) for source in sources]

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        yield self._members
        await asyncio.Event().wait()


class _Puller:
    """A member of the merge, and the task that pulls it."""

    def __init__(self, member: Member, held: MergeSource, now_s: float) -> None:
        self.member, self.held = member, held
        self.task: asyncio.Task[None] | None = None
        self.heard_at_s = now_s
        self.offline_at_s = now_s
        self.trouble = ""
        self.is_vanished = False


class MergedStream:
    """Batches in commit_ts order; made by `merged`, for one reader."""

    def __init__(
        self, after: Tso, limits: MergeLimits, group: asyncio.TaskGroup, on_pulled: OnPulled | None
    ) -> None:
        self._merge = Merge((), after)
        self._limits, self._group, self._on_pulled = limits, group, on_pulled
        self._clock = asyncio.get_running_loop().time
        self._pullers: dict[str, _Puller] = {}
        self._pushed = asyncio.Event()
        self._popped = asyncio.Event()
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
            self._note_blocking()
            self._pushed.clear()
            await self._pushed.wait()

    def stop(self) -> None:
        """Ends the iteration before its next batch."""
        self._is_stopped = True
        self._pushed.set()

    def statistics(self) -> MergeStatistics:
        """How it stands; cheap."""
        now, now_s = self._merge.statistics(), self._clock()
        sources = []
        for position in now.sources:
            puller = self._pullers.get(position.name)
            if puller is not None:
                position = replace(
                    position,
                    state=puller.member.state,
                    silent_s=now_s - puller.heard_at_s,
                    trouble=puller.trouble,
                )
            sources.append(position)
        blocked_s = now_s - self._blocked_at_s if self._blocking else 0.0
        return replace(now, sources=tuple(sources), blocked_s=blocked_s)

    # --- who is in it ----------------------------------------------------------------------

    async def follow(self, sources: Sources) -> None:
        """Lets sources come and go, until cancelled."""
        try:
            async with aclosing(sources.watch()) as lists:
                async for members in lists:
                    self._update(members)
            raise Unavailable("the list of sources ended")
        except BinlogdError as error:
            self._fail(error)

    def cancel(self) -> None:
        """Ends all pulling."""
        for puller in self._pullers.values():
            if puller.task is not None:
                puller.task.cancel()

    def _update(self, members: Sequence[Member]) -> None:
        for member in members:
            name = member.source.name
            puller = self._pullers.get(name)
            if puller is not None:
                self._changed(puller, member)
            elif member.state is SourceState.OFFLINE:
                log.info("offline_source_passed_over", source=name, last_ts=member.last_ts)
            else:
                self._join(member)
        present = {member.source.name for member in members}
        for name, puller in self._pullers.items():
            if name not in present and not puller.is_vanished:
                log.warning("source_vanished", source=name, consequence="still waited for")
            puller.is_vanished = name not in present
        self._pushed.set()

    def _join(self, member: Member) -> None:
        name = member.source.name
        held = self._merge.join(name)
        puller = self._pullers[name] = _Puller(member, held, self._clock())
        puller.task = self._group.create_task(self._fill(puller), name=f"pull {name}")
        log.info("source_joined", source=name, after=held.resolved_ts, state=member.state.value)

    def _changed(self, puller: _Puller, member: Member) -> None:
        before, puller.member = puller.member, member
        name = member.source.name
        if member.state is not before.state:
            puller.offline_at_s = self._clock()
            log.info("source_changed", source=name, state=member.state.value)
        if member.source is not before.source and puller.task is not None:
            puller.task.cancel()
            puller.task = self._group.create_task(self._fill(puller), name=f"pull {name}")
        self._leave_if_drained(puller)

    def _leave_if_drained(self, puller: _Puller) -> bool:
        """An offline source goes when it has delivered what it had."""
        member, name = puller.member, puller.member.source.name
        promised = puller.held.resolved_ts
        if member.state is not SourceState.OFFLINE or promised < member.last_ts:
            return False
        log.info("source_left", source=name, promised=promised)
        self._let_go(puller)
        return True

    def _leave_if_dead(self, puller: _Puller) -> bool:
        """An offline source that is not there any more goes without the rest: before it says so, a
        Pump waits until every Drainer has everything; what its idle hours added is no loss. One
        that somebody else has declared offline may have more, and the log says from where on."""
        member, name = puller.member, puller.member.source.name
        patience_s = puller.offline_at_s + self._limits.offline_grace_s
        if member.state is not SourceState.OFFLINE or self._clock() < patience_s:
            return False
        promised = puller.held.resolved_ts
        log.warning(
            "source_given_up",
            source=name,
            promised=promised,
            last_ts=member.last_ts,
            cause=puller.trouble,
            consequence="what it alone may have above `promised` does not come",
        )
        self._let_go(puller)
        return True

    def _let_go(self, puller: _Puller) -> None:
        name = puller.member.source.name
        self._merge.leave(name)
        del self._pullers[name]
        self._pushed.set()
        if puller.task is not None and puller.task is not asyncio.current_task():
            puller.task.cancel()

    # --- pulling ---------------------------------------------------------------------------

    async def _fill(self, puller: _Puller) -> None:
        """Pulls one source until it leaves, fails for good or is cancelled."""
        logged_at_s = -TROUBLE_LOGGED_EVERY_S
        while True:  # one turn for each connection
            try:
                await self._pull(puller)
                return
            except Unavailable as error:
                if self._limits.retry_after_s is None:
                    self._fail(error)
                    return
                puller.trouble = str(error)
                if self._clock() >= logged_at_s + TROUBLE_LOGGED_EVERY_S:
                    logged_at_s = self._clock()
                    log.warning(
                        "source_not_reached", source=puller.member.source.name, cause=str(error)
                    )
                if self._leave_if_dead(puller):
                    return
                await asyncio.sleep(self._limits.retry_after_s)
            except BinlogdError as error:
                self._fail(error)
                return

    async def _pull(self, puller: _Puller) -> None:
        """Pulls until the source has left; raises what it raises, and Unavailable at its end."""
        source, held = puller.member.source, puller.held
        name = source.name
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
                if self._leave_if_drained(puller):
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

    def _note_blocking(self) -> None:
        blocking = self._merge.blocking
        if blocking != self._blocking:
            self._blocking, self._blocked_at_s = blocking, self._clock()


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
