"""The configuration: one TOML file, the original's key names, every default and limit.

`load` reads a file strictly: an unknown key, a wrong type or an impossible pair is a ConfigError
that names the file, the key and what would be right. `config/binlogd.toml` shows every key with its
default; a test keeps the two equal. Components get plain values or their own part, never `Config`.

The tables `[syncer]` and below carry the names of a Drainer's file, so that this part can be pasted
unchanged; a key of the original that binlogd does not act on is accepted at the value that changes
nothing and refused at any other, or said at each start (settings/effects.py). Source: tidb-binlog
cmd/drainer/drainer.toml, cmd/pump/pump.toml.
"""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from binlogd.errors import ConfigError
from binlogd.settings.effects import check_effects, check_kafka, check_values
from binlogd.settings.mistakes import SECRETS, mistakes
from binlogd.settings.operators import check_operators, check_token, operators, peers
from binlogd.settings.quantities import (
    ClusterId,
    CommitTs,
    Seconds,
    Size,
    address_of,
    in_units,
    kept_s,
    listen_address,
    pd_addresses,
    pump_addresses,
    retention_s,
)
from binlogd.tso import MAX_TS

WILDCARDS = ("0.0.0.0", "0", "::", "*")
HIDDEN = "***"
TIDB_STATUS_PORT = 10080
HELD_BYTES_MAX = 16 << 20
"""A larger binlog is written to a file while it comes, if it is as TiDB writes them."""


