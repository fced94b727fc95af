"""slowChaser: what happens when the index is slower than the log.

The queue between log and index is a cache of the log's tail. As long as the next record to file is
in it, the index is fed from memory. When the index falls so far behind that the record fell out of
the queue, it is read from the log again: that is the cache miss, and the chaser is *on* from then
until the index has caught up. Writers never wait for the index. In one event loop the hand-over has
no race, because nothing waits between looking into the queue and taking from it; so there is no
write lock, and no cool-down between attempts to go back, as the original needs them.

Source: tidb-binlog pump/storage/chaser.go (name, thresholds, counters).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from binlogd.pump.log.entry import Entry

TURN_ON_AFTER_S = 3.0
CAUGHT_UP_WITHIN_S = 1.0


class Tail:
    """The newest entries that are not filed yet, at most `entries_max`; older ones fall out."""

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=entries_max)
        self.appended = 0
        """Records given so far; the sequence number of the next one."""
        self.filed_count = 0
        """Records filed so far."""

    def extend(self, entries: Sequence[Entry]) -> None:
        """Takes what was logged, in the order of the log."""
        self._entries.extend(entries)
        self.appended += len(entries)

    def waiting(self) -> int:
        """How many records are not filed yet, in the queue or fallen out of it."""
        return self.appended - self.filed_count

    def missing(self) -> int:
        """How many of them must be read from the log before the queue goes on."""
        return self.waiting() - len(self._entries)

    def first(self, limit: int) -> list[Entry]:
        """The next entries to file; they stay until `filed`. Only when none is missing."""
        assert self.missing() == 0, "records that fell out of the queue come first"
        return list(islice(self._entries, limit))

    def filed(self, count: int) -> None:
        """Takes note that the next `count` records are in the index.

        Records may have fallen out while they were being filed, so the queue is cut to what is
        still waiting.
        """
        self.filed_count += count
        assert self.filed_count <= self.appended
        for _ in range(len(self._entries) - self.waiting()):
            self._entries.popleft()


class ChaserStatistics(msgspec.Struct, frozen=True):
    """`catch_ups` counts reads of the log, `records_read` what they gave to the index."""

    is_on: bool
    turned_on: int
    catch_ups: int
    recoveries: int
    records_read: int


class SlowChaser:
    """Whether the index is fed from the log or from memory, and how often it changed."""

    def __init__(self, *, turn_on_after_s: float = TURN_ON_AFTER_S) -> None:
        self._turn_on_after_s = turn_on_after_s
        self.is_on = False
        """Whether the index is too slow for the queue."""
        self._turned_on = self._catch_ups = self._recoveries = self._records_read = 0

    def stalled(self, *, waited_s: float) -> bool:
        """Filing has taken `waited_s` so far. Returns whether this turned the chaser on."""
        return waited_s >= self._turn_on_after_s and self._turn_on()

    def missed(self) -> bool:
        """The next record fell out of the queue. Returns whether this turned the chaser on."""
        self._catch_ups += 1
        return self._turn_on()

    def read(self, records: int) -> None:
        """The log gave these records to the index."""
        self._records_read += records

    def caught_up(self, *, took_s: float) -> bool:
        """Everything was filed, the last batch in `took_s`. Returns whether this turned it off."""
        if not self.is_on or took_s >= CAUGHT_UP_WITHIN_S:
            return False
        self.is_on = False
        self._recoveries += 1
        return True

    def statistics(self) -> ChaserStatistics:
        """How it stands."""
        return ChaserStatistics(
            is_on=self.is_on,
            turned_on=self._turned_on,
            catch_ups=self._catch_ups,
            recoveries=self._recoveries,
            records_read=self._records_read,
        )

    def _turn_on(self) -> bool:
        if self.is_on:
            return False
        self.is_on = True
        self._turned_on += 1
        return True
