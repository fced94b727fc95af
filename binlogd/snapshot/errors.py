"""What goes wrong with an export, after it is published, or while it is looked at."""

from __future__ import annotations

from binlogd.errors import GaveUp


class LakeError(GaveUp):
    """A table of a lake that could not be committed; the snapshot itself is published."""

    def __init__(self, lake: str, table: str, reason: str) -> None:
        super().__init__(
            f"{lake} table {table}: {reason}",
            todo="the snapshot is published, and the same export again goes on with its tables",
        )


class TooLargePiece(GaveUp):
    """Rows of keys that are folded together are more than what can be held together."""

    def __init__(self, table: str, changes: int, size: int, size_max: int) -> None:
        super().__init__(
            f"{table}: {changes:,} changes of its rows, with others {size:,} bytes, are to be"
            f" folded together, and {size_max:,} bytes can be",
            todo="export in steps, an earlier moment first (--as-of, --to), and then from there on"
            " (--base, --from)",
        )
