"""What goes wrong after a snapshot is published, or while it is looked at."""

from __future__ import annotations

from binlogd.errors import BinlogdError


class LakeError(BinlogdError):
    """A table of a lake that could not be committed; the snapshot itself is published."""

    def __init__(self, lake: str, table: str, reason: str) -> None:
        super().__init__(
            f"{lake} table {table}: {reason}; the snapshot is published, and the same export again"
            " goes on with its tables"
        )
