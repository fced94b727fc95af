"""Where something stands in a relay log, and how its files are called."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"relay-(\d{16})\.log")


class RelayPos(NamedTuple):
    """A byte of the log: `offset` in the file of that number. Ordered as the log is written."""

    suffix: int
    offset: int


def file_name(suffix: int) -> str:
    """The name of a file; names sort as the numbers do."""
    return f"relay-{suffix:016d}.log"


def suffix_of(name: str) -> int | None:
    """The number of a file, None for a name that is no relay file's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
