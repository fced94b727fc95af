"""The fate of transactions behind a PD that has a TiKV, or stands in for one.

A binlogd that stands in for PD knows no TiKV: a TiDB then keeps its data itself, or there is only a
writer of somebody's own. A TiDB can be asked in its place where the configuration names one; else
age decides, if an operator says that it may, and a Rollback of the writer is believed, as it is
standalone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from binlogd.ports import OpenPrewrite, TxnStatus, TxnStatusSource


class TikvOrElse:
    """A TxnStatusSource: TiKV where there is one."""

    def __init__(
        self,
        has_tikv: Callable[[], Awaitable[bool]],
        tikv: TxnStatusSource,
        otherwise: TxnStatusSource,
    ) -> None:
        """`has_tikv` asks PD; a cluster that has one keeps it."""
        self._has_tikv, self._tikv, self._otherwise = has_tikv, tikv, otherwise
        self._is_known = False

    @property
    def verifies_rollbacks(self) -> bool:
        """As far as there is somebody to ask."""
        return self._tikv.verifies_rollbacks

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order. Raises UpstreamUnavailable."""
        if not self._is_known:
            self._is_known = await self._has_tikv()
        source = self._tikv if self._is_known else self._otherwise
        return await source.statuses(prewrites)
