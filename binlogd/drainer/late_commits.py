"""Commits that came below what their source had promised, as a session meets them.

Invariant. No session replicates beyond a commit that is known to have been left out, and none is
held by a commit that it will get in its place, or that came by another source
(docs/decisions/0125-late-commits-elsewhere.md).

A writer that hears nothing from a Pump writes the same prewrite to another one, and commits there.
The first Pump may get that prewrite when it has promised everything beyond the commit_ts: it knows
of nothing but a commit that came too late. What is found by another source is downstream, or will
be: one that has a transaction in its place delivers it before it promises anything above. One that
has it too late itself says nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Protocol

import structlog

from binlogd.binlog import Late, others_like_it
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.sink import Sink
from binlogd.errors import (
    BinlogdError,
    LateCommit,
    MissedCommit,
    OutOfOrder,
    PumpUnavailable,
    Stuck,
    Unavailable,
)
from binlogd.ports import BinlogSource, Sources
from binlogd.tso import Tso
from binlogd.wire import peek

ASKED_MAX = 8
"""Sessions in a row that ask a source in vain: a minute, with the waits between them."""
ASK_S = 15.0
"""For one answer; that of a source which stands at the commit is there at once."""

_BY_TIME = attrgetter("commit_ts")

log = structlog.get_logger(__name__)


class UndecidedLateCommits(Protocol):
    """Those of the Pump in this process that nobody has dealt with."""

    @property
    def sources(self) -> Collection[str]:
        """Who may have some: a transaction is in one of these alone."""

    def unresolved(self) -> Sequence[Late]:
        """Some of them, and none only when there is none; cheap."""

    async def resolve(self, commit_tss: Collection[Tso]) -> None:
        """These are dealt with, durably. Raises Unavailable."""


def reached(sink: Sink, applied_ts: Tso) -> Tso:
    """How far any part of the downstream may have come, be it with a part of a transaction."""
    return max(applied_ts, sink.applied_ts(), sink.statistics().furthest_ts)


class KnownLateCommits:
    """Those of the Pump in this process, and those of which another Pump told, which does so once:
    they are kept here over all sessions, until one has judged them."""

    def __init__(self, local: UndecidedLateCommits | None) -> None:
        self._local = local
        self._pulled: dict[Late, MissedCommit] = {}
        self._asked = 0

    def reported(self, error: MissedCommit) -> Stuck | OutOfOrder:
        """What a session ends with that has heard of some. Not all are named where there are many:
        then nothing can be found out."""
        late = [Late(source, Tso(start_ts), Tso(ts)) for source, start_ts, ts in error.late]
        if not late:
            return error
        self._pulled.update(dict.fromkeys(late, error))
        return OutOfOrder(*late[0])

    def came(self) -> OutOfOrder | None:
        """Why a session that runs must end: a commit came late since it began."""
        found = self._local.unresolved() if self._local is not None else ()
        return OutOfOrder(*min(found, key=_BY_TIME)) if found else None

    async def begin(
        self, table_filter: TableFilter, reached_ts: Tso, sources: Sources | Sequence[BinlogSource]
    ) -> None:
        """Before a session pulls: those that are passed over are dealt with, those beyond
        `reached_ts`, which it gets in their place, and those that came by another source. Raises
        LateCommit or MissedCommit for the first other one, and PumpUnavailable while a source that
        may have it gives no answer."""
        while found := self._found():  # ends when each is dealt with, some thousands at a time
            left = [
                each
                for each in found
                if each.commit_ts <= reached_ts
                and not table_filter.ignores_transaction(each.commit_ts)
            ]
            silent = ""
            if left:
                left, silent = await self._lacking(left, await members(sources))
            dealt_with = {each.commit_ts for each in found} - {each.commit_ts for each in left}
            if dealt_with:
                log.info("late_commits_dealt_with", count=len(dealt_with), left=len(left))
                self._pulled = {late: of for late, of in self._pulled.items() if late in left}
                if self._local is not None:
                    await self._local.resolve(dealt_with)
            if left:
                raise self._judged(left, silent)
        self._asked = 0

    def _found(self) -> list[Late]:
        return [*self._pulled, *(self._local.unresolved() if self._local is not None else ())]

    async def _lacking(
        self, late: list[Late], sources: Sequence[BinlogSource]
    ) -> tuple[list[Late], str]:
        """Those that came by no other source, and why one could not say so."""
        siblings = self._local.sources if self._local is not None else ()
        named = {each.name: each for each in sources}
        left, silent = list[Late](), dict[str, str]()
        for each in late:
            not_there = {one.source for one in late if one.commit_ts == each.commit_ts}
            not_there.update(siblings if each.source in siblings else ())
            others = [one for one in sources if one.name not in not_there]
            if await has_come(each, others, named.get(each.source), silent):
                log.warning("late_commit_came_elsewhere", **each._asdict())
            else:
                left.append(each)
        return left, next(iter(silent.values()), "")

    def _judged(self, left: list[Late], silent: str) -> Stuck | Unavailable:
        first = min(left, key=_BY_TIME)
        self._asked += 1
        if silent and self._asked < ASKED_MAX:
            return PumpUnavailable(
                f"whether commit_ts {first.commit_ts} (start_ts {first.start_ts}), which"
                f" {first.source} has too late, came by another Pump is not known: {silent}"
            )
        self._asked = 0
        pulled, self._pulled = self._pulled, {}  # who resumes goes on without them
        unless = f", unless it came by another Pump ({silent})" if silent else ""
        for late in left:
            if late in pulled:
                return MissedCommit(pulled[late].message + unless)
        return LateCommit(*first, others_like_it(len(left) - 1) + unless)


async def members(sources: Sources | Sequence[BinlogSource]) -> Sequence[BinlogSource]:
    """Who is in the merge now; nobody else may watch meanwhile."""
    if isinstance(sources, Sequence):
        return sources
    async with aclosing(sources.watch()) as lists:
        async for listed in lists:
            return [member.source for member in listed]
    return ()


async def has_come(
    late: Late, others: Sequence[BinlogSource], own: BinlogSource | None, silent: dict[str, str]
) -> bool:
    """Whether one of the others has it: of the same start_ts and commit_ts, and with the same rows
    or DDL. `silent`: sources that give no answer, and why; each is waited for once."""
    for other in others:
        found = await _digest(other, late, silent)
        if found and own is not None and found == await _digest(own, late, silent):
            return True
    return False


async def _digest(source: BinlogSource, late: Late, silent: dict[str, str]) -> bytes:
    """Of rows and DDL, since they may be large; empty where there is no such transaction."""
    if source.name in silent:
        return b""
    try:
        async with (
            asyncio.timeout(ASK_S),
            aclosing(source.pull(Tso(late.commit_ts - 1))) as batches,
        ):
            async for pulled in batches:
                for each in pulled.binlogs:
                    if (each.start_ts, each.commit_ts) == (late.start_ts, late.commit_ts):
                        value, *ddl = peek.body(each.payload)
                        digest = hashlib.sha256(value)
                        digest.update(repr(ddl).encode())
                        return digest.digest()
                if pulled.resolved_ts >= late.commit_ts:
                    break
    except (BinlogdError, TimeoutError) as error:
        silent[source.name] = str(error) or f"{source.name} gave no answer in {ASK_S:g} s"
    return b""
