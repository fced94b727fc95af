"""What the keys of Kafka mean together, beside what each is for itself."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

import msgspec

from binlogd.errors import ConfigError
from binlogd.settings.effects import flattened

_TO = "syncer.to."
_MECHANISM, _TOKEN = f"{_TO}kafka-sasl-mechanism", f"{_TO}kafka-token-file"


def check_kafka(config: msgspec.Struct) -> None:
    """Raises ConfigError that names the key."""
    values = dict(flattened(config))
    _check_topics(values)
    if values["syncer.db-type"] == "kafka":
        if values[f"{_TO}debezium-schemas"] and values[f"{_TO}protocol"] != "debezium":
            raise ConfigError(f'{_TO}debezium-schemas: goes with protocol = "debezium" only')
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


def _check_login(values: Mapping[str, Any]) -> None:
    """A login that could never succeed is refused, and one that nobody would be asked for."""
    mechanism, token_file = values[_MECHANISM], values[_TOKEN]
    if mechanism == "OAUTHBEARER" and not token_file:
        raise ConfigError(f"{_TOKEN}: is missing; OAUTHBEARER shows the token that stands there")
    if token_file and mechanism != "OAUTHBEARER":
        raise ConfigError(f'{_TOKEN}: goes with kafka-sasl-mechanism = "OAUTHBEARER" only')
    places = (f"{_TO}{name}" for name in ("password", "password-file", "encrypted-password"))
    if mechanism not in ("", "OAUTHBEARER") and not any(values[place] for place in places):
        raise ConfigError(f"{_TO}password: is missing; {mechanism} logs in with user and password")
