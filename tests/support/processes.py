"""The processes of this machine that a test looks for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def children_of(parents: Collection[int], word: bytes) -> list[int]:
    """Those with a word in their command line."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) in parents and word in command:
            found.append(int(status.parent.name))
    return found
