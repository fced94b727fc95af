"""The newest commits in memory, so that a puller who keeps up never waits for index or disk.

Invariant. Every commit with commit_ts > floor that the shard has logged since it was opened is in
the window. What is pushed out raises the floor; below it, the index answers.
Limits in bytes and in commits, so it never grows with a slow puller or a slow index.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Any, Final

import msgspec

from binlogd.log.pointer import Place, Spot
from binlogd.tso import MAX_TS, Tso

_OVERHEAD_BYTES: Final = 300  # of the objects around two payloads, roughly


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


class Window:
    """Commits by (commit_ts, start_ts), and prewrites that wait for theirs."""

    def __init__(self, *, floor: Tso, bytes_max: int, commits_max: int) -> None:
        self.floor = self._newest = floor
        self._bytes_max = bytes_max
        self._commits_max = commits_max
        self._keys: list[tuple[Tso, Tso]] = []
        self._begin = 0  # keys before it were pushed out
        self._kept: dict[tuple[Tso, Tso], Kept] = {}
        self._kept_bytes = 0
        self._prewrites: OrderedDict[Tso, bytes] = OrderedDict()
        self._prewrite_bytes = 0

    def prewrite(self, start_ts: Tso, payload: bytes) -> None:
        """Keeps a prewrite until its outcome comes, or until there is no more room."""
        if start_ts in self._prewrites or len(payload) > self._bytes_max >> 1:
            return  # a large one would drive out all the others
        self._prewrites[start_ts] = payload
        self._prewrite_bytes += len(payload) + _OVERHEAD_BYTES
        while self._prewrite_bytes > self._bytes_max:
            _, dropped = self._prewrites.popitem(last=False)
            self._prewrite_bytes -= len(dropped) + _OVERHEAD_BYTES

    def rollback(self, start_ts: Tso) -> None:
        """Forgets a prewrite."""
        if start_ts in self._prewrites:
            self._drop_prewrite(start_ts)

    def commit(self, commit_ts: Tso, start_ts: Tso, payload: bytes, spot: Spot | None) -> None:
        """Keeps a commit, together with its prewrite; `spot` is where that stands in the log."""
        prewrite = self._drop_prewrite(start_ts) if start_ts in self._prewrites else None
        key: Any = (commit_ts, start_ts)  # one object of it, compiled too
        place: Place | None = None
        size = len(payload) + _OVERHEAD_BYTES
        if prewrite is not None:
            size += len(prewrite)
        elif spot is not None:
            place = Place(*spot)
        if commit_ts > self._newest:
            self._newest = commit_ts
            self._keys.append(key)
        elif commit_ts <= self.floor or key in self._kept:
            return
        else:
            insort(self._keys, key, lo=self._begin)
        self._kept[key] = Kept(commit_ts, start_ts, payload, prewrite, place)
        self._kept_bytes += size
        while self._kept_bytes > self._bytes_max or len(self._kept) > self._commits_max:
            self._push_out()

    def has(self, commit_ts: Tso, start_ts: Tso) -> bool:
        """Whether this very commit is kept."""
        return (commit_ts, start_ts) in self._kept

    def after(
        self, after: Tso, *, upto: Tso, commits_max: int, bytes_max: int
    ) -> tuple[list[Kept], Tso]:
        """Commits with after < commit_ts <= upto, in order, and how far that reaches.

        Those of one commit_ts stay together, so the limits may be exceeded by a few; at least one
        is given. Prewrites count wherever they are. `after` must not be below the floor.
        """
        assert after >= self.floor, "the window does not reach back so far"
        found: list[Kept] = []
        size = 0
        keys = self._keys
        for at in range(bisect_right(keys, (after, MAX_TS), lo=self._begin), len(keys)):
            key = keys[at]
            if key[0] > upto:
                break
            if (size >= bytes_max or len(found) >= commits_max) and key[0] != found[-1].commit_ts:
                return found, found[-1].commit_ts
            kept = self._kept[key]
            found.append(kept)
            size += kept.whole_bytes
        return found, upto

    def _push_out(self) -> None:
        key = self._keys[self._begin]
        self._begin += 1
        self._kept_bytes -= _size(self._kept.pop(key))
        self.floor = key[0]
        if self._begin > 512 and self._begin * 2 > len(self._keys):
            del self._keys[: self._begin]
            self._begin = 0

    def _drop_prewrite(self, start_ts: Tso) -> bytes:
        payload = self._prewrites.pop(start_ts)
        self._prewrite_bytes -= len(payload) + _OVERHEAD_BYTES
        return payload


def _size(kept: Kept) -> int:
    return len(kept.payload) + len(kept.prewrite or b"") + _OVERHEAD_BYTES
