"""Commits as the rows of an index tell them, and what a pull makes of some of them: a batch, each
joined with its prewrite. No I/O, made to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from binlogd.binlog import CommittedBinlog
from binlogd.log.pointer import FileId, Spot
from binlogd.log.record import HEADER_BYTES
from binlogd.pump.shard.window import Kept
from binlogd.tso import Tso
from binlogd.wire.joining import join_of


class FoundCommit:
    """A commit (or a fake, start_ts == commit_ts) and where its prewrite stands, if it is known.

    `whole_bytes` is what both take in the log.
    """

    def __init__(self, commit_ts: Tso, start_ts: Tso, place: Spot, prewrite: Spot | None) -> None:
        self.commit_ts = commit_ts
        self.start_ts = start_ts
        self.place = place
        self.prewrite = prewrite
        self.whole_bytes = place[2] + HEADER_BYTES
        if prewrite is not None:
            self.whole_bytes += prewrite[2] + HEADER_BYTES


def found_commits(rows: Sequence[tuple[Any, ...]]) -> list[FoundCommit]:
    """Rows of commit_ts, start_ts, the place of the commit and that of its prewrite, which may be
    three times nothing."""
    found = []
    for row in rows:
        prewrite = None
        if row[5] is not None:
            prewrite = FileId(row[5]), row[6], row[7]
        place = FileId(row[2]), row[3], row[4]
        found.append(FoundCommit(Tso(row[0]), Tso(row[1]), place, prewrite))
    return found


def senseless(rows: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The first row with anything but numbers from 0 on, or nothing in the place of one. Hot."""
    for row in rows:
        for value in row:
            if value is not None and (not isinstance(value, int) or value < 0):
                return row
    return None


AnyCommit = TypeVar("AnyCommit", Kept, FoundCommit)


def cut(commits: list[AnyCommit], reached: Tso, bytes_max: int) -> tuple[list[AnyCommit], Tso]:
    """As many commits as one batch may hold, and how far they reach; those of one commit_ts stay
    together."""
    size = 0
    for at, each in enumerate(commits):
        if size >= bytes_max and each.commit_ts > commits[at - 1].commit_ts:
            return commits[:at], commits[at - 1].commit_ts
        size += each.whole_bytes
    return commits, reached


def apart(
    commits: list[AnyCommit], reached: Tso, *, large_bytes: int, alone: bool
) -> tuple[list[AnyCommit], Tso, int]:
    """The commits before the first one above `large_bytes`, how far they reach, and its size, 0 if
    none is large; with `alone` those of the first commit_ts only, for that is the one announced."""
    if alone and commits:
        first_ts = commits[0].commit_ts
        return [each for each in commits if each.commit_ts == first_ts], first_ts, 0
    for each in commits:
        if each.whole_bytes > large_bytes:
            before = [other for other in commits if other.commit_ts < each.commit_ts]
            return before, Tso(each.commit_ts - 1), each.whole_bytes
    return commits, reached, 0


def lost(kept: Sequence[Kept]) -> list[Kept]:
    """Commits of which nobody knows where their prewrite is."""
    return [
        each
        for each in kept
        if each.prewrite is None and each.place is None and each.start_ts != each.commit_ts
    ]


def in_memory(kept: Sequence[Kept]) -> tuple[list[Kept], list[CommittedBinlog], list[int]]:
    """Commits of a window without the fakes that give way to a commit of their commit_ts, the
    binlogs of these, and the numbers of those whose prewrite is elsewhere, which are their commits
    alone. Hot."""
    commits: list[Kept] = []
    binlogs: list[CommittedBinlog] = []
    elsewhere: list[int] = []
    real: set[Tso] | None = None
    for each in kept:
        start_ts, commit_ts, prewrite = each.start_ts, each.commit_ts, each.prewrite
        if start_ts == commit_ts:
            if real is None:
                real = {other.commit_ts for other in kept if other.start_ts != other.commit_ts}
            if commit_ts in real:
                continue
        elif prewrite is None:
            elsewhere.append(len(commits))
        whole = join_of(start_ts, commit_ts, each.payload, prewrite)
        assert whole is not None, "a window keeps what was admitted under its timestamps"
        commits.append(each)
        binlogs.append(CommittedBinlog(start_ts, commit_ts, whole))
    return commits, binlogs, elsewhere


class BatchReading:
    """What is read of a log for some commits: `places`, and those that have to be joined by who has
    read them: the `large` ones, by their numbers. A fake gives way to a commit of its commit_ts."""

    def __init__(self, found: Sequence[FoundCommit], large_bytes: int) -> None:
        self.commits: list[FoundCommit] = []
        self.orphans: list[FoundCommit] = []
        self.large: list[int] = []
        self.places: list[Spot] = []
        prewrites: list[Spot] = []
        real = {each.commit_ts for each in found if each.start_ts != each.commit_ts}
        for each in found:
            prewrite = each.prewrite
            if each.start_ts == each.commit_ts:
                if each.commit_ts in real:
                    continue
            elif prewrite is None:
                self.orphans.append(each)
                continue
            elif prewrite[2] > large_bytes:
                self.large.append(len(self.commits))
            else:
                prewrites.append(prewrite)
            self.commits.append(each)
            self.places.append(each.place)
        self.places += prewrites

    def joined(self, payloads: list[bytes]) -> list[CommittedBinlog] | Tso:
        """The binlogs, the large ones as their commits alone; or the commit_ts of the first whose
        places have something else."""
        binlogs: list[CommittedBinlog] = []
        at, next_large = len(self.commits), 0
        for number, each in enumerate(self.commits):
            prewrite: bytes | None = None
            if next_large < len(self.large) and self.large[next_large] == number:
                next_large += 1
            elif each.start_ts != each.commit_ts:
                prewrite = payloads[at]
                at += 1
            whole = join_of(each.start_ts, each.commit_ts, payloads[number], prewrite)
            if whole is None:
                return each.commit_ts
            binlogs.append(CommittedBinlog(each.start_ts, each.commit_ts, whole))
        return binlogs
