"""Which relay files nobody needs any more.

Invariant. A reader that starts behind the saved checkpoint always finds a file whose head lies at
or before it. Why it holds: a file goes only when the *next* one already begins at or before the
saved checkpoint, and files go oldest first. The saved checkpoint, not the applied one: what is
applied but not saved is read again after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class RelayFile:
    """A file of the log. It holds transactions with a commit_ts above `base_ts`.

    `starts_chain`: it does not continue the file before it, so a reader never crosses from there.
    """

    suffix: int
    base_ts: Tso
    starts_chain: bool
    size_bytes: int


def deletable(files: Sequence[RelayFile], saved_ts: Tso) -> list[int]:
    """Numbers of the files that may go, oldest first; never the newest file.

    `files` in order of their numbers; `saved_ts` is the commit_ts of the checkpoint that is stored.
    """
    needed = 0
    for number, (_, following) in enumerate(pairwise(files)):
        if following.base_ts <= saved_ts:
            needed = number + 1
    return [file.suffix for file in files[:needed]]
