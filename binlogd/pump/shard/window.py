"""The newest commits in memory, so that a puller who keeps up never waits for index or disk.

Invariant. Every commit with commit_ts > floor that the shard has logged since it was opened is in
the window. What is pushed out raises the floor; below it, the index answers.
Limits in bytes and in commits, so it never grows with a slow puller or a slow index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from binlogd.log.pointer import Place, Spot
from binlogd.tso import MAX_TS, NO_TS, Tso

_OVERHEAD_BYTES: Final = 300  # of the objects around two payloads, roughly
_NEAR: Final = 64  # what comes out of order is seldom later than by so many commits
_order_of = attrgetter("commit_ts", "start_ts")


class Kept(msgspec.Struct, gc=False):
    """A commit, or a fake (start_ts == commit_ts), and its prewrite as far as it is known.

    `prewrite` is None when its bytes are no longer in memory; `place` says where they are then, and
    only then, None if the shard does not know that either.
    """

    commit_ts: Tso
    start_ts: Tso
    payload: bytes
    prewrite: bytes | None
    place: Place | None

    @property
    def whole_bytes(self) -> int:
        """What it takes to hand it out: itself and its prewrite, wherever that is."""
        if self.prewrite is not None:
            return len(self.payload) + len(self.prewrite)
        return len(self.payload) + (0 if self.place is None else self.place.length)


_GONE: Final = Kept(NO_TS, NO_TS, b"", None, None)


class Window:
    """Commits by (commit_ts, start_ts), and prewrites that wait for theirs."""

    def __init__(self, *, floor: Tso, bytes_max: int, commits_max: int) -> None:
        self.floor = self._newest = floor
        self._bytes_max = bytes_max
        self._commits_max = commits_max
        self._kept: list[Kept] = []  # in order
        self._begin = 0  # those before it were pushed out
        self._kept_bytes = 0
        self._prewrites: dict[Tso, bytes] = {}
        self._prewrite_bytes = 0

    def prewrite(self, start_ts: Tso, payload: bytes) -> None:
        """Keeps a prewrite until its outcome comes, or until there is no more room."""
        if start_ts in self._prewrites or len(payload) > self._bytes_max >> 1:
            return  # a large one would drive out all the others
        self._prewrites[start_ts] = payload
        self._prewrite_bytes += _size(payload)
        while self._prewrite_bytes > self._bytes_max:
            # many at once: a dict seeks its first entry behind all that were dropped
            for oldest in list(islice(self._prewrites, 1 + (len(self._prewrites) >> 5))):
                self._drop_prewrite(oldest)

    def rollback(self, start_ts: Tso) -> None:
        """Forgets a prewrite."""
        if start_ts in self._prewrites:
            self._drop_prewrite(start_ts)

    def commit(self, commit_ts: Tso, start_ts: Tso, payload: bytes, spot: Spot | None) -> None:
        """Keeps a commit, together with its prewrite; `spot` is where that stands in the log."""
        prewrite = self._drop_prewrite(start_ts) if start_ts in self._prewrites else None
        at = len(self._kept)
        if commit_ts > self._newest:
            self._newest = commit_ts
        elif commit_ts <= self.floor:
            return
        else:
            at, is_there = self._found(commit_ts, start_ts)
            if is_there:
                return
        place = Place(*spot) if prewrite is None and spot is not None else None
        self._kept.insert(at, Kept(commit_ts, start_ts, payload, prewrite, place))
        self._kept_bytes += _size(payload, prewrite)
        count = len(self._kept) - self._begin
        while self._kept_bytes > self._bytes_max or count > self._commits_max:
            self._push_out()
            count -= 1

    def has(self, commit_ts: Tso, start_ts: Tso) -> bool:
        """Whether this very commit is kept."""
        return self._found(commit_ts, start_ts)[1]

    def after(
        self, after: Tso, *, upto: Tso, commits_max: int, bytes_max: int
    ) -> tuple[list[Kept], Tso]:
        """Commits with after < commit_ts <= upto, in order, and how far that reaches.

        Those of one commit_ts stay together, so the limits may be exceeded by a few; at least one
        is given. Prewrites count wherever they are. `after` must not be below the floor.
        """
        assert after >= self.floor, "the window does not reach back so far"
        found: list[Kept] = []
        size, reached = 0, after
        begin = bisect_right(self._kept, (after, MAX_TS), lo=self._begin, key=_order_of)
        for at in range(begin, len(self._kept)):
            kept = self._kept[at]
            commit_ts = kept.commit_ts
            if commit_ts > upto:
                break
            if (size >= bytes_max or len(found) >= commits_max) and commit_ts > reached:
                return found, reached
            reached = commit_ts
            found.append(kept)
            size += kept.whole_bytes
        return found, upto

    def _found(self, commit_ts: Tso, start_ts: Tso) -> tuple[int, bool]:
        """Where this commit stands, or would, and whether it does."""
        wanted, near = (commit_ts, start_ts), len(self._kept) - _NEAR
        is_near = near > self._begin and self._kept[near].commit_ts < commit_ts
        at = bisect_left(self._kept, wanted, lo=near if is_near else self._begin, key=_order_of)
        return at, at < len(self._kept) and _order_of(self._kept[at]) == wanted

    def _push_out(self) -> None:
        at, kept = self._begin, self._kept[self._begin]
        self._kept_bytes -= _size(kept.payload, kept.prewrite)
        self._kept[at] = _GONE
        self.floor = kept.commit_ts
        self._begin += 1
        if self._begin > 512 and self._begin * 2 > len(self._kept):
            del self._kept[: self._begin]
            self._begin = 0

    def _drop_prewrite(self, start_ts: Tso) -> bytes:
        payload = self._prewrites.pop(start_ts)
        self._prewrite_bytes -= _size(payload)
        return payload


def _size(payload: bytes, prewrite: bytes | None = None) -> int:
    return len(payload) + len(prewrite or b"") + _OVERHEAD_BYTES
