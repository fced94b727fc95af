"""Leases: what is bound to one goes when nobody keeps it alive.

Time in which this process did not run counts for nobody: whoever wanted to keep a lease alive could
not, either. After a restart every lease begins anew. Source: go.etcd.io/etcd lease/lessor.go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from binlogd.errors import EtcdRefused

TTL_MIN_S = 2
TTL_MAX_S = 9_000_000_000
_LATE_S = 1.0


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    until_s: float


class Leases(Container[int]):
    """The leases that are alive, by the seconds of a clock that only goes forward."""

    def __init__(self, known: Mapping[int, int], now_s: float) -> None:
        """`known`: the time to live of each, in seconds."""
        self._leases = {number: _Lease(ttl_s, now_s + ttl_s) for number, ttl_s in known.items()}

    def __contains__(self, number: object) -> bool:
        """Whether it is alive."""
        return number in self._leases

    def __len__(self) -> int:
        """How many there are."""
        return len(self._leases)

    def chosen(self, number: int, ttl_s: int, make: Callable[[], int]) -> tuple[int, int]:
        """The number and the time to live that a new lease gets. Raises EtcdRefused."""
        if number in self._leases:
            raise EtcdRefused("FAILED_PRECONDITION", "etcdserver: lease already exists")
        if ttl_s > TTL_MAX_S:
            raise EtcdRefused("OUT_OF_RANGE", "etcdserver: too large lease TTL")
        while not number or number in self._leases:  # ends: the numbers are random
            number = make()
        return number, max(ttl_s, TTL_MIN_S)

    def add(self, number: int, ttl_s: int, now_s: float) -> None:
        """Begins one."""
        self._leases[number] = _Lease(ttl_s, now_s + ttl_s)

    def keep(self, number: int, now_s: float) -> int:
        """Begins its time anew; its seconds to live, 0 if it is gone."""
        lease = self._leases.get(number)
        if lease is None:
            return 0
        lease.until_s = now_s + lease.ttl_s
        return lease.ttl_s

    def remove(self, number: int) -> None:
        """Ends one. Raises EtcdRefused if it is gone."""
        if self._leases.pop(number, None) is None:
            raise EtcdRefused("NOT_FOUND", "etcdserver: requested lease not found")

    def ended(self, now_s: float) -> Sequence[int]:
        """Those whose time is over, the first at the front."""
        ended = [number for number, lease in self._leases.items() if lease.until_s <= now_s]
        return sorted(ended, key=lambda number: self._leases[number].until_s)

    def pass_over(self, lost_s: float) -> None:
        """This process did not run for a while: nobody is to lose by that."""
        if lost_s > _LATE_S:
            for lease in self._leases.values():
                lease.until_s += lost_s + _LATE_S
