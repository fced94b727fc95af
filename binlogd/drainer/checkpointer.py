"""The checkpoint of a session: it is taken up, and saved behind what the sink applied.

Invariant. A saved checkpoint is never ahead of `applied_ts()`, its schema version is that of its
commit_ts, and it is consistent only when everything that was pulled is applied. Why it holds: it is
not ahead of what was walked in this life either, so each DDL up to it has told its version; and
whoever asks for a consistent one has waited for the sink, of which no part may be further.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import structlog

from binlogd.drainer.checkpoint import BeginsAhead, Checkpoint
from binlogd.drainer.early_columns import EarlyColumns
from binlogd.drainer.late_commits import reached
from binlogd.drainer.ports import DrainerPorts
from binlogd.drainer.sink import Sink
from binlogd.drainer.statistics import Looks
from binlogd.errors import ConfigError, DownstreamWentBack, Unavailable
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)


class Checkpointer:
    """Made for one session, and its sink."""

    def __init__(self, ports: DrainerPorts, sink: Sink, left: Checkpoint, looks: Looks) -> None:
        self._ports, self._sink, self._looks = ports, sink, looks
        self.checkpoint = left
        """As this process left it, until that of the sink is taken up."""
        self.not_saved = ""
        """Why the last one could not be saved."""
        self.walked_ts = NO_TS
        """Up to where transactions were translated: of what is beyond, no schema is known yet."""
        self.early: EarlyColumns | None = None
        """Of the walk, once it has begun: what waits for a column holds a checkpoint back."""
        self.relaying = asyncio.Lock()
        """Held by who writes to the relay log, or collects its files."""
        self._saving = asyncio.Lock()
        self.is_over = asyncio.Event()
        """Nothing is saved any more, and the sink is about to be closed."""
        self.versions: deque[tuple[Tso, int]] = deque()
        """Those of the schema that were walked, and from which commit_ts on it had each."""
        self._is_settled = False
        """A consistent checkpoint is saved, and nothing was done since."""

    @property
    def applied_ts(self) -> Tso:
        """Everything up to here is downstream, durably."""
        return max(self.checkpoint.commit_ts, self._looks.at(self._sink.applied_ts, NO_TS))

    async def open(self, initial_ts: Tso) -> None:
        """Opens the sink and takes up its checkpoint; where there is none, it begins at
        `initial_ts`. Raises BeginsAhead, and ConfigError where the sink had one a moment ago."""
        stored = await self._sink.open() or Checkpoint(initial_ts)
        left_ts, begin_ts = self.checkpoint.commit_ts, stored.commit_ts or initial_ts
        if begin_ts > (newest_ts := self._ports.newest_ts()):
            raise BeginsAhead(begin_ts, newest_ts)
        if begin_ts == initial_ts < left_ts:
            raise ConfigError(
                f"the downstream has no checkpoint any more, and this process left it at commit_ts"
                f" {left_ts}: it is another server, or lost what it had; load a copy of the data"
                " into it and say where that ends by `binlogd checkpoint --set`, or, for an empty"
                f" one, restart binlogd: it begins behind commit_ts {begin_ts}"
                " (drainer.initial-commit-ts)"
            )
        self.checkpoint = replace(stored, commit_ts=begin_ts)

    async def save_if_moved(self) -> None:
        """Saves what was applied since the last one; what an Unavailable prevents is tried again
        later. Raises DownstreamWentBack, and what else `save` raises."""
        if self._savable_ts() <= self.checkpoint.commit_ts:
            return
        try:
            await self.save(is_consistent=False)
        except DownstreamWentBack:
            raise  # perhaps nothing but a checkpoint would ever have noticed
        except Unavailable as error:
            # A lock on the checkpoint table is no reason to stop; a downstream that is gone stops
            # the sink, and that ends the session.
            self.not_saved = str(error)
            log.warning("checkpoint_not_saved", cause=self.not_saved)

    async def save(self, *, is_consistent: bool) -> None:
        """Saves what is applied, and lets go of what lies before it. A consistent one is asked for
        where everything that was walked is flushed. Raises what the sink and the logs raise."""
        async with self._saving:
            if self.is_over.is_set() or (self._is_settled and not is_consistent):
                return  # its timer had run out while the session ended: all is saved, the sink gone
            commit_ts = self._savable_ts(at_rest=is_consistent)
            is_consistent = is_consistent and commit_ts >= reached(self._sink, NO_TS)
            passed = (version for ts, version in self.versions if ts <= commit_ts)
            version = max([self.checkpoint.schema_version, *passed])
            checkpoint = Checkpoint(commit_ts, is_consistent, version, self.checkpoint.ts_map)
            await self._sink.save(checkpoint)
            self.checkpoint, self.not_saved = checkpoint, ""
            self._is_settled = is_consistent
            while self.versions and self.versions[0][0] <= commit_ts:
                self.versions.popleft()
            self._ports.on_saved(checkpoint)
        if self._ports.relay is not None and self.early is not None:
            async with self.relaying:
                await self._ports.relay.collect(commit_ts)
        if self._ports.schema_log is not None:
            await self._ports.schema_log.collect(commit_ts)
        log.debug("checkpoint_saved", commit_ts=commit_ts, consistent=is_consistent)

    async def end(self) -> None:
        """Closes the sink, and saves nothing any more."""
        self.is_over.set()
        async with self._saving:  # a checkpoint on its way needs the sink
            await self._sink.close()

    def _savable_ts(self, *, at_rest: bool = False) -> Tso:
        """A sink may know from a life before that more is applied than was walked in this one: the
        schema version there comes with the DDLs in between."""
        applied_ts = min(self.applied_ts, self.walked_ts)
        if self.early is not None:
            applied_ts = self.early.savable(applied_ts, at_rest=at_rest)
        return max(self.checkpoint.commit_ts, applied_ts)
