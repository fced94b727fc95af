"""Keeps the row index beside a running Pump, so that a look-up need not read the whole log.

The work is done by a child process (tools/row_indexing.py) that gives way to everything else: a
Pump that is busy is not held up, and the index follows when there is time. A look-up reads what is
not indexed yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import Unavailable
from binlogd.host.child import answer_of

NEW_BYTES = 8 << 20
"""So much is written, or deleted, before a child is worth its start."""
LOOK_S = 10.0
ROUND_BYTES = 128 << 20
ROUND_S = 1800.0
"""For a round of a child that gives way to all others; it takes a minute where it need not."""
BACKOFF_S = 300.0
_JOB = "binlogd.tools.row_indexing"

log = structlog.get_logger(__name__)


class Indexing(msgspec.Struct, frozen=True):
    """What a child is told."""

    data_dir: str
    bytes_max: int = ROUND_BYTES
    memory_bytes_max: int = 512 << 20


class RowIndexer:
    """`run` is its task; `log_bytes` says how large the log is."""

    def __init__(
        self, data_dir: Path, log_bytes: Callable[[], int], new_bytes: int = NEW_BYTES
    ) -> None:
        self._data_dir, self._log_bytes, self._new_bytes = data_dir, log_bytes, new_bytes

    async def run(self) -> None:
        """Until cancelled."""
        done = left = 0
        while True:  # until cancelled, when the node stops
            size = self._log_bytes()
            if left >= self._new_bytes or abs(size - done) >= self._new_bytes:
                before, done = left, size
                try:
                    left = await self._round()
                except Unavailable as error:
                    log.warning("row_index_failed", data_dir=str(self._data_dir), cause=str(error))
                    await asyncio.sleep(BACKOFF_S)
                if left == before:  # it waits for the DDL history, or cannot
                    left = 0
            if left < self._new_bytes:
                await asyncio.sleep(LOOK_S)

    async def _round(self) -> int:
        asked = Indexing(str(self._data_dir))
        answer = await answer_of(
            _JOB,
            msgspec.json.encode(asked),
            timeout_s=ROUND_S,
            answer_bytes_max=100,
        )
        return msgspec.json.decode(answer, type=int)
