"""From configuration to parts: the only place that knows every sink and what a key means.

The upstream is chosen in `upstreams.py`."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Container, Sequence, Set
from dataclasses import dataclass
from functools import partial

import structlog

from binlogd.client.registered_pumps import Horizon, PumpList, RegisteredPumps
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.files.archive import ArchiveOptions
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.filtering.event_filter import EventFilter, EventRule
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.drainer.kafka.avro import check_installed
from binlogd.drainer.kafka.avro_schemas import AvroSchemas
from binlogd.drainer.kafka.broker import BrokerOptions, topic_name
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.login import KafkaLogin
from binlogd.drainer.kafka.message import Notation
from binlogd.drainer.kafka.original import OriginalMessages
from binlogd.drainer.kafka.schema_registry import RegistryOptions, SchemaRegistry
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.mysql.trash import TrashOptions
from binlogd.drainer.rows.conflict import lanes_for
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.schema_log import SchemaLog
from binlogd.drainer.session import DrainerOptions, DrainerPorts
from binlogd.drainer.sink import RowNotFoundRule, Sink
from binlogd.drainer.slow import SlowTransactions
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk, disk_errors
from binlogd.node.membership import Identity
from binlogd.node.replication import FirstContact, Replication
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.slow import SlowWrites
from binlogd.relay.log import RelayWriter
from binlogd.serving.finder import Finder
from binlogd.settings import config
from binlogd.settings.config import DownstreamConfig, SyncerConfig
from binlogd.settings.quantities import (
    gc_keep_s,
    kept_s,
    listen_address,
    pump_addresses,
    retention_s,
)
from binlogd.settings.setup import Setup, client_tls, plain_tls
from binlogd.status import DownstreamStatus
from binlogd.telemetry.traces import Traces
from binlogd.tso import Tso, compose
from binlogd.upstream.upstream import Upstream

log = structlog.get_logger(__name__)

_NODE_FILE = ".node"
REPLICA_FILE = "replica.db"
DRAIN_S = 6.0
"""Of the ten seconds that a stop may take."""

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


def table_filter(syncer: SyncerConfig, skipped: Container[Tso] = ()) -> TableFilter:
    """What is replicated; `skipped` is asked again for each transaction.

    Raises ConfigError for a pattern that is no regular expression.
    """

    def patterns(names: tuple[config.TableNameConfig, ...]) -> list[TablePattern]:
        return [TablePattern(name.db_name, name.tbl_name) for name in names]

    return TableFilter(
        do_databases=syncer.replicate_do_db,
        do_tables=patterns(syncer.replicate_do_table),
        ignored_databases=[name for name in syncer.ignore_schemas.split(",") if name],
        ignored_tables=patterns(syncer.ignore_table),
        ignored_commit_ts=_Either(frozenset(syncer.ignore_txn_commit_ts), skipped),
        events=_event_filter(syncer),
        routes=_router(syncer),
        loop=loop_control(syncer),
        executes_ddl=syncer.sync_ddl,
    )


def _router(syncer: SyncerConfig) -> TableRouter:
    rules = [
        RouteRule(each.source.schema, each.source.table, each.target.schema, each.target.table)
        for each in syncer.table_migrate_rule
        if each.target is not None
    ]
    return TableRouter(rules, is_case_sensitive=syncer.case_sensitive)


@dataclass(frozen=True, slots=True)
class _Either(Container[Tso]):
    """What one of two holds, at the moment of asking."""

    one: Container[object]
    other: Container[object]

    def __contains__(self, commit_ts: object) -> bool:
        return commit_ts in self.one or commit_ts in self.other


def keeps_transactions_whole(syncer: SyncerConfig) -> bool:
    """Whether each source transaction is one downstream, in source order.

    Without dispatch the original applies each transaction alone, one after the other; this is what
    was asked for by it.
    """
    has_dispatch = syncer.enable_dispatch and not syncer.disable_dispatch
    return syncer.consistency == "transaction" or not has_dispatch


def loop_control(syncer: SyncerConfig) -> LoopControl | None:
    """The channel of a pair that replicates both ways; None where there is no loop."""
    return LoopControl(syncer.channel_id) if syncer.loopback_control else None


def _event_filter(syncer: SyncerConfig) -> EventFilter:
    rules = [
        EventRule(each.source.schema, each.source.table, named.ignore_event, named.ignore_sql)
        for each in syncer.table_migrate_rule
        for named in (syncer.binlog_filter_rule[name] for name in each.binlog_filter_rule)
    ]
    return EventFilter(rules, is_case_sensitive=syncer.case_sensitive)


def dialect(setup: Setup) -> Dialect:
    """What reads the statements downstream."""
    return _DIALECTS.get(setup.config.syncer.db_type, Dialect.FILE)


def newest_ts(setup: Setup) -> Tso:
    """Nothing that is committed by now is above: a Pump would refuse it."""
    ahead_ms = int(setup.config.pump.timestamp_ahead_max * 1000)
    return compose(WallClock().wall_ms() + ahead_ms)


def tells_missing(syncer: SyncerConfig) -> bool:
    """Whether the log alone tells which rows the downstream holds: nobody else writes there, and
    no kind of change is left out."""
    leaves_out = any(each.binlog_filter_rule for each in syncer.table_migrate_rule)
    is_shared = syncer.loopback_control or not syncer.sync_ddl
    return not (leaves_out or is_shared or syncer.safe_mode)


def make_sink(
    setup: Setup, disk: PosixDisk, cluster_id: int | None, skipped: Set[Tso] = frozenset()
) -> Sink:
    """A new sink of the configured kind, not opened yet. `skipped` may grow meanwhile.

    Without a cluster id a database is asked for the only cluster that it has a checkpoint of.
    """
    syncer = setup.config.syncer
    if syncer.db_type in ("file", "pb"):
        return _file_sink(setup, disk)
    if syncer.db_type == "sqlite":
        rule = RowNotFoundRule(syncer.row_not_found)
        return SqliteSink(
            setup.sink_dir / REPLICA_FILE,
            disk,
            row_not_found=rule,
            tells_missing=tells_missing(syncer),
            passed_over=syncer.ignore_txn_commit_ts or skipped,
        )
    if syncer.db_type == "kafka":
        options = kafka_options(setup, cluster_id or 0)
        schemas = avro_schemas(setup, options)
        if schemas is not None:
            return KafkaSink(options, Debezium(options.topic, schemas), schemas)
        return KafkaSink(options, _notation(syncer.to, options.topic))
    server, of_rows = downstream_server(setup), mysql_options(setup, skipped)
    return MySqlSink(server, cluster_id or 0, of_rows, random.Random())


def mysql_options(setup: Setup, skipped: Set[Tso] = frozenset()) -> MySqlSinkOptions:
    """Of a sink that is a database with a server. Raises ConfigError."""
    syncer = setup.config.syncer
    return MySqlSinkOptions(
        lanes=lanes_for(syncer.worker_count),
        is_transactional=keeps_transactions_whole(syncer),
        has_positions=syncer.db_type == "tidb",
        loop=loop_control(syncer),
        schema=syncer.to.checkpoint.schema,
        checkpoint_table=syncer.to.checkpoint.table,
        checkpoint_server=_checkpoint_server(setup),
        limits=_limits(syncer),
        shapes=_shapes(syncer),
        row_not_found=RowNotFoundRule(syncer.row_not_found),
        tells_missing=tells_missing(syncer),
        passed_over=syncer.ignore_txn_commit_ts or skipped,
        now_ts=newest_ts(setup),
        trash=_trash_options(setup),
    )


def _shapes(syncer: SyncerConfig) -> Shapes:
    """Which tables are written in the original's words. Raises ConfigError for a bad pattern."""
    to = syncer.to
    leaves_out = to.sync_mode == 2
    if to.sql_shape == "original":
        tables = TableFilter(ignored_databases=())
    elif to.original_shape_table:
        patterns = [TablePattern(each.db_name, each.tbl_name) for each in to.original_shape_table]
        tables = TableFilter(do_tables=patterns, ignored_databases=())
    else:
        return Shapes(leaves_out_columns=leaves_out)
    return Shapes(tables, syncer.safe_mode, to.merge, leaves_out_columns=leaves_out)