class _Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A TOML table: strict, immutable, keys in kebab case. Secrets are not shown."""

    def __repr__(self) -> str:
        shown = (
            f"{name}={HIDDEN if name in SECRETS and value else repr(value)}"
            for name, value in ((each, getattr(self, each)) for each in self.__struct_fields__)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class TlsConfig(_Table, frozen=True):
    """Certificates, in PEM files; TLS is on where there is a CA."""

    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    ssl_key_password: str = ""
    ssl_key_password_file: str = ""
    cert_allowed_cn: tuple[str, ...] = ()


class SecurityConfig(TlsConfig, frozen=True):
    """TLS of the port and towards other nodes, who may act, and how many may connect."""

    admin_token: str = ""
    admin_token_file: str = ""
    operators_from: tuple[str, ...] = ()
    operators_cn: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()
    peers_from: tuple[str, ...] = ()
    connections_max: int = 1024
    connections_per_client_max: int = 512
    connection_idle_timeout: Seconds = 3600


class UpstreamConfig(_Table, frozen=True):
    """Who tells timestamps, schemas and the fate of transactions."""

    kind: Literal["standalone", "tidb", "pd"] = "standalone"
    embedded_pd: bool = True
    pd_urls: str | tuple[str, ...] = ()
    tidb: tuple[str, ...] = ()
    tidb_status: tuple[str, ...] = ()
    sql_tls: bool = True
    user: str = "binlogd"
    password: str = ""
    password_file: str = ""
    encrypted_password: str = ""
    tso: Literal["observed", "clock"] = "observed"
    schema_history: str = ""
    pumps: tuple[str, ...] = ()
    cluster_id: ClusterId = 0
    abandoned_prewrite: Literal["wait", "rollback"] = "wait"
    txn_timeout: Seconds = 600


class PumpConfig(_Table, frozen=True):
    """The receiving half."""

    shards: int = 4
    gc: int | str = 7
    fake_binlog_interval: Seconds = 3
    stop_write_at_available_space: Size = 1 << 30
    max_message_size: Size = 1 << 30
    memory_budget: Size = 2 << 30
    segment_size: Size = 500 << 20
    skip_orphan_commits: bool = False
    fast_lane: bool = True
    heartbeat_interval: Seconds = 2
    close_timeout: Seconds = 600
    timestamp_ahead_max: Seconds = 600


class DrainerConfig(_Table, frozen=True):
    """The replicating half."""

    enabled: bool = True
    node_id: str = ""
    initial_commit_ts: int = 0
    checkpoint_interval: Seconds = 3
    trash_schema: str = ""
    trash_retention: int | str = "24h"


class ArchiveConfig(_Table, frozen=True):
    """Where sealed segments are copied to; an empty URL turns it off. What is durable and not
    sealed follows each `tail-interval` (0: never). Old ones go after `keep` (0: never), where a
    snapshot in `base` replaces them ("": beside them)."""

    url: str = ""
    interval: Seconds = 60
    tail_interval: Seconds = 1
    keep: int | str = 0
    base: str = ""


class ExportConfig(_Table, frozen=True):
    """Exports that are asked of the service; without a directory there are none."""

    dir: str = ""
    idle_ttl: Seconds = 60
    memory: Size = 1 << 30


class TableNameConfig(_Table, frozen=True):
    """A table of a filter list; a name that begins with `~` is a regular expression."""

    db_name: str
    tbl_name: str


class TablePairConfig(_Table, frozen=True):
    """A schema and a table; an empty table stands for all of the schema."""

    schema: str
    table: str = ""


class FilterRuleConfig(_Table, frozen=True):
    """Kinds of changes that are left out: events, and regular expressions over DDL texts."""

    ignore_event: tuple[str, ...] = ()
    ignore_sql: tuple[str, ...] = ()


class MigrateRuleConfig(_Table, frozen=True):
    """What holds for the tables that `source` matches: filter rules, by name, and a new name."""

    source: TablePairConfig
    target: TablePairConfig | None = None
    binlog_filter_rule: tuple[str, ...] = ()


class RelayConfig(_Table, frozen=True):
    """The relay log; an empty directory name turns it off."""

    log_dir: str = ""
    max_file_size: Size = 10 << 20
    format: str = "binlogd"
    restore_after: Seconds = 180


class _ServerConfig(_Table, frozen=True):
    host: str = ""
    port: int = 3306
    user: str = "binlogd"
    password: str = ""
    password_file: str = ""
    encrypted_password: str = ""
    security: TlsConfig = TlsConfig()


class CheckpointConfig(_ServerConfig, frozen=True):
    """Where the checkpoint is kept: beside the data, or on another server (`host`)."""

    type: Literal["", "mysql", "tidb"] = ""
    schema: str = "tidb_binlog"
    table: str = "checkpoint"


class DownstreamConfig(_ServerConfig, frozen=True):
    """The target: a database server, or a directory of binlog files."""

    host: str = "127.0.0.1"
    params: dict[str, str] = {}
    sync_mode: Literal[0, 1, 2] = 0
    merge: bool = False
    sql_shape: Literal["merged", "original"] = "merged"
    original_shape_table: tuple[TableNameConfig, ...] = ()
    read_timeout: str = "1m"
    dir: str = ""
    compression: Literal["", "gzip"] = ""
    retention_time: int | str = 0
    kafka_addrs: str = "127.0.0.1:9092"
    kafka_version: str = ""
    kafka_max_messages: int = 1024
    kafka_client_id: str = "tidb_binlog"
    kafka_max_message_size: Size = 1 << 30
    kafka_compression: Literal["", "gzip", "snappy", "lz4", "zstd"] = ""
    kafka_sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = ""
    kafka_token_file: str = ""
    kafka_token_url: str = ""
    kafka_token_scope: str = ""
    zookeeper_addrs: Literal[""] = ""
    topic_name: str = ""
    protocol: Literal["tidb-binlog", "canal-json", "debezium", "debezium-avro"] = "tidb-binlog"
    debezium_schemas: bool = False
    schema_registry: str = ""
    schema_registry_user: str = ""
    schema_registry_password: str = ""
    schema_registry_password_file: str = ""
    partitions: int = 1
    checkpoint: CheckpointConfig = CheckpointConfig()


class SyncerConfig(_Table, frozen=True):
    """What is replicated, and how.

    Keys of the original without effect unless `syncer.to.sql-shape` is "original": `safe-mode` (a
    row is always written so that writing it twice is right), `txn-batch` and `merge` (statements
    are as large as what waits). `enable-dispatch = false` or its opposite stand for
    `consistency = "transaction"`. What does nothing, and why, stands in settings/effects.py.
    """

    db_type: Literal["file", "pb", "mysql", "tidb", "sqlite", "kafka"] = "file"
    sql_mode: str | None = None
    consistency: Literal["key", "transaction"] = "key"
    worker_count: int = 16
    txn_batch: int = 20
    safe_mode: bool = False
    sync_ddl: bool = True
    row_not_found: Literal["stop", "repair", "count"] = "stop"
    ignore_schemas: str = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
    ignore_txn_commit_ts: tuple[CommitTs, ...] = ()
    replicate_do_db: tuple[str, ...] = ()
    replicate_do_table: tuple[TableNameConfig, ...] = ()
    ignore_table: tuple[TableNameConfig, ...] = ()
    table_migrate_rule: tuple[MigrateRuleConfig, ...] = ()
    binlog_filter_rule: dict[str, FilterRuleConfig] = {}
    case_sensitive: bool = False
    enable_dispatch: bool = True
    enable_detect: bool = True
    disable_dispatch: bool = False
    disable_detect: bool = False
    loopback_control: bool = False
    channel_id: int = 0
    load_schema_snapshot: bool = False
    relay: RelayConfig = RelayConfig()
    to: DownstreamConfig = DownstreamConfig()


class TelemetryConfig(_Table, frozen=True):
    """Where slow transactions are told by OpenTelemetry; without an endpoint nowhere."""

    otlp_endpoint: str = ""
    slow_transaction: Seconds = 1.0


class Config(_Table, frozen=True):
    """Everything `binlogd serve` can be told."""

    data_dir: str = "/var/lib/binlogd"
    roles: tuple[Literal["pump", "drainer"], ...] = ("pump", "drainer")
    addr: str = "127.0.0.1:8250"
    advertise_addr: str = ""
    binlog_socket: str = ""
    node_id: str = ""
    log_level: Literal["debug", "info", "warn", "error"] = "info"
    security: SecurityConfig = SecurityConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    pump: PumpConfig = PumpConfig()
    drainer: DrainerConfig = DrainerConfig()
    syncer: SyncerConfig = SyncerConfig()
    archive: ArchiveConfig = ArchiveConfig()
    export: ExportConfig = ExportConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


def load(path: Path) -> Config:
    """Reads and validates one TOML file. Raises ConfigError."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8-sig")  # an editor of Windows writes a mark before it
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def parse(text: str, source: str) -> Config:
    """Validates TOML text; `source` names it in errors. Raises ConfigError."""
    return from_tree(read_toml(text, source), source, text)


