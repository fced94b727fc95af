"""Turns the order binlogs were written into a watermark that pullers may read up to.

Invariant I4. When the watermark is W, every transaction with commit_ts <= W has been given to the
sorter, and W never falls.
Why it holds. TiDB asks for a commit_ts only after its prewrite is durable here. If a commit c <= W
came later, its prewrite stood, in the order of the log, before whatever raised the mark to W; and
nothing behind an open prewrite raises the mark. The same holds for a *witness*: a timestamp that is
known to be handed out, by whichever shard, before anything that is given to this sorter later.

The order is kept as a list of the open prewrites alone. All that stands between two of them is one
number, the largest timestamp there; so memory follows the open transactions, not the waiting ones.

Source: tidb-binlog pump/storage/sorter.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from binlogd.log.pointer import Place, Spot, ValuePointer
from binlogd.tso import NO_TS, Tso


class Open:
    """A prewrite without an outcome. `since_s` is when it came, by the caller's clock."""

    __slots__ = ("before", "behind", "high", "is_doubted", "since_s", "spot", "start_ts")

    def __init__(self, start_ts: Tso, spot: Spot, since_s: float, before: Open | None) -> None:
        self.start_ts = start_ts
        self.spot = spot
        self.since_s = since_s
        self.high = NO_TS  # the largest timestamp behind it and before the next open prewrite
        self.before = before
        self.behind: Open | None = None
        self.is_doubted = False  # a Rollback came, and somebody can tell whether it is true

    @property
    def place(self) -> Place:
        """Where it is read."""
        return Place(*self.spot)


OUTCOMES_KEPT_MAX = 32_768


class Sorter:
    """Pairs prewrites with outcomes. Pure: the caller owns the clock, the log and the queue."""

    def __init__(
        self,
        *,
        watermark: Tso = NO_TS,
        outcomes_kept: int = OUTCOMES_KEPT_MAX,
        believes_rollbacks: bool = True,
    ) -> None:
        self.watermark = watermark
        self._believes_rollbacks = believes_rollbacks
        self._doubted: dict[Tso, Open] = {}
        self._open: dict[Tso, Open] = {}
        self.oldest: Open | None = None
        """The prewrite that holds the watermark, if one does."""
        self._last: Open | None = None
        # behind a Rollback, with its prewrite's place
        self._outcomes: dict[Tso, Spot | None] = {}
        self._outcomes_kept = outcomes_kept

    def prewrite(self, start_ts: Tso, spot: Spot, now_s: float) -> None:
        """A prewrite, in the order of the log.

        A repeated one changes nothing: the first stands further ahead, and one that comes behind
        its own outcome has nothing to wait for.
        """
        if start_ts in self._open or start_ts in self._outcomes:
            return
        last = self._last
        opened = Open(start_ts, spot, now_s, last)
        if last is None:
            self.oldest = opened
        else:
            last.behind = opened
        self._last = opened
        self._open[start_ts] = opened

    def outcome(self, start_ts: Tso, commit_ts: Tso) -> Spot | None:
        """A Commit, or a Rollback (commit_ts 0), in the order of the log.

        Returns where the prewrite stands, or None if that is not known, as of a repeated Commit:
        places of all that is settled would take twice the memory. A Commit may follow a
        Rollback, which only says that the writer gave up: unless Rollbacks are believed, one does
        not close its prewrite, which is `doubted` from then on.
        """
        if not commit_ts and not self._believes_rollbacks and start_ts in self._open:
            opened = self._doubted[start_ts] = self._open[start_ts]
            opened.is_doubted = True
            return None
        spot = self.settle(start_ts) or self._outcomes.pop(start_ts, None)
        self._remember(start_ts, None if commit_ts else spot)
        if commit_ts:
            self.witness(commit_ts)
        return spot

    def witness(self, ts: Tso) -> None:
        """A timestamp that was handed out before anything given to the sorter from now on."""
        last = self._last
        if last is None:
            if ts > self.watermark:
                self.watermark = ts
        elif ts > last.high:
            last.high = ts

    def settle(self, start_ts: Tso) -> Spot | None:
        """Stops waiting for an outcome, which is known to be in the log or never to come."""
        settled = self._open.pop(start_ts, None)
        if settled is None:
            return None
        if settled.is_doubted:
            del self._doubted[start_ts]
        before, behind = settled.before, settled.behind
        if behind is None:
            self._last = before
        else:
            behind.before = before
        if before is None:
            self.oldest = behind
            if settled.high > self.watermark:
                self.watermark = settled.high
        else:
            before.behind = behind
            if settled.high > before.high:
                before.high = settled.high
        return settled.spot

    def undecided(self, end: ValuePointer) -> ValuePointer:
        """The first prewrite whose fate is open, or the end of the log: the Commits of those before
        it are all in the log."""
        return end if self.oldest is None else ValuePointer(*self.oldest.spot[:2])

    @property
    def open_count(self) -> int:
        """How many prewrites wait for their outcome."""
        return len(self._open)

    def is_open(self, start_ts: Tso) -> bool:
        """Whether this prewrite waits for its outcome."""
        return start_ts in self._open

    def waiting_since(self, before_s: float) -> Iterator[Open]:
        """The open prewrites that came before `before_s`, oldest first."""
        opened = self.oldest
        while opened is not None and opened.since_s <= before_s:
            yield opened
            opened = opened.behind

    def doubted(self) -> Iterator[Open]:
        """The open prewrites with a Rollback that nobody has confirmed, in the order of those."""
        yield from self._doubted.values()

    def _remember(self, start_ts: Tso, spot: Spot | None) -> None:
        self._outcomes[start_ts] = spot
        if len(self._outcomes) > self._outcomes_kept:  # many at once: see the window's prewrites
            for oldest in list(islice(self._outcomes, 1 + (self._outcomes_kept >> 5))):
                del self._outcomes[oldest]
