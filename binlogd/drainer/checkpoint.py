"""How far a replication has come, as it is stored downstream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything up to commit_ts is downstream; consistent when nothing after it is."""

    commit_ts: Tso
    consistent: bool
    schema_version: int
    ts_map: Mapping[str, int] = field(default_factory=dict)
