"""Looking up transactions in the log of this process, beside everything else that it does.

The reading is a child process (tools/search.py): decoding in a thread would take turns with the
event loop for the interpreter, and a damaged or enormous record would be this process's trouble.
One look-up at a time. Who asks meanwhile waits for a moment, as a former look-up that nobody waits
for any more is ending then, and is refused after it.

So that a look-up need not read the whole log, there is a row index beside it. It is made by a child
process as well (tools/row_indexing.py), which gives way to everything else: a Pump that is busy is
not held up, and the index follows when there is time. A look-up reads what is not indexed yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import ConfigError, Refused, Unavailable
from binlogd.host.child import WRONG, ChildEnded, answer_of
from binlogd.serving.answers import Indexing, LookUp, Question
from binlogd.tso import Tso

LIMIT_MAX = 100
START_S = 10.0
"""For the interpreter to start, on a machine that is busy."""
PATIENCE_S = 2.0
ANSWER_BYTES_MAX = 16 << 20
_JOB = "binlogd.tools.search"


class Finder(msgspec.Struct):
    """Looks through `paths`: a data directory, and a relay log where other Pumps are merged."""

    paths: Sequence[Path]
    patience_s: float = PATIENCE_S
    _turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def find(self, question: Question, *, up_to: Tso) -> LookUp:
        """What was found (tools/search.py makes it); nothing lies behind `up_to`.

        Raises Refused where for `patience_s` another look-up is going on, ConfigError for a
        question that makes no sense, Unavailable when it cannot be answered, Died when whoever
        looked ended as nobody foresaw.
        """
        try:
            async with asyncio.timeout(self.patience_s):
                await self._turn.acquire()
        except TimeoutError:
            raise Refused("another look-up is going on; ask again in some seconds") from None
        asked = msgspec.structs.replace(
            question, stop=min(question.stop, up_to), paths=tuple(map(str, self.paths))
        )
        try:
            answer = await answer_of(
                _JOB,
                msgspec.json.encode(asked),
                timeout_s=asked.seconds + START_S,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except ChildEnded as error:
            raise ConfigError(error.said) if error.code == WRONG else error from None
        finally:
            self._turn.release()
        return msgspec.json.decode(answer, type=LookUp)


NEW_BYTES = 8 << 20
"""So much is written, or deleted, before a child is worth its start."""
LOOK_S = 10.0
ROUND_S = 1800.0
"""For a round of a child that gives way to all others; it takes a minute where it need not."""
BACKOFF_S = 300.0
_INDEXING = "binlogd.tools.row_indexing"

log = structlog.get_logger(__name__)


class RowIndexer:
    """Keeps the row index of a running Pump. `run` is its task; `log_bytes` says how large the log
    is."""

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
            _INDEXING, msgspec.json.encode(asked), timeout_s=ROUND_S, answer_bytes_max=100
        )
        return msgspec.json.decode(answer, type=int)
