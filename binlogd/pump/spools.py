"""Large Prewrites: written to files of their own while they come, which become segments.

Invariant I1 holds as for all others: the answer comes after everything is durable. A call that ends
early leaves nothing in the log, and keeps nobody from it while its bytes come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

from binlogd.binlog import BinlogType
from binlogd.errors import BinlogdError, MalformedBinlog, RecordTooLarge
from binlogd.ports import TsoSource
from binlogd.pump.admission import Admission
from binlogd.pump.log.spool import Spool
from binlogd.pump.route import Routing
from binlogd.pump.shard.shard import Shard
from binlogd.tso import Tso
from binlogd.wire.outline import Outline


class Spools:
    """Those of a Pump. `accepted` and `refused` count them."""

    def __init__(
        self,
        shards: Sequence[Shard],
        routing: Routing,
        admission: Admission,
        tso: TsoSource,
        look_ahead: Callable[[], None],
        look_at_space: Callable[[], Awaitable[None]],
    ) -> None:
        """`look_ahead` brings the horizon of `admission` up to now, `look_at_space` its room."""
        self._shards, self._routing, self._admission = shards, routing, admission
        self._tso, self._look_ahead, self._look_at_space = tso, look_ahead, look_at_space
        self._numbers = count(1)
        self._coming: dict[Spool, int] = {}  # and how large each will be
        self.accepted = self.refused = 0

    @property
    def bytes_coming(self) -> int:
        """What was announced and has not come."""
        return sum(size - spool.payload_bytes for spool, size in self._coming.items())

    @asynccontextmanager
    async def begun(self, prewrite: Outline) -> AsyncIterator[Spool]:
        """Where its payload is written to, before `write`; dropped at the end, unless that has it.

        Raises as `Pump.write` refuses it, and DiskFull where it would not leave the reserve.
        """
        start_ts, size, admission = self._admitted(prewrite), prewrite.whole_bytes, self._admission
        shard = self._shards[self._routing.shard_of(start_ts)]
        spool = await shard.log.spool(f"{start_ts}-{next(self._numbers)}")
        try:
            await self._look_at_space()
            coming_bytes = self.bytes_coming + size
            if admission.free_bytes - coming_bytes <= admission.free_bytes_min:
                self.refused += 1
                raise admission.no_space(coming_bytes)
            self._coming[spool] = size
            yield spool
        finally:
            self._coming.pop(spool, None)
            if not spool.is_given:
                await spool.drop()

    async def write(self, prewrite: Outline, spool: Spool) -> None:
        """Returns when it is durable. Raises why it was refused, or could not be written."""
        start_ts = self._admitted(prewrite)
        assert spool.payload_bytes == prewrite.whole_bytes, "a spool that is not whole"
        await spool.finish()
        self._tso.observe(start_ts)
        self.accepted += 1
        await self._shards[self._routing.shard_of(start_ts)].put_spool(spool, start_ts)

    def _admitted(self, prewrite: Outline) -> Tso:
        """Its start_ts. Raises why it is not taken now."""
        self._look_ahead()
        limit = self._admission.record_bytes_max
        try:
            if prewrite.whole_bytes > limit:
                raise RecordTooLarge(prewrite.whole_bytes, limit)
            item = self._admission.item(prewrite)
            if item is None or item.tp != BinlogType.PREWRITE:
                raise MalformedBinlog("a binlog with rows that is no Prewrite")
        except BinlogdError:
            self.refused += 1
            raise
        return item.start_ts
