"""The fate of a transaction when there is no TiKV to ask.

Invariant. Nobody is declared rolled back on a guess: a prewrite whose outcome never arrived stays
Pending, and holds up what comes behind it, until an operator has said that age is proof enough
(`abandoned-prewrite = "rollback"`).
Why the age is safe to use then: TiDB gives up sending a Commit after ten minutes, and age is
counted in timestamps of the writers, so a pause of this machine makes no transaction old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from binlogd.ports import OpenPrewrite, Pending, RolledBack, TsoSource, TxnStatus, TxnStatusSource
from binlogd.tso import Tso, physical_ms


class LocalTxnStatus:
    """Answers from age alone; a commit that this process has seen needs no question."""

    def __init__(
        self, tso: TsoSource, *, rolls_back_abandoned: bool, txn_timeout_s: float = 600.0
    ) -> None:
        self._tso = tso
        self._rolls_back = rolls_back_abandoned
        self._timeout_ms = txn_timeout_s * 1000

    @property
    def verifies_rollbacks(self) -> bool:
        """No: it has nothing but the binlogs."""
        return False

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order. Raises UpstreamUnavailable."""
        if not prewrites:
            return []
        now_ms = physical_ms(await self._tso.next())
        return [self._status(prewrite.start_ts, now_ms) for prewrite in prewrites]

    def _status(self, start_ts: Tso, now_ms: int) -> TxnStatus:
        age_ms = now_ms - physical_ms(start_ts)
        if self._rolls_back and age_ms > self._timeout_ms:
            return RolledBack()
        way_out = (
            f"it is given up at an age of {self._timeout_ms / 1000:g} s"
            if self._rolls_back
            else 'to give it up, set upstream.abandoned-prewrite = "rollback"'
        )
        return Pending(
            f"neither Commit nor Rollback of transaction start_ts {start_ts} has arrived in"
            f" {age_ms / 1000:g} s; {way_out}",
            is_traceless=True,  # there is nobody who would know of one
        )


class TikvOrElse:
    """A TxnStatusSource: TiKV where there is one.

    A binlogd that stands in for PD knows no TiKV: a TiDB then keeps its data itself, or there is
    only a writer of somebody's own. A TiDB can be asked in its place where the configuration names
    one; else age decides, if an operator says that it may, and a Rollback of the writer is
    believed, as it is standalone.
    """

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
