"""All that is served in the place of a PD, as one part: its services, its end, its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlogd.grpc.methods import OpenStreams
from binlogd.grpc.server import Servable
from binlogd.placement.calls import Refusals
from binlogd.placement.etcd_services import EtcdServices
from binlogd.placement.history_service import HistoryService
from binlogd.placement.pd_service import PD_VERSION, AdvertisedAddress, GlobalConfig, PdService
from binlogd.ports import Clock, ClusterIdentity
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import Tso
from binlogd.upstream.upstream import OwnPd


class StandIn:
    """A PD with one member, which is this process."""

    def __init__(
        self,
        place: AdvertisedAddress,
        own: OwnPd,
        cluster: ClusterIdentity,
        clock: Clock,
        newest: Callable[[], Tso],
    ) -> None:
        """Timestamps lie above `newest()`."""
        self._own, self._place = own, place
        self._began_ms = clock.wall_ms()
        self._streams = OpenStreams()
        self._pd = PdService(
            place, cluster, own.tso, own.keyspace, clock, streams=self._streams, newest=newest
        )
        self.services: Sequence[Servable] = (
            self._pd,
            EtcdServices(own.keyspace, self._streams, name=place.name, url=place.url),
            HistoryService(own.history, own.store, self._streams),
            GlobalConfig(own.keyspace),
            Refusals(),
        )
        """For the port."""

    def documents(self) -> Mapping[str, Any]:
        """What a PD says of itself by HTTP, by the word behind `/pd/api/v1/`."""
        place, cluster_id, version = self._place, self._pd.cluster_id, f"v{PD_VERSION}"
        named = {"name": place.name, "member_id": self._own.keyspace.identity.member}
        urls = [place.url]
        member = {**named, "peer_urls": urls, "client_urls": urls, "binary_version": version}
        store = {"id": 1, "address": place.url.rpartition("/")[2], "version": PD_VERSION}
        return {
            "version": {"version": version},
            "status": {"version": version, "start_timestamp": self._began_ms // 1000},
            "health": [{**named, "client_urls": urls, "health": True}],
            "leader": member,
            "members": {
                "header": {"cluster_id": cluster_id},
                "members": [member],
                "leader": member,
                "etcd_leader": member,
            },
            "cluster": {"id": cluster_id, "max_peer_count": 1},
            "stores": {
                "count": 1,
                "stores": [{"store": {**store, "state_name": "Up"}, "status": {}}],
            },
        }

    def close(self) -> None:
        """Ends the streams, those that are to come as well."""
        self._streams.close()

    def say(self, out: Exposition) -> None:
        """Its metrics; names and meanings stand in docs/METRICS.md as well."""
        pd, streams = self._pd, self._streams.count
        self._own.keyspace.say(out)
        out.gauge("binlogd_registry_streams", "Open watches, leases and Tso streams.", streams)
        out.counter("binlogd_pd_timestamps", "Timestamps handed out.", pd.timestamps)
        out.counter(
            "binlogd_pd_members_asked", "How often somebody looked for PD.", pd.members_asked
        )
