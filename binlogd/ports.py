"""Protocols that two packages need: the outside world as the core sees it.

A Protocol stands here only when it has two implementations; those used by one package stand beside
their use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlogd.binlog import Pulled
from binlogd.tso import Tso


class Clock(Protocol):
    """Wall time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class TsoSource(Protocol):
    """Where timestamps come from: PD, a local oracle, or what the binlogs themselves carried."""

    async def next(self) -> Tso:
        """A timestamp that is not ahead of any writer. Raises UpstreamUnavailable."""
        ...

    def observe(self, ts: Tso) -> None:
        """Takes note of a start_ts or commit_ts that a binlog carried."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction committed at commit_ts, although its Commit binlog never arrived."""

    commit_ts: Tso


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The transaction never committed and never will."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Nobody knows yet; ask again later. `reason` is shown to the operator."""

    reason: str


TxnStatus = Committed | RolledBack | Pending


@dataclass(frozen=True, slots=True)
class OpenPrewrite:
    """A prewrite whose outcome has not arrived."""

    start_ts: Tso
    prewrite_key: bytes


class TxnStatusSource(Protocol):
    """Who knows the fate of a transaction."""

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order. Raises UpstreamUnavailable."""
        ...


class BinlogSource(Protocol):
    """Something that can be pulled: a shard in this process, or a remote Pump."""

    @property
    def name(self) -> str:
        """For logs and status, unique among the sources of one merge."""
        ...

    def pull(self, after: Tso) -> AsyncIterator[Pulled]:
        """Binlogs with commit_ts > after, strictly increasing; never ends by itself.

        Wakes on the watermark, without polling. Raises Unavailable or Corrupt.
        """
        ...
