"""Checkpoint: up to where everything has been applied, in the words of the original.

The JSON is that of `tidb_binlog.checkpoint`, so that the original's tools read ours and a Drainer
can be replaced in either direction. Keys that are missing count as their zero; keys that are not
known are let pass. Source: tidb-binlog drainer/checkpoint/mysql.go and util.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from binlogd.errors import ConfigError, Unavailable
from binlogd.tso import Tso, physical_ms

_KNOWN_NAMES = {"master-ts": "primary-ts", "slave-ts": "secondary-ts"}


class BeginsAhead(Unavailable):
    """What the replication is to begin behind lies in the future: a wrong number, or clock."""

    todo = (
        "correct drainer.initial-commit-ts, or the checkpoint (`binlogd checkpoint --set`), or set"
        " the clock of this machine right; if that time is meant, raise pump.timestamp-ahead-max"
    )

    def __init__(self, commit_ts: Tso, newest_ts: Tso) -> None:
        ahead_s = (physical_ms(commit_ts) - physical_ms(newest_ts)) / 1000
        super().__init__(
            f"the replication is to begin behind commit_ts {commit_ts}, {ahead_s:.0f} s beyond what"
            " can have committed by now: all that comes until then would be passed over"
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every transaction with a commit_ts up to `commit_ts` is downstream.

    `consistent` says that nothing after it is: the downstream equals the upstream at `commit_ts`.
    `ts_map` may hold `primary-ts` and `secondary-ts`, for comparing two TiDB clusters.
    """

    commit_ts: Tso
    consistent: bool = False
    schema_version: int = 0
    ts_map: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """As the original writes it, in its order of keys."""
        return msgspec.json.encode(
            {
                "consistent": self.consistent,
                "commitTS": self.commit_ts,
                "ts-map": dict(self.ts_map),
                "schema-version": self.schema_version,
            }
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> Checkpoint:
        """Raises ConfigError for a text that no Drainer has written."""
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the stored checkpoint is not one of a Drainer ({error}); correct or delete its"
                " row or file, and give drainer.initial-commit-ts"
            ) from error
        named = {_KNOWN_NAMES.get(name, name): ts for name, ts in (stored.ts_map or {}).items()}
        return cls(Tso(stored.commit_ts), stored.consistent, stored.schema_version, named)


class _Stored(msgspec.Struct):
    consistent: bool = False
    commit_ts: int = msgspec.field(name="commitTS", default=0)
    ts_map: dict[str, int] | None = msgspec.field(name="ts-map", default=None)
    schema_version: int = msgspec.field(name="schema-version", default=0)
