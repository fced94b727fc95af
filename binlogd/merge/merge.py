"""Many sources, one order of commit_ts.

Invariant. What is popped never lies below what was popped before, and nothing that a source holds
at or below the popped `resolved_ts` is still to come. Why it holds: `resolved_ts` is the smallest
promise of all sources, a source's promises never fall, and a source that breaks one is refused.

Sources come and go. One that joins begins at what was popped last, and nothing is popped past it
from then on: whoever asks for a commit_ts after its prewrite was acknowledged there gets one above
every promise made before. One that leaves holds nobody up; what it has delivered is still popped.

Binlogs with equal commit_ts leave in one batch, by start_ts:
 * a fake one gives way to a real one (the watermark says the same);
 * with equal start_ts it is one transaction that was written twice: the first is kept, the rest are
   counted;
 * with different start_ts all are kept. TiDB hands out no commit_ts twice, so it should not be, but
   an order that loses nothing beats one that guesses.
Source: tidb-binlog drainer/merge.go, which drops the second of equal commit_ts, and logs and drops
what comes too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.errors import PromiseBroken
from binlogd.ports import SourceState
from binlogd.tso import NO_TS, Tso

_COMMIT_TS, _BY_TIME = attrgetter("commit_ts"), attrgetter("commit_ts", "start_ts")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far one source has come, and what of it waits for the others."""

    name: str
    resolved_ts: Tso
    binlogs_waiting: int
    bytes_waiting: int
    state: SourceState = SourceState.ONLINE
    silent_s: float = 0.0
    """Since it promised something."""
    trouble: str = ""
    """Why it cannot be pulled right now."""


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """Counters since the merge was made; `blocking` names the source that all others wait for."""

    resolved_ts: Tso
    duplicates_dropped: int
    blocking: str
    sources: tuple[SourcePosition, ...]
    newest_commit_ts: Tso = NO_TS
    """The largest of a binlog that is not fake, of any source."""
    blocked_s: float = 0.0
    """For how long the others have been waiting for `blocking`."""


class MergeSource:
    """What one source has promised, and what of it waits for the others."""

    __slots__ = ("bytes_waiting", "is_leaving", "resolved_ts", "waiting")

    def __init__(self, after: Tso) -> None:
        self.resolved_ts = after
        self.is_leaving = False
        self.waiting: deque[CommittedBinlog] = deque()
        self.bytes_waiting = 0

    def take(self, up_to: Tso) -> list[CommittedBinlog]:
        """What waits up to there."""
        taken: list[CommittedBinlog] = []
        waiting = self.waiting
        while waiting and waiting[0].commit_ts <= up_to:
            binlog = waiting.popleft()
            self.bytes_waiting -= len(binlog.payload)
            taken.append(binlog)
        return taken


class Merge:
    """Fed with batches of named sources, polled for batches of the whole."""

    def __init__(self, names: Iterable[str], after: Tso) -> None:
        self._sources = {name: MergeSource(after) for name in names}
        self.popped_ts = self._newest_ts = after
        """Up to where everything was popped."""
        self._duplicates = 0

    def join(self, name: str) -> MergeSource:
        """Takes in a source; what it is to deliver lies above what it has promised."""
        known = self._sources.setdefault(name, MergeSource(self.popped_ts))
        known.is_leaving = False
        return known

    def leave(self, name: str) -> None:
        """Waits for a source no longer, and forgets it when all that it delivered is popped."""
        self._sources[name].is_leaving = True
        self._forget_the_gone()

    def push(self, name: str, pulled: Pulled) -> None:
        """Takes a batch of a source. Raises PromiseBroken."""
        source = self._sources[name]
        last = source.resolved_ts
        for binlog in pulled.binlogs:
            commit_ts = binlog.commit_ts
            if commit_ts < last or commit_ts <= source.resolved_ts:
                raise PromiseBroken(name, binlog.start_ts, commit_ts, last)
            last = commit_ts
            source.waiting.append(binlog)
            source.bytes_waiting += len(binlog.payload)
        source.resolved_ts = max(pulled.resolved_ts, last)
        if last > self._newest_ts:
            newest = next((each for each in reversed(pulled.binlogs) if not each.is_fake), None)
            if newest is not None:
                self._newest_ts = max(self._newest_ts, newest.commit_ts)

    def pop(self) -> Pulled | None:
        """Everything up to the smallest promise of all sources; None when that has not moved."""
        up_to = self._smallest_promise()
        if up_to <= self.popped_ts:
            return None
        gathered: list[CommittedBinlog] = []
        holders = 0
        for source in self._sources.values():
            taken = source.take(up_to)
            holders += bool(taken)
            gathered += taken
        if holders > 1:
            gathered.sort(key=_COMMIT_TS)  # k sorted runs: the sort merges them
        self._forget_the_gone()
        binlogs = self._without_repeats(gathered)
        self.popped_ts = up_to
        return Pulled(binlogs, up_to)

    def statistics(self) -> MergeStatistics:
        """How it stands; cheap."""
        return MergeStatistics(
            resolved_ts=self.popped_ts,
            duplicates_dropped=self._duplicates,
            blocking=self.blocking,
            sources=tuple(
                SourcePosition(name, each.resolved_ts, len(each.waiting), each.bytes_waiting)
                for name, each in self._sources.items()
            ),
            newest_commit_ts=self._newest_ts,
        )

    @property
    def blocking(self) -> str:
        """The source with the smallest promise; "" where there is none to wait for."""
        staying = [name for name, each in self._sources.items() if not each.is_leaving]
        return min(staying, key=lambda name: self._sources[name].resolved_ts, default="")

    def _smallest_promise(self) -> Tso:
        staying = [each.resolved_ts for each in self._sources.values() if not each.is_leaving]
        if staying:
            return min(staying)
        return max((each.resolved_ts for each in self._sources.values()), default=NO_TS)

    def _forget_the_gone(self) -> None:
        gone = [name for name, each in self._sources.items() if each.is_leaving]
        for name in gone:
            if not self._sources[name].waiting:
                del self._sources[name]

    def _without_repeats(self, ordered: list[CommittedBinlog]) -> list[CommittedBinlog]:
        last = NO_TS
        for binlog in ordered:  # a set of them takes twice as long
            if binlog.commit_ts == last:
                break
            last = binlog.commit_ts
        else:  # as nearly always
            return ordered
        kept: list[CommittedBinlog] = []
        for binlog in sorted(ordered, key=_BY_TIME):
            # Within a commit_ts start_ts rises, so a fake (start_ts == commit_ts) comes last.
            if kept and kept[-1].commit_ts == binlog.commit_ts:
                if kept[-1].start_ts == binlog.start_ts:
                    self._duplicates += not binlog.is_fake
                    continue
                if binlog.is_fake:
                    continue
            kept.append(binlog)
        return kept
