"""Commits as the rows of an index tell them. No I/O, made to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from binlogd.log.pointer import FileId, Place
from binlogd.log.record import HEADER_BYTES
from binlogd.tso import Tso


class FoundCommit:
    """A commit (or a fake, start_ts == commit_ts) and where its prewrite stands, if it is known.

    `whole_bytes` is what both take in the log.
    """

    def __init__(self, commit_ts: Tso, start_ts: Tso, place: Place, prewrite: Place | None) -> None:
        self.commit_ts = commit_ts
        self.start_ts = start_ts
        self.place = place
        self.prewrite = prewrite
        self.whole_bytes = place.length + HEADER_BYTES
        if prewrite is not None:
            self.whole_bytes += prewrite.length + HEADER_BYTES


def found_commits(rows: Sequence[tuple[Any, ...]]) -> list[FoundCommit]:
    """Rows of commit_ts, start_ts, the place of the commit and that of its prewrite, which may be
    three times nothing."""
    found = []
    for row in rows:
        prewrite = None
        if row[5] is not None:
            prewrite = Place(FileId(row[5]), row[6], row[7])
        place = Place(FileId(row[2]), row[3], row[4])
        found.append(FoundCommit(Tso(row[0]), Tso(row[1]), place, prewrite))
    return found
