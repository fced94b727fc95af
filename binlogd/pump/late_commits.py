"""The commits of all shards that came too late for those who pull in order.

Invariant. Such a commit is acknowledged and in the log, and a puller that had come further never
gets it: so it is kept until somebody has decided about it, over every restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from binlogd.binlog import Late
from binlogd.pump.shard.shard import Shard
from binlogd.tso import Tso


class LateWatch:
    """What has come late since it was last asked, whatever is decided about it."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._seen = [shard.filer.late_commits for shard in shards]

    def news(self) -> Sequence[Late]:
        """The newest of each shard, in the order in which they were filed; cheap."""
        found: list[Late] = []
        for number, shard in enumerate(self._shards):
            filer = shard.filer
            new, self._seen[number] = filer.late_commits - self._seen[number], filer.late_commits
            if new:
                rows = list(filer.newest_late)[-new:]
                found += [Late(shard.name, each.start_ts, each.commit_ts) for each in rows]
        return found


class LateCommits:
    """What came below its shard's watermark, and is not decided about."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    @property
    def sources(self) -> Sequence[str]:
        """The names of the shards."""
        return [shard.name for shard in self._shards]

    def unresolved(self) -> Sequence[Late]:
        """The first of each shard, as many as are held in memory; cheap when there is none."""
        return [
            Late(shard.name, each.start_ts, each.commit_ts)
            for shard in self._shards
            for each in shard.filer.late
        ]

    async def resolve(self, commit_tss: Collection[Tso]) -> None:
        """These are dealt with, durably. Raises IndexUnavailable or CorruptIndex."""
        for shard in self._shards:
            await shard.filer.resolve_late(commit_tss)