def read_toml(text: str, source: str) -> dict[str, Any]:
    """TOML as it is written, but for `_` in a key, which is taken for `-`. Raises ConfigError."""
    try:
        return dict(_hyphenated(tomllib.loads(text)))
    except (ValueError, RecursionError) as error:  # of tomllib, or of thousands of digits or levels
        is_open = str(error).startswith(("Illegal character", "Unterminated string"))
        hint = "; a text lacks its closing quote" if is_open else ""
        raise ConfigError(f"{source}: is not TOML: {error}{hint}") from error


def from_tree(tree: dict[str, Any], source: str, text: str = "") -> Config:
    """Validates what was read; `text` is where, for the lines. Raises ConfigError, which names
    every wrong key."""
    tree = in_units(tree, Config)
    wrong = mistakes(tree, Config, text)
    if wrong:
        several = f"{len(wrong)} keys are wrong\n  " if len(wrong) > 1 else ""
        raise ConfigError(f"{source}: {several}" + "\n  ".join(wrong))
    config = msgspec.convert(tree, Config)
    try:
        _check(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return config


_NAMED_BY_OPERATORS = frozenset({"params", "binlog-filter-rule"})
"""Tables whose keys are names, taken as they are."""


def _hyphenated(value: Any) -> Any:
    if isinstance(value, list):
        return [_hyphenated(each) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, each in value.items():
        key = name.replace("_", "-")
        keeps = key in _NAMED_BY_OPERATORS and isinstance(each, dict)
        found[key if key not in value else name] = each if keeps else _hyphenated(each)
    return found


def _check(config: Config) -> None:
    _check_rule_names(config.syncer)
    _check_security(config)
    _check_upstream(config.upstream)
    _check_roles(config)
    if config.syncer.load_schema_snapshot and config.upstream.kind != "pd":
        raise ConfigError(
            'syncer.load-schema-snapshot: goes with upstream.kind = "pd" only, as the'
            " snapshot is read from TiKV; remove the key"
        )
    _check_params(config.syncer.to.params)
    check_values(config)
    if not 0 <= config.drainer.initial_commit_ts <= MAX_TS:
        raise ConfigError(
            "drainer.initial-commit-ts: must be a commit_ts; 0 begins with the first"
            " binlog of the log, any other number behind that commit_ts. For -1, the original's"
            " now, give the commit_ts that the copy of the data is of"
        )
    for key, name in ("node-id", config.node_id), ("drainer.node-id", config.drainer.node_id):
        if "/" in name:
            raise ConfigError(f'{key} "{name}": must not contain a slash')
    if config.node_id and config.node_id == config.drainer.node_id:
        raise ConfigError("node-id and drainer.node-id: must differ")
    check_operators(
        operators(config.security.operators_from, config.security.operators_cn),
        config.security.cert_allowed_cn,
        has_certificates=bool(config.security.ssl_ca),
    )
    peers(config.security.peers_from)
    check_effects(config, Config())
    check_kafka(config)
    listen_address(config.addr)
    pump_addresses(config.upstream.pumps)
    advertised(config)
    retention_s("pump.gc", config.pump.gc)
    retention_s("drainer.trash-retention", config.drainer.trash_retention)
    kept_s("syncer.to.retention-time", config.syncer.to.retention_time)
    kept_s("archive.keep", config.archive.keep)
    budget, held = config.pump.memory_budget, min(config.pump.max_message_size, HELD_BYTES_MAX)
    if budget < 2 * held:
        raise ConfigError(
            f"pump.memory-budget: {budget} bytes are less than twice {held}: a binlog of so many"
            " bytes may be held on its way in, and another on its way out; raise it"
        )
    _check_trash(config)
    _check_relay(config.syncer)


def _check_relay(syncer: SyncerConfig) -> None:
    if syncer.relay.format != "binlogd":
        raise ConfigError(
            "syncer.relay.format: the relay log is written in binlogd's own format; one of a Go"
            " Drainer is restored from, and not written any more; remove the key"
        )
    if syncer.relay.log_dir and syncer.db_type not in ("mysql", "tidb"):
        raise ConfigError(
            'syncer.relay.log-dir: a relay log goes with db-type "mysql" or "tidb" only'
        )


def _check_security(config: Config) -> None:
    for name, table in tls_tables(config).items():
        if bool(table.ssl_cert) != bool(table.ssl_key):
            raise ConfigError(f"{name}: ssl-cert and ssl-key go together")
        if (table.ssl_key_password or table.ssl_key_password_file) and not table.ssl_key:
            raise ConfigError(f"{name}.ssl-key: is missing, and ssl-key-password is of that file")
        if not table.ssl_ca and (table.ssl_cert or table.cert_allowed_cn):
            raise ConfigError(
                f"{name}.ssl-ca: is missing; without it there is no TLS, and neither"
                " ssl-cert nor cert-allowed-cn would do anything"
            )
    if config.security.ssl_ca and not config.security.ssl_cert:
        raise ConfigError(
            "security.ssl-cert, security.ssl-key: are missing; with ssl-ca the port"
            " speaks TLS, and needs a certificate"
        )
    check_token(config.security.admin_token, "security.admin-token")


def _check_roles(config: Config) -> None:
    upstream = config.upstream
    if not config.roles:
        raise ConfigError('roles: is empty; give "pump", "drainer", or both')
    if config.roles == ("drainer",) * len(config.roles):
        if not config.drainer.enabled:
            raise ConfigError(
                'roles: only "drainer", and drainer.enabled is false: nothing is left'
                " to do; remove one of them"
            )
        if upstream.kind != "pd" and not upstream.pumps:
            raise ConfigError(
                f"roles: a drainer alone pulls the Pumps of others; name them in"
                f' upstream.pumps, or, as a registry, with upstream.kind = "pd" (it is'
                f' "{upstream.kind}")'
            )
        if upstream.kind == "standalone" and not upstream.cluster_id:
            raise ConfigError(
                "upstream.cluster-id: a drainer alone hears no writer that would say it;"
                " `binlogd status` of a Pump shows it"
            )


def _check_upstream(upstream: UpstreamConfig) -> None:
    urls = pd_addresses(upstream.pd_urls)
    tidb_addresses(upstream)
    if upstream.kind == "pd" and not urls:
        raise ConfigError(
            'upstream.pd-urls: is missing; with kind = "pd" name the cluster\'s PDs, as'
            ' in "http://10.0.0.1:2379,http://10.0.0.2:2379"'
        )
    if upstream.kind == "tidb" and not upstream.tidb:
        raise ConfigError(
            'upstream.tidb: is missing; with kind = "tidb" name the TiDB servers, as in'
            ' ["10.0.0.1:4000"]'
        )
    if upstream.kind != "standalone" and upstream.tso != "observed":
        raise ConfigError(
            f'upstream.tso: goes with kind = "standalone" only; with "{upstream.kind}"'
            " the cluster tells the time; remove the key"
        )


def _check_trash(config: Config) -> None:
    if config.drainer.trash_schema and config.syncer.db_type != "mysql":
        raise ConfigError(
            'drainer.trash-schema: goes with db-type "mysql" only; TiDB recovers tables'
            " by itself, files hold what was dropped"
        )
    if config.drainer.trash_schema.lower() == config.syncer.to.checkpoint.schema.lower():
        raise ConfigError(
            "drainer.trash-schema: must be another one than syncer.to.checkpoint.schema"
        )
    if config.drainer.trash_schema and any(r.target for r in config.syncer.table_migrate_rule):
        raise ConfigError(
            "drainer.trash-schema: does not go with a target in"
            " syncer.table-migrate-rule; what is dropped is dropped there"
        )


def _check_rule_names(syncer: SyncerConfig) -> None:
    for rule in syncer.table_migrate_rule:
        for name in rule.binlog_filter_rule:
            if name not in syncer.binlog_filter_rule:
                raise ConfigError(
                    f"event filter rule name {name} not found; write a table"
                    f" [syncer.binlog-filter-rule.{name}]"
                )


_OWN_VARIABLES = {
    "sql_mode": "use syncer.sql-mode",
    "autocommit": "rows and progress are one transaction",
    "foreign_key_checks": "REPLACE would delete the children of a row by cascade",
    "character_set_client": "statements are in utf8mb4",
    "character_set_connection": "statements are in utf8mb4",
    "collation_connection": "statements are in utf8mb4",
}
"""Session variables that binlogd sets itself, and why."""


def _check_params(params: dict[str, str]) -> None:
    for name, value in params.items():
        reason = _OWN_VARIABLES.get(name.lower())
        if reason is not None:
            raise ConfigError(f"syncer.to.params.{name}: is binlogd's own: {reason}")
        if name.lower() == "time_zone" and value.upper() in ("SYSTEM", "LOCAL"):
            raise ConfigError("'SYSTEM' or 'Local' time_zone is not supported")


def tls_tables(config: Config) -> dict[str, TlsConfig]:
    """Of the port, the downstream and its checkpoint, by their keys; each may be empty."""
    to = config.syncer.to
    return {
        "security": config.security,
        "syncer.to.security": to.security,
        "syncer.to.checkpoint.security": to.checkpoint.security,
    }


def tidb_addresses(upstream: UpstreamConfig) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """MySQL port and status port of each TiDB: `tidb-status` names the latter in the same order,
    or none of them, which is port 10080 of the same host. Raises ConfigError."""
    servers = [address_of("upstream.tidb", each.strip()) for each in upstream.tidb]
    if not upstream.tidb_status:
        return [(server, (server[0], TIDB_STATUS_PORT)) for server in servers]
    if len(upstream.tidb_status) != len(servers):
        raise ConfigError(
            f"upstream.tidb-status: {len(upstream.tidb_status)} status ports for"
            f" {len(servers)} servers of upstream.tidb; name one for each, in the same order"
        )
    ports = [address_of("upstream.tidb-status", each.strip()) for each in upstream.tidb_status]
    return list(zip(servers, ports, strict=True))


def advertised(config: Config) -> str:
    """`host:port` that others reach this node by: `advertise-addr`, else `addr`, with the host's
    name where that stands for all addresses. Raises ConfigError."""
    host, port = listen_address(config.addr)
    if not config.advertise_addr:
        return f"{socket.gethostname()}:{port}" if host in WILDCARDS else config.addr
    host, _ = address_of("advertise-addr", config.advertise_addr)
    if host in WILDCARDS:
        raise ConfigError(f'advertise-addr: nobody can reach "{host}"; name one address')
    return config.advertise_addr
