"""What a node knows the rest of its cluster by, whoever tells it.

One kind keeps everything by itself, one asks PD and TiKV, one asks TiDB. They differ in how many
connections they hold, not in what the rest of binlogd asks them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from binlogd.ports import Registry, TsoSource, TxnStatusSource
from binlogd.status import TsoStatus, UpstreamPart
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso
from binlogd.upstream.store import SkipList, UpstreamStore

if TYPE_CHECKING:
    from binlogd.upstream.tikv.client import TikvStatistics
    from binlogd.upstream.tikv.txn_status import FateStatistics


class Work(Protocol):
    """A part of an upstream with work of its own."""

    async def run(self) -> None:
        """Works until cancelled; what cannot be reached is waited for here, and not raised."""


@dataclass(frozen=True, slots=True)
class TikvKnowledge:
    """What was asked of TiKV, and what came of it."""

    client: TikvStatistics
    fates: FateStatistics


class UpstreamStatistics(msgspec.Struct, frozen=True):
    """How it stands with an upstream. `tso` and `tikv` are None where nobody of that kind is
    asked."""

    kind: str
    parts: tuple[UpstreamPart, ...] = ()
    tso: TsoStatus | None = None
    tikv: TikvKnowledge | None = None


class OwnPd(msgspec.Struct, frozen=True):
    """What this node has of a PD: keys, a clock whose timestamps are unique, and the DDL history
    that a Drainer would read of TiKV."""

    keyspace: KeyspaceStore
    tso: ClockTso
    history: SchemaHistory
    store: UpstreamStore
    """Where the history's jobs are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One upstream, opened: it answers questions from here on, before and after `run`.

    `store` belongs to whoever opened it, and is closed by them.
    """

    kind: str
    store: UpstreamStore
    cluster: StoredClusterIdentity
    tso: TsoSource
    history: SchemaHistory
    registry: Registry
    txn_status: TxnStatusSource
    skips: SkipList
    schema_at: Callable[[Tso], Awaitable[SchemaTracker | None]] | None = None
    """All tables as of a timestamp; None if nobody can tell them any more."""
    table_name: Callable[[int], Awaitable[str]] | None = None
    """What an id stands for now, for an operator; "" when nobody can tell."""
    keep_from: Callable[[Tso], None] | None = None
    """Told with each checkpoint from where on the upstream should collect nothing."""
    works: tuple[Work, ...] = ()
    ends: AsyncExitStack
    """Lets go of every connection, whether anything ran or not."""
    parts: tuple[Callable[[], UpstreamPart], ...] = ()
    tso_statistics: Callable[[], TsoStatus] | None = None
    tikv_statistics: Callable[[], TikvKnowledge] | None = None
    shares_registry: bool = False
    """Whether others have their entries beside ours."""
    own_pd: OwnPd | None = None
    """What can be served to those who have no PD."""

    def statistics(self) -> UpstreamStatistics:
        """How it stands; cheap."""
        tso, tikv = self.tso_statistics, self.tikv_statistics
        return UpstreamStatistics(
            self.kind,
            parts=tuple(each() for each in self.parts),
            tso=tso() if tso is not None else None,
            tikv=tikv() if tikv is not None else None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ends.aclose()
