"""Which keys do something beside which others, and which are refused where they would do nothing;
what those of Kafka mean together, and what the value of a key may be, whatever the others say.

A Drainer's `[syncer]` is pasted unchanged, with the keys of all its downstreams in it. What merely
belongs to another one is left alone, and said: by `binlogd check-config`, and by a line in the log
of a start. What promises something (encryption, a place for the checkpoint) is refused until it is
kept. A test walks all keys, and holds this table to what the parts of a node ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

import msgspec

from binlogd.errors import ConfigError
from binlogd.settings.quantities import address_of, check_url

FILES, DATABASES, SQLITE, KAFKA = ("file", "pb"), ("mysql", "tidb"), ("sqlite",), ("kafka",)
_TO = "syncer.to."
_LOGIN = tuple(
    f"{_TO}{name}" for name in ("user", "password", "password-file", "encrypted-password")
)

ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("syncer.sql-mode", "syncer.worker-count", "syncer.txn-batch", "syncer.safe-mode"),
            *("syncer.consistency", "syncer.enable-dispatch", "syncer.disable-dispatch"),
            *(f"{_TO}{name}" for name in ("host", "port", "params", "sync-mode", "merge")),
            *(f"{_TO}{name}" for name in ("sql-shape", "original-shape-table")),
            *(f"{_TO}checkpoint.{name}" for name in ("schema", "table", "port", "user")),
            *(f"{_TO}checkpoint.password{way}" for way in ("", "-file")),
            f"{_TO}checkpoint.encrypted-password",
        ),
        DATABASES,
    ),
    **dict.fromkeys(_LOGIN, (*DATABASES, *KAFKA)),
    "syncer.row-not-found": (*DATABASES, *SQLITE),
    f"{_TO}dir": (*FILES, *SQLITE),
    f"{_TO}compression": FILES,
    f"{_TO}retention-time": FILES,
    **dict.fromkeys(
        (
            *(f"{_TO}{name}" for name in ("kafka-addrs", "kafka-client-id")),
            *(f"{_TO}{name}" for name in ("kafka-max-message-size", "topic-name")),
            *(f"{_TO}kafka-{name}" for name in ("compression", "sasl-mechanism", "token-file")),
            *(f"{_TO}kafka-token-{name}" for name in ("url", "scope")),
            *(f"{_TO}schema-registry{of}" for of in ("", "-user", "-password", "-password-file")),
            *(f"{_TO}{name}" for name in ("protocol", "debezium-schemas", "partitions")),
        ),
        KAFKA,
    ),
}
"""The downstreams (`syncer.db-type`) for which a key does something; all, where it is not here."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "syncer.enable-detect": "conflicts are always told apart by keys",
    "syncer.disable-detect": "conflicts are always told apart by keys",
    f"{_TO}read-timeout": "every statement and question has a limit of its own",
    f"{_TO}kafka-version": "the broker is asked what it speaks",
    f"{_TO}kafka-max-messages": "what waits is sent, within limits of bytes",
    f"{_TO}checkpoint.type": "MySQL, MariaDB and TiDB are spoken to alike; `host` says where",
}
"""Keys of the original that do nothing here, at any value, and why."""

_BY_SWITCH: Mapping[str, tuple[str, ...]] = {
    "archive.url": ("archive.",),
    "drainer.trash-schema": ("drainer.trash-",),
    "export.dir": ("export.",),
    "syncer.loopback-control": ("syncer.channel-id",),
    "syncer.relay.log-dir": ("syncer.relay.",),
    "syncer.table-migrate-rule": ("syncer.case-sensitive",),
    f"{_TO}checkpoint.host": tuple(
        f"{_TO}checkpoint.{name}"
        for name in ("port", "user", "password", "encrypted-password", "security.")
    ),
    "telemetry.otlp-endpoint": ("telemetry.",),
    "upstream.tidb": (
        *("upstream.tidb-status", "upstream.user", "upstream.sql-tls"),
        *("upstream.password", "upstream.encrypted-password"),
    ),
}
"""Beginnings of keys that nothing asks for as long as another key is not set."""


