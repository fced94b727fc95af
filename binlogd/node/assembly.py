"""From configuration to parts: the only place that knows every sink and what a key means.

What has a client of its own stands in `into_kafka.py` and `into_mysql.py`, what of the changes is
replicated in `replicated.py`. The upstream is chosen in `upstreams.py`."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence, Set
from importlib import import_module

import structlog

from binlogd.client.registered_pumps import Horizon, PumpList, RegisteredPumps
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.files.archive import ArchiveOptions
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.schema_log import SchemaLog
from binlogd.drainer.sink import RowNotFoundRule, Sink
from binlogd.drainer.slow import SlowTransactions
from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk, disk_errors
from binlogd.node.membership import Identity
from binlogd.node.replicated import newest_ts, table_filter, tells_missing
from binlogd.node.replication import FirstContact, Replication
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.slow import SlowWrites
from binlogd.relay.log import RelayWriter
from binlogd.serving.finder import Finder
from binlogd.settings import config
from binlogd.settings.quantities import kept_s, listen_address, pump_addresses, retention_s
from binlogd.settings.setup import Setup, client_tls
from binlogd.status import DownstreamStatus
from binlogd.telemetry.traces import Traces
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.upstream import Upstream

log = structlog.get_logger(__name__)

_NODE_FILE = ".node"
DRAIN_S = 6.0
"""Of the ten seconds that a stop may take."""
_INTO = {
    "kafka": "binlogd.node.into_kafka",
    "mysql": "binlogd.node.into_mysql",
    "sqlite": "binlogd.drainer.sqlite.sink",
    "tidb": "binlogd.node.into_mysql",
}
"""What only a node with such a downstream imports, before it serves."""
_DIALECTS = {"mysql": Dialect.MYSQL, "tidb": Dialect.TIDB}
"""Of databases; what others hold is read as a file's."""


async def identity(setup: Setup, disk: PosixDisk) -> Identity:
    """The names of both halves, and where they are reached; "" for a Pump that is not there.

    Raises LogFailed, ConfigError.
    """
    pump = await node_id(setup, disk)
    alone = pump if not setup.has_pump else f"{pump}-drainer"
    drainer = setup.config.drainer.node_id or alone
    if not setup.has_pump:
        pump = ""
    if drainer == pump:
        raise ConfigError(f'drainer.node-id: "{drainer}" is the name of the Pump already')
    return Identity(pump, drainer, config.advertised(setup.config))


async def node_id(setup: Setup, disk: PosixDisk) -> str:
    """The Pump's name in status and registry: the configured one, or that of the first start.

    The first start takes host name and port, and keeps them in `.node` as the original does, so
    that a container that is made anew keeps its name. A configured name counts more than what is
    kept; the original goes the other way. Raises LogFailed.
    """
    given = setup.config.node_id
    kept = setup.data_dir / _NODE_FILE
    with disk_errors(kept):
        sizes = await disk.sizes(setup.data_dir)
        if kept.name in sizes:
            (text,) = await disk.read(kept, [(0, sizes[kept.name])])
            name = text.decode(errors="replace").strip()
            if given and given != name:
                log.warning(
                    "node_renamed",
                    node_id=given,
                    before=name,
                    file=str(kept),
                    consequence=f"whoever still reads {name} waits for it: `binlogd nodes {name}"
                    " --mark offline` once all it had is read, or take its name as node-id",
                )
            return given or name
        if given:
            return given
        name = f"{socket.gethostname()}:{listen_address(setup.config.addr)[1]}"
        await disk.write_whole(kept, name.encode())
    return name


def dialect(setup: Setup) -> Dialect:
    """What reads the statements downstream."""
    return _DIALECTS.get(setup.config.syncer.db_type, Dialect.FILE)


