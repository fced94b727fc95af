"""The fate of transactions behind a PD that has a TiKV, or stands in for one.

A binlogd that stands in for PD knows no TiKV (a TiDB then keeps its data itself, or there is only a
writer of somebody's own). Nobody has records of transactions there, so age decides, if an operator
says that it may, and a Rollback of the writer is believed, as it is standalone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from binlogd.ports import OpenPrewrite, Pending, TxnStatus, TxnStatusSource

log = structlog.get_logger(__name__)


class TikvOrAge:
    """A TxnStatusSource: TiKV where there is one."""

    def __init__(
        self,
        has_tikv: Callable[[], Awaitable[bool]],
        tikv: TxnStatusSource,
        by_age: TxnStatusSource,
    ) -> None:
        """`has_tikv` asks PD; a cluster that has one keeps it."""
        self._has_tikv, self._tikv, self._by_age = has_tikv, tikv, by_age
        self._is_known = False

    @property
    def verifies_rollbacks(self) -> bool:
        """As far as there is somebody to ask."""
        return self._tikv.verifies_rollbacks

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order. Raises UpstreamUnavailable."""
        if not self._is_known:
            self._is_known = await self._has_tikv()
        if self._is_known:
            return await self._tikv.statuses(prewrites)
        log.debug("fates_judged_by_age", prewrites=len(prewrites))
        return [
            Pending(f"{each.reason} (PD has no TiKV to ask)", is_traceless=True)
            if isinstance(each, Pending)
            else each
            for each in await self._by_age.statuses(prewrites)
        ]
