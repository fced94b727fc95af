"""All that is served in the place of a PD, as one part: its services, its end, its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from binlogd.placement.calls import OpenStreams, Service
from binlogd.placement.etcd_services import ClusterService, KeyValueService, LeaseService
from binlogd.placement.global_config import GlobalConfig
from binlogd.placement.history_service import HistoryService
from binlogd.placement.maintenance import AuthService, HealthService, MaintenanceService
from binlogd.placement.pd_service import PdService, PdStatistics, Place
from binlogd.placement.refusals import Refusals
from binlogd.placement.watches import WatchService
from binlogd.ports import Clock, ClusterIdentity
from binlogd.tso import Tso
from binlogd.upstream.keyspace.store import KeyspaceStatistics
from binlogd.upstream.upstream import OwnPd


@dataclass(frozen=True, slots=True)
class StandInStatistics:
    """Counters since the start; levels are of now."""

    keyspace: KeyspaceStatistics
    pd: PdStatistics
    streams: int


class StandIn:
    """A PD with one member, which is this process."""

    def __init__(
        self,
        place: Place,
        own: OwnPd,
        cluster: ClusterIdentity,
        clock: Clock,
        newest: Callable[[], Tso],
        random: Random,
    ) -> None:
        """Timestamps lie above `newest()`; `random` makes the id of a cluster that has none."""
        self._own = own
        self._streams = OpenStreams()
        self._pd = PdService(
            place,
            cluster,
            own.tso,
            own.keyspace,
            clock,
            streams=self._streams,
            newest=newest,
            # as PD does: seconds since 1970, and chance
            make_cluster_id=lambda: clock.wall_ms() // 1000 << 32 | random.getrandbits(32),
        )
        self._services: Sequence[Service] = (
            self._pd,
            KeyValueService(own.keyspace),
            LeaseService(own.keyspace, self._streams),
            WatchService(own.keyspace, self._streams),
            ClusterService(own.keyspace, place.name, place.url),
            HistoryService(own.history, own.store, self._streams),
            GlobalConfig(own.keyspace, cluster, self._streams),
            MaintenanceService(own.keyspace),
            AuthService(own.keyspace),
            HealthService(self._streams),
            Refusals(),
        )

    def services(self) -> Sequence[Service]:
        """For the port."""
        return self._services

    def close(self) -> None:
        """Ends the streams, those that are to come as well."""
        self._streams.close()

    def statistics(self) -> StandInStatistics:
        """Cheap."""
        return StandInStatistics(
            self._own.keyspace.statistics(), self._pd.statistics(), self._streams.count
        )
