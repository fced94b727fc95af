"""What the Drainer is given by each Pump: in order, and complete up to what is promised."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from binlogd.binlog import Pulled
from binlogd.ports import BinlogSource, Member, Sources
from binlogd.tso import Tso


class JudgedSource:
    """A `BinlogSource` as it is, with a record of the pull that was begun last."""

    def __init__(self, inner: BinlogSource, found: list[str]) -> None:
        self._inner, self._found = inner, found
        self.after = self.resolved_ts = Tso(0)
        self.given: list[Tso] = []

    @property
    def name(self) -> str:
        """See BinlogSource."""
        return self._inner.name

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """See BinlogSource; I5: strictly increasing, and no promise falls."""
        self.after = self.resolved_ts = after
        given = self.given = []
        newest = after
        async with aclosing(self._inner.pull(after)) as batches:
            async for batch in batches:
                for each in batch.binlogs:
                    if each.commit_ts <= newest:
                        self._found.append(f"I5: {self.name} gave {each.commit_ts} behind {newest}")
                    newest = each.commit_ts
                    given.append(newest)
                if batch.resolved_ts < self.resolved_ts:
                    self._found.append(f"I5: the promise of {self.name} fell")
                self.resolved_ts = max(self.resolved_ts, batch.resolved_ts)
                yield batch

    def has_passed(self, commit_ts: Tso) -> bool:
        """Whether the promise holds this commit, and it was not given."""
        if not self.after < commit_ts <= self.resolved_ts:
            return False
        at = bisect_right(self.given, commit_ts)
        return at == 0 or self.given[at - 1] != commit_ts


class JudgedSources:
    """`Sources` as they are, each of them judged."""

    def __init__(self, inner: Sources, found: list[str]) -> None:
        self._inner, self._found = inner, found
        self.members: dict[str, JudgedSource] | None = None
        """By name, those that the merge has taken in; None: nobody merges."""

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        judged: dict[BinlogSource, JudgedSource] = {}
        try:
            async with aclosing(self._inner.watch()) as lists:
                async for members in lists:
                    for each in members:
                        if each.source not in judged:
                            judged[each.source] = JudgedSource(each.source, self._found)
                    yield [replace(each, source=judged[each.source]) for each in members]
                    self.members = {each.source.name: judged[each.source] for each in members}
        finally:
            self.members = None
