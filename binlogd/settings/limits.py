"""What the value of a key may be, whatever the others say."""

from __future__ import annotations

import msgspec

from binlogd.errors import ConfigError
from binlogd.settings.effects import flattened

_MOST = {"pump.shards": 1024, "syncer.worker-count": 1024}
"""Each shard has files and tasks of its own, each lane a connection."""
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
    """Raises ConfigError that names the key."""
    for key, value in flattened(config):
        if key in _POSITIVE and value <= 0:
            raise ConfigError(f"{key}: must be above 0, is {value}")
        if key.endswith(".port") and not 0 < value < 1 << 16:
            raise ConfigError(f"{key}: a port is 1 to 65535, got {value}")
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{key}: holds a NUL, which no name or path can; remove it")
        if key in _MOST and value > _MOST[key]:
            raise ConfigError(f"{key}: at most {_MOST[key]}, got {value}")