def flattened(table: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; a table by operators' names, and a list, are one value."""
    for name, written in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
        key, value = f"{prefix}{written}", getattr(table, name)
        if isinstance(value, msgspec.Struct):
            yield from flattened(value, f"{key}.")
        else:
            yield key, value


def check_effects(config: msgspec.Struct, defaults: msgspec.Struct) -> None:
    """Raises ConfigError for a key that promises what is not done."""
    values, usual = dict(flattened(config)), dict(flattened(defaults))
    db_type = values["syncer.db-type"]
    if db_type not in DATABASES:
        for key, value in values.items():
            if value != usual[key] and key.startswith(_PROMISES) and not _is_kept(key, db_type):
                raise ConfigError(
                    f'{key}: does nothing with db-type "{db_type}": {_why(key, db_type)};'
                    " remove the key"
                )
    elif values[f"{_TO}checkpoint.type"] and not values[f"{_TO}checkpoint.host"]:
        raise ConfigError(
            f"{_TO}checkpoint.host: is missing; with a type and without a host a Go Drainer takes"
            " 127.0.0.1: name that, or remove the type to have the checkpoint beside the data"
        )


_PROMISES = (
    f"{_TO}security.",
    f"{_TO}checkpoint.type",
    f"{_TO}checkpoint.host",
    f"{_TO}checkpoint.security.",
)
"""Beginnings of keys by which data would be encrypted, or a checkpoint be elsewhere."""


def _is_kept(key: str, db_type: str) -> bool:
    """TLS to Kafka is; whom a certificate must be of is said by its host name there."""
    security = f"{_TO}security."
    return db_type in KAFKA and key.startswith(security) and key != f"{security}cert-allowed-cn"


def _why(key: str, db_type: str) -> str:
    if key.startswith(f"{_TO}checkpoint."):
        return "its checkpoint is kept with what is written"
    if db_type == "kafka":
        return "the broker's certificate has to be of the host that kafka-addrs names"
    return "it is written to this machine's disk"


def without_effect(config: msgspec.Struct, defaults: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Keys that are not at their defaults and do nothing, each with the reason."""
    values, usual = dict(flattened(config)), dict(flattened(defaults))
    return ((key, why) for key, why in idle_keys(config) if values[key] != usual[key])


def idle_keys(config: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Keys that do nothing as the others stand, at any value, each with the reason."""
    values = dict(flattened(config))
    db_type, idle = values["syncer.db-type"], dict(_idle(values))
    for key in values:
        if (begin := next(filter(key.startswith, idle), None)) is not None:
            yield key, idle[begin]
        elif key in WITHOUT_EFFECT:
            yield key, WITHOUT_EFFECT[key]
        elif db_type not in ONLY_FOR.get(key, (db_type,)):
            yield key, f'it does nothing with db-type "{db_type}"'
        elif key in _LOGIN and db_type in KAFKA and not _takes_password(values):
            yield key, f'{_TO}kafka-sasl-mechanism = "{values[_MECHANISM]}" takes no password'
        elif not _is_of_the_shape(key, values):
            yield key, f'not as {_TO}sql-shape = "{values[_SHAPE]}" has it'


def _idle(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Beginnings of keys that nothing asks for as the others stand, each with the reason."""
    kind, roles = values["upstream.kind"], values["roles"]
    of_kind = f'it does nothing with upstream.kind "{kind}"'
    if kind == "standalone":
        yield from dict.fromkeys(("upstream.tidb", *_BY_SWITCH["upstream.tidb"]), of_kind).items()
    yield ("upstream.embedded-pd", of_kind) if kind == "pd" else ("upstream.pd-urls", of_kind)
    if values["upstream.abandoned-prewrite"] == "wait":
        yield "upstream.txn-timeout", 'it counts with upstream.abandoned-prewrite = "rollback"'
    if "pump" not in roles:
        without_log = 'this node has no log: roles has no "pump"'
        yield from (("archive.", without_log), ("export.", without_log))
    if "drainer" not in roles or not values["drainer.enabled"]:
        yield "upstream.pumps", "this node replicates nothing"
    rules = values["syncer.table-migrate-rule"]
    named = {name for rule in rules for name in rule.binlog_filter_rule}
    if unnamed := ", ".join(sorted(values["syncer.binlog-filter-rule"].keys() - named)):
        yield "syncer.binlog-filter-rule", f"no syncer.table-migrate-rule names {unnamed}"
    for switch, begins in _BY_SWITCH.items():
        if not values[switch]:
            yield from dict.fromkeys(begins, f"{switch} is not set").items()


_MECHANISM = f"{_TO}kafka-sasl-mechanism"


def _takes_password(values: Mapping[str, Any]) -> bool:
    is_by_token = values[_MECHANISM] == "OAUTHBEARER" and not values[f"{_TO}kafka-token-url"]
    return values[_MECHANISM] != "" and not is_by_token


_SHAPE, _TABLES, _MERGE = f"{_TO}sql-shape", f"{_TO}original-shape-table", f"{_TO}merge"


def _is_of_the_shape(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a key means something for statements in the shape that is chosen."""
    is_original = values[_SHAPE] == "original"
    if key == _TABLES:
        return not is_original
    if key == "syncer.txn-batch":
        return is_original and not values[_MERGE]
    return key not in ("syncer.safe-mode", _MERGE) or is_original or bool(values[_TABLES])


# --- Kafka ---------------------------------------------------------------------------------

_ADDRS = f"{_TO}kafka-addrs"
_TOKEN, _URL = f"{_TO}kafka-token-file", f"{_TO}kafka-token-url"
_REGISTRY = f"{_TO}schema-registry"


def check_kafka(config: msgspec.Struct) -> None:
    """What its keys mean together. Raises ConfigError that names the key."""
    values = dict(flattened(config))
    _check_topics(values)
    if values["syncer.db-type"] == "kafka":
        brokers = [each.strip() for each in values[_ADDRS].split(",") if each.strip()]
        for each in brokers:  # the port may be left out
            address_of(_ADDRS, each if re.search(r"(^[^:]*|\]):[^:]*$", each) else f"{each}:9092")
        if not brokers:
            raise ConfigError(f'{_ADDRS}: names no broker; write "host:port"')
        if values[f"{_TO}debezium-schemas"] and values[f"{_TO}protocol"] != "debezium":
            raise ConfigError(f'{_TO}debezium-schemas: goes with protocol = "debezium" only')
        _check_registry(values)
        _check_login(values)


def _check_topics(values: Mapping[str, Any]) -> None:
    topic = values[f"{_TO}topic-name"]
    try:
        parts = [part for _, *part in Formatter().parse(topic) if part[0] is not None]
        fields = {"".join(filter(None, part)) for part in parts}  # with `!r` and `:9`
    except ValueError:
        fields = {topic}
    if fields - {"schema", "table"}:
        raise ConfigError(f"{_TO}topic-name: only {{schema}} and {{table}} are known")
    is_original = values[f"{_TO}protocol"] == "tidb-binlog"
    if is_original and (fields or values[f"{_TO}partitions"] > 1):
        raise ConfigError(
            f'{_TO}protocol "tidb-binlog" has one topic with one partition: a message is a whole'
            ' transaction; use "canal-json" or "debezium" for more'
        )
    is_avro = values["syncer.db-type"] == "kafka" and values[f"{_TO}protocol"] == "debezium-avro"
    if is_avro and "table" not in fields:
        raise ConfigError(
            f'{_TO}topic-name: "debezium-avro" has a topic, and so its subjects, for each table;'
            " write {table} into it, and {schema} where there is more than one"
        )


def _check_registry(values: Mapping[str, Any]) -> None:
    """A subject has the schemas of one kind of message: DDLs have no place there."""
    url = values[_REGISTRY]
    if values[f"{_TO}protocol"] != "debezium-avro":
        for key in values:
            if values[key] and key.startswith(_REGISTRY):
                raise ConfigError(f'{key}: goes with protocol = "debezium-avro" only')
        return
    check_url(_REGISTRY, url)
    if values["syncer.sync-ddl"]:
        raise ConfigError(
            'syncer.sync-ddl: must be false with protocol = "debezium-avro": a DDL is no message'
            " there, it shows as the next schema of its table"
        )


def _check_login(values: Mapping[str, Any]) -> None:
    """A login that could never succeed is refused, and one that nobody would be asked for."""
    mechanism, token_file, url = values[_MECHANISM], values[_TOKEN], values[_URL]
    is_token = mechanism == "OAUTHBEARER"
    if is_token and not (token_file or url):
        raise ConfigError(
            f"{_TOKEN}: is missing; OAUTHBEARER shows the token that stands there, or one that"
            " kafka-token-url gives"
        )
    if token_file and url:
        raise ConfigError(f"{_TOKEN} and {_URL}: give one of them")
    for key in (_TOKEN, _URL):
        if values[key] and not is_token:
            raise ConfigError(f'{key}: goes with kafka-sasl-mechanism = "OAUTHBEARER" only')
    if values[f"{_TO}kafka-token-scope"] and not url:
        raise ConfigError(f"{_TO}kafka-token-scope: goes with kafka-token-url only")
    if url:
        check_url(_URL, url)
    if mechanism and (url or not is_token) and not any(values[place] for place in _LOGIN[1:]):
        raise ConfigError(f"{_TO}password: is missing; {mechanism} logs in with user and password")


# --- values --------------------------------------------------------------------------------

_MOST = {
    **dict.fromkeys(("pump.shards", "syncer.worker-count"), 1024),
    f"{_TO}partitions": (1 << 31) - 1,
    "syncer.channel-id": (1 << 63) - 1,
    "upstream.cluster-id": (1 << 64) - 1,
}
"""Each shard has files and tasks of its own, each lane a connection; others cannot hold more."""
_HISTORY = "upstream.schema-history"
_NAMES = frozenset(("data-dir", f"{_TO}checkpoint.schema", f"{_TO}checkpoint.table"))
"""Keys that are never empty."""
_POSITIVE = frozenset(
    (
        *(f"pump.{name}" for name in ("shards", "fake-binlog-interval", "heartbeat-interval")),
        *(f"pump.{name}" for name in ("close-timeout", "timestamp-ahead-max", "max-message-size")),
        *("drainer.checkpoint-interval", "archive.interval", "telemetry.slow-transaction"),
        *("syncer.worker-count", "syncer.txn-batch", "syncer.to.partitions"),
        *("pump.segment-size", "syncer.relay.max-file-size", "syncer.relay.restore-after"),
        *(f"security.connections-{name}" for name in ("max", "per-client-max")),
        "security.connection-idle-timeout",
    )
)
"""Keys whose number is above 0."""


def check_values(config: msgspec.Struct) -> None:
    """Each by itself. Raises ConfigError that names the key."""
    for key, value in flattened(config):
        if key in _POSITIVE and value <= 0:
            raise ConfigError(f"{key}: must be above 0, is {value}")
        if key.endswith(".port") and not 0 < value < 1 << 16:
            raise ConfigError(f"{key}: a port is 1 to 65535, got {value}")
        if (key == "telemetry.otlp-endpoint" and value) or (key == _HISTORY and "://" in value):
            check_url(key, value)
        if key.endswith(".host") and value:
            address_of(key, f"{value}:1")
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{key}: holds a NUL, which no name or path can; remove it")
        if key in _NAMES and not value:
            raise ConfigError(f"{key}: is empty; give it a name, or remove the key")
        if key == f"{_TO}checkpoint.table" and value.lower() in ("progress", "shapes"):
            raise ConfigError(f"{key}: {value} is a table of binlogd's own there; name another")
        if key in _MOST and abs(value) > _MOST[key]:
            raise ConfigError(f"{key}: at most {_MOST[key]}, got {value}")
