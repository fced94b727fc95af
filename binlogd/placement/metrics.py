"""The figures of what is served in the place of a PD, as Prometheus text."""

from __future__ import annotations

from binlogd.placement.stand_in import StandInStatistics
from binlogd.telemetry.exposition import Exposition


def say_stand_in(out: Exposition, now: StandInStatistics) -> None:
    """Names and meanings stand in docs/METRICS.md as well."""
    keyspace = now.keyspace
    out.gauge("binlogd_registry_revision", "Newest revision of the registry.", keyspace.revision)
    out.gauge("binlogd_registry_keys", "Keys in the registry.", keyspace.keys)
    out.gauge("binlogd_registry_bytes", "Bytes of keys and values in it.", keyspace.live_bytes)
    out.gauge("binlogd_registry_leases", "Leases that are alive.", keyspace.leases)
    out.counter(
        "binlogd_registry_leases_expired",
        "Leases that nobody kept alive.",
        keyspace.leases_expired,
    )
    out.counter("binlogd_registry_writes", "Revisions made here.", keyspace.writes)
    out.gauge("binlogd_registry_streams", "Open watches, leases and Tso streams.", now.streams)
    out.counter("binlogd_pd_timestamps", "Timestamps handed out.", now.pd.timestamps)
    out.counter(
        "binlogd_pd_members_asked", "How often somebody looked for PD.", now.pd.members_asked
    )