def _limits(syncer: SyncerConfig) -> Limits:
    """`txn-batch` counts where all tables are written a statement a row."""
    if syncer.to.sql_shape != "original" or syncer.to.merge:
        return Limits()
    return Limits(changes_max=syncer.txn_batch)


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


def kafka_options(setup: Setup, cluster_id: int) -> BrokerOptions:
    """Raises ConfigError for certificates that do not load."""
    to = setup.config.syncer.to
    return BrokerOptions(
        addresses=tuple(each.strip() for each in to.kafka_addrs.split(",") if each.strip()),
        topic=to.topic_name or f"{cluster_id}_obinlog",
        progress_topic=f"binlogd_progress_{cluster_id}",
        client_id=to.kafka_client_id,
        partitions=to.partitions,
        message_bytes_max=to.kafka_max_message_size,
        compression=to.kafka_compression,
        tls=plain_tls(to.security),
        login=_kafka_login(setup),
    )


def _kafka_login(setup: Setup) -> KafkaLogin | None:
    to = setup.config.syncer.to
    match to.kafka_sasl_mechanism:
        case "":
            return None
        case "OAUTHBEARER":
            if not to.kafka_token_url:
                return KafkaLogin("OAUTHBEARER", token_file=to.kafka_token_file)
            url, scope = to.kafka_token_url, to.kafka_token_scope
            return KafkaLogin("OAUTHBEARER", to.user, to.password, token_url=url, token_scope=scope)
        case mechanism:
            return KafkaLogin(mechanism, to.user, to.password)