def make_sink(
    setup: Setup, disk: PosixDisk, cluster_id: int | None, skipped: Set[Tso] = frozenset()
) -> Sink:
    """A new sink of the configured kind, not opened yet. `skipped` may grow meanwhile.

    Without a cluster id a database is asked for the only cluster that it has a checkpoint of.
    """
    syncer = setup.config.syncer
    match syncer.db_type:
        case "kafka":
            from binlogd.node.into_kafka import kafka_sink

            return kafka_sink(setup, cluster_id or 0)
        case "mysql" | "tidb":
            from binlogd.node.into_mysql import mysql_sink

            return mysql_sink(setup, cluster_id or 0, skipped)
        case "sqlite":
            from binlogd.drainer.sqlite.sink import SqliteSink

            return SqliteSink(
                setup.replica_file,
                disk,
                row_not_found=RowNotFoundRule(syncer.row_not_found),
                tells_missing=tells_missing(syncer),
                passed_over=syncer.ignore_txn_commit_ts or skipped,
            )
        case _:
            return _file_sink(setup, disk)


def _file_sink(setup: Setup, disk: PosixDisk) -> FileSink:
    to = setup.config.syncer.to
    return FileSink(
        setup.sink_dir,
        setup.sink_dir / "savepoint",
        disk=disk,
        clock=WallClock(),
        options=FileSinkOptions(
            archive=ArchiveOptions(
                compresses=to.compression == "gzip",
                keep_s=kept_s("syncer.to.retention-time", to.retention_time),
            )
        ),
    )


def downstream_of(setup: Setup) -> DownstreamStatus:
    """The configured downstream, as it is told."""
    syncer = setup.config.syncer
    match syncer.db_type:
        case "mysql" | "tidb":
            address = f"{syncer.to.host}:{syncer.to.port}"
        case "kafka":
            address = syncer.to.kafka_addrs
        case "sqlite":
            address = str(setup.replica_file)
        case _:
            address = str(setup.sink_dir)
    return DownstreamStatus(syncer.db_type, address)


def trash(setup: Setup) -> Trash | None:
    """Where dropped tables are put aside downstream."""
    schema = setup.config.drainer.trash_schema
    return Trash(schema) if schema else None


def make_relay(setup: Setup, disk: PosixDisk) -> RelayWriter | None:
    """The relay log, when one is configured."""
    if setup.relay_dir is None:
        return None
    max_file_bytes = setup.config.syncer.relay.max_file_size
    return RelayWriter(setup.relay_dir, disk, max_file_bytes=max_file_bytes)


def gc_holders(setup: Setup) -> Sequence[str]:
    """Who needs every binlog behind the saved checkpoint: the Drainer, and the relay log, which a
    restart fills from there on again when its end is torn."""
    return ("drainer",) if setup.relay_dir is None else ("drainer", "relay log")


def registered_pumps(
    setup: Setup, pump: Pump | None, upstream: Upstream, names: Identity
) -> RegisteredPumps | None:
    """The Pumps to merge, where a registry tells who they are. None where nothing is merged, and
    where the configuration does (`upstream.pumps`)."""
    if not setup.has_drainer or setup.config.upstream.pumps or not upstream.shares_registry:
        return None
    return RegisteredPumps(
        pump.sources() if pump is not None else (),
        upstream.registry,
        own_id=names.pump,
        cluster_id=upstream.cluster.wait_known,
        horizon=horizon(setup, upstream),
        tls=client_tls(setup),
    )


def horizon(setup: Setup, upstream: Upstream) -> Horizon:
    """How far the promises of other Pumps are believed."""
    ahead_max_s = setup.config.pump.timestamp_ahead_max
    return Horizon(upstream.tso.observe, WallClock(), ahead_max_s=ahead_max_s)


def make_finder(setup: Setup, upstream: Upstream) -> Finder:
    """Looks through the log of this process; what other Pumps received stands in the relay log."""
    is_guest = upstream.shares_registry and upstream.own_pd is None
    has_others = bool(setup.config.upstream.pumps) or is_guest
    paths = [setup.data_dir] if setup.has_pump else []
    if setup.relay_dir is not None and (has_others or not paths):
        paths.append(setup.relay_dir)
    return Finder(paths)


