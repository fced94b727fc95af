"""What the keys of Kafka mean together, beside what each is for itself."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

import msgspec

from binlogd.errors import ConfigError
from binlogd.settings.effects import flattened

_TO = "syncer.to."
_MECHANISM, _TOKEN, _URL = (
    f"{_TO}kafka-{name}" for name in ("sasl-mechanism", "token-file", "token-url")
)
_REGISTRY = f"{_TO}schema-registry"


def check_kafka(config: msgspec.Struct) -> None:
    """Raises ConfigError that names the key."""
    values = dict(flattened(config))
    _check_topics(values)
    if values["syncer.db-type"] == "kafka":
        if values[f"{_TO}debezium-schemas"] and values[f"{_TO}protocol"] != "debezium":
            raise ConfigError(f'{_TO}debezium-schemas: goes with protocol = "debezium" only')
        _check_registry(values)
        _check_login(values)


def _check_topics(values: Mapping[str, Any]) -> None:
    topic = values[f"{_TO}topic-name"]
    try:
        fields = {name for _, name, *_ in Formatter().parse(topic) if name is not None}
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
        keys = (f"{_REGISTRY}{name}" for name in ("", "-user", "-password", "-password-file"))
        for key in keys:
            if values[key]:
                raise ConfigError(f'{key}: goes with protocol = "debezium-avro" only')
    elif not url.startswith(("http://", "https://")):
        raise ConfigError(f'{_REGISTRY}: expected a URL, as in "https://registry:8081"')
    elif values["syncer.sync-ddl"]:
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
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(f'{_URL}: expected a URL, as in "https://login.example.com/token"')
    places = (f"{_TO}{name}" for name in ("password", "password-file", "encrypted-password"))
    if mechanism and (url or not is_token) and not any(values[place] for place in places):
        raise ConfigError(f"{_TO}password: is missing; {mechanism} logs in with user and password")