def avro_schemas(setup: Setup, options: BrokerOptions) -> AvroSchemas | None:
    """None where messages are not in Avro. Raises ConfigError where its library is missing."""
    to = setup.config.syncer.to
    if to.protocol != "debezium-avro":
        return None
    check_installed()
    user, password = to.schema_registry_user, to.schema_registry_password
    registry = RegistryOptions(to.schema_registry, user, password, options.tls)
    return AvroSchemas(SchemaRegistry(registry), partial(topic_name, options.topic))


def _notation(to: DownstreamConfig, topic: str) -> Notation:
    match to.protocol:
        case "canal-json":
            return CanalJson()
        case "debezium":
            return Debezium(topic, DebeziumJson(has_schemas=to.debezium_schemas))
        case _:
            return OriginalMessages()


def downstream_server(setup: Setup) -> MySqlServer:
    """Where the database downstream is."""
    to = setup.config.syncer.to
    return MySqlServer(
        host=to.host,
        port=to.port,
        user=to.user,
        password=to.password,
        sql_mode=setup.config.syncer.sql_mode,
        params=to.params,
        tls=plain_tls(to.security),
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
            address = str(setup.sink_dir / REPLICA_FILE)
        case _:
            address = str(setup.sink_dir)
    return DownstreamStatus(syncer.db_type, address)


def make_store(setup: Setup, cluster_id: int | None) -> MySqlStore:
    """The checkpoint and progress rows downstream. Raises ConfigError where there are none."""
    syncer = setup.config.syncer
    if syncer.db_type not in ("mysql", "tidb"):
        raise ConfigError(
            f'syncer.db-type "{syncer.db_type}" keeps its checkpoint with its files in'
            f" {setup.sink_dir}: they go back together, from a copy"
        )
    place = syncer.to.checkpoint
    return MySqlStore(
        downstream_server(setup),
        place.schema,
        cluster_id or 0,
        place.table,
        _checkpoint_server(setup),
    )


def _checkpoint_server(setup: Setup) -> MySqlServer | None:
    """None where the checkpoint is with the data."""
    place = setup.config.syncer.to.checkpoint
    if not place.host:
        return None
    tls = plain_tls(place.security)
    return MySqlServer(place.host, place.port, place.user, place.password, tls=tls)


def trash(setup: Setup) -> Trash | None:
    """Where dropped tables are put aside downstream."""
    schema = setup.config.drainer.trash_schema
    return Trash(schema) if schema else None


def _trash_options(setup: Setup) -> TrashOptions | None:
    settings = setup.config.drainer
    if not settings.trash_schema:
        return None
    keep_s = retention_s("drainer.trash-retention", settings.trash_retention)
    return TrashOptions(settings.trash_schema, keep_s)


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
            gc_keep_s=gc_keep_s(settings.gc),
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