def make_drainer(
    setup: Setup,
    disk: PosixDisk,
    pump: Pump | None,
    upstream: Upstream,
    measures: DrainerMeasures,
    registered: RegisteredPumps | None = None,
) -> Drainer:
    """The replicating half. What it needs is held back from the garbage collection of the Pump in
    this process; others read its checkpoint in the registry."""
    settings, clock = setup.config.drainer, WallClock()

    def hold(commit_ts: Tso) -> None:
        if pump is not None:
            for name in gc_holders(setup):
                pump.caretaker.hold(name, commit_ts)

    def saved(checkpoint: Checkpoint) -> None:
        hold(checkpoint.commit_ts)
        if upstream.keep_from is not None:
            upstream.keep_from(checkpoint.commit_ts)
        measures.saved(checkpoint.commit_ts, clock.wall_ms())

    hold(Tso(settings.initial_commit_ts))
    pumps = registered or PumpList(
        pump.sources() if pump is not None else (),
        pump_addresses(setup.config.upstream.pumps),
        upstream.cluster.wait_known,
        horizon(setup, upstream),
        client_tls(setup),
    )
    ports = DrainerPorts(
        sources=pumps,
        on_pulled=lambda name, pulled: measures.pulled(name, pulled, clock.wall_ms()),
        measures=measures,
        history=upstream.history,
        make_sink=lambda: make_sink(
            setup, disk, upstream.cluster.cluster_id, upstream.skips.commit_tss
        ),
        relay=make_relay(setup, disk),
        late=pump.late if pump is not None else None,
        schema_log=SchemaLog(setup.data_dir / "schema", disk),
        newest_ts=lambda: max(newest_ts(setup), pump.newest_commit_ts if pump else NO_TS),
        table_name=upstream.table_name,
        schema_at=upstream.schema_at if setup.config.syncer.load_schema_snapshot else None,
        table_filter=table_filter(setup.config.syncer, upstream.skips.commit_tss),
        on_saved=saved,
    )
    options = DrainerOptions(
        dialect=dialect(setup),
        trash=trash(setup),
        initial_commit_ts=Tso(settings.initial_commit_ts),
        checkpoint_interval_s=settings.checkpoint_interval,
        drain_timeout_s=DRAIN_S,
    )
    return Drainer(ports, Backoff(random.Random()), options)


def make_replication(  # noqa: PLR0913 - each is a part of the node that it stands between
    current: Callable[[], Setup],
    disk: PosixDisk,
    pump: Pump | None,
    upstream: Upstream,
    registered: RegisteredPumps | None,
    first: FirstContact,
    *,
    traces: Traces | None = None,
) -> Replication | None:
    """The replicating half with its life; None when it is turned off. Each of its Drainers is made
    by what `current` says then."""
    setup = current()
    if not setup.has_drainer:
        return None
    if name := _INTO.get(setup.config.syncer.db_type):
        import_module(name)  # now, and not beside binlogs
    slow = SlowTransactions(traces, WallClock()) if traces is not None else None
    measures = DrainerMeasures(slow)

    def release() -> None:
        if pump is not None:
            for name in gc_holders(setup):
                pump.caretaker.release(name)

    return Replication(
        lambda: make_drainer(current(), disk, pump, upstream, measures, registered),
        release,
        first,
        Backoff(random.Random()),
    )


async def open_pump(
    setup: Setup, disk: PosixDisk, upstream: Upstream, traces: Traces | None = None
) -> Pump:
    """The receiving half, recovered, in a directory that is locked already. Raises ConfigError,
    Corrupt or Unavailable."""
    settings = setup.config.pump
    return await Pump.open(
        setup.data_dir,
        is_locked=True,
        shards=settings.shards,
        tso=upstream.tso,
        txn_status=upstream.txn_status,
        clock=WallClock(),
        disk=disk,
        options=PumpOptions(
            gc_keep_s=retention_s("pump.gc", settings.gc),
            fake_interval_s=settings.fake_binlog_interval,
            free_bytes_min=settings.stop_write_at_available_space,
            record_bytes_max=settings.max_message_size,
            memory_budget_bytes=settings.memory_budget,
            segment_bytes_max=settings.segment_size,
            skip_orphan_commits=settings.skip_orphan_commits,
            ahead_max_s=settings.timestamp_ahead_max,
            slow=SlowWrites(traces, WallClock()) if traces is not None else None,
        ),
    )
