"""Who is in a merge: sources join, pause, move and leave while it runs (`ports.Sources`).

Invariant. What a source in the merge holds is waited for: one that is offline leaves when it has
delivered what it had, and one that vanished from the list stays. The exception is an offline one
that is not there any more; the log says above what it may have had more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

import structlog

from binlogd.merge.merge import Merge, MergeSource, SourcePosition
from binlogd.ports import BinlogSource, Member, SourceState

log = structlog.get_logger(__name__)


class FixedSources:
    """`Sources` that never change."""

    def __init__(self, sources: Sequence[BinlogSource]) -> None:
        self._members = [Member(source) for source in sources]

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        yield self._members
        await asyncio.Event().wait()


class Puller:
    """A member of the merge, and the task that pulls it."""

    def __init__(self, member: Member, held: MergeSource, now_s: float) -> None:
        self.name, self.member, self.held = member.source.name, member, held
        self.task: asyncio.Task[None] | None = None
        self.heard_at_s = self.offline_at_s = now_s
        self.trouble = ""
        self.is_vanished = False


class MergeMembers:
    """For whom one merge waits."""

    def __init__(self, merge: Merge, moved: asyncio.Event, offline_grace_s: float) -> None:
        """`moved` is set where the merge may go on."""
        self._merge, self._moved, self._offline_grace_s = merge, moved, offline_grace_s
        self._clock = asyncio.get_running_loop().time
        self._pullers: dict[str, Puller] = {}

    def updated(self, members: Sequence[Member]) -> Iterator[Puller]:
        """Lets sources come and go: each that is to be pulled from now on, by a task that the
        caller puts there before it asks for the next."""
        for member in members:
            name = member.source.name
            puller = self._pullers.get(name)
            if puller is not None:
                before, puller.member = puller.member, member
                if member.state is not before.state:
                    puller.offline_at_s = self._clock()
                    log.info("source_changed", source=name, state=member.state.value)
                if member.source is not before.source and puller.task is not None:
                    puller.task.cancel()
                    yield puller
                self.leaves_drained(puller)
            elif member.state is SourceState.OFFLINE:
                log.info("offline_source_passed_over", source=name, last_ts=member.last_ts)
            else:
                puller = Puller(member, self._merge.join(name), self._clock())
                self._pullers[name] = puller
                after, state = puller.held.resolved_ts, member.state.value
                log.info("source_joined", source=name, after=after, state=state)
                yield puller
        present = {member.source.name for member in members}
        for name, puller in self._pullers.items():
            if name not in present and not puller.is_vanished:
                log.warning("source_vanished", source=name, consequence="still waited for")
            puller.is_vanished = name not in present
        self._moved.set()

    def cancel(self) -> None:
        """Ends all pulling."""
        for puller in self._pullers.values():
            if puller.task is not None:
                puller.task.cancel()

    def placed(self, position: SourcePosition) -> SourcePosition:
        """With what the promises of a source do not tell of it."""
        puller = self._pullers.get(position.name)
        if puller is None:
            return position
        state, silent_s = puller.member.state, self._clock() - puller.heard_at_s
        return replace(position, state=state, silent_s=silent_s, trouble=puller.trouble)

    def leaves_drained(self, puller: Puller) -> bool:
        """An offline source goes when it has delivered what it had."""
        member, promised = puller.member, puller.held.resolved_ts
        if member.state is not SourceState.OFFLINE or promised < member.last_ts:
            return False
        log.info("source_left", source=puller.name, promised=promised)
        self._let_go(puller)
        return True

    def leaves_dead(self, puller: Puller) -> bool:
        """An offline source that is not there any more goes without the rest: before it says so, a
        Pump waits until every Drainer has everything; what its idle hours added is no loss. One
        that somebody else has declared offline may have more, and the log says from where on."""
        member, patience_s = puller.member, puller.offline_at_s + self._offline_grace_s
        if member.state is not SourceState.OFFLINE or self._clock() < patience_s:
            return False
        log.warning(
            "source_given_up",
            source=puller.name,
            promised=puller.held.resolved_ts,
            last_ts=member.last_ts,
            cause=puller.trouble,
            consequence="what it alone may have above `promised` does not come",
        )
        self._let_go(puller)
        return True

    def _let_go(self, puller: Puller) -> None:
        self._merge.leave(puller.name)
        del self._pullers[puller.name]
        self._moved.set()
        if puller.task is not None and puller.task is not asyncio.current_task():
            puller.task.cancel()
