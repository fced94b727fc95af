"""Limits of one shard: of its log, of what files it into the index, and of who pulls from it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.slow import SlowWrites


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingOptions:
    """`every_s` lets rows gather for one transaction; `marks_every_s` bounds how much a restart
    after a crash scans; `retry_s` is the wait after a failed transaction, and at close it is tried
    for `patience_s`."""

    queue_max: int = 65_536
    batch_max: int = 4_096
    every_s: float = 0.1
    marks_every_s: float = 1.0
    retry_s: float = 1.0
    patience_s: float = 5.0
    slow_chaser_after_s: float = 3.0
    suspects_max: int = 4_096
    """Commits that may be late and are not checked: above it writing waits for the index."""


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one shard. `group_bytes_max` bounds what one sync makes durable."""

    log: LogLimits = msgspec.field(default_factory=LogLimits)
    filing: FilingOptions = msgspec.field(default_factory=FilingOptions)
    group_bytes_max: int = 8 << 20
    window_bytes_max: int = 16 << 20
    window_commits_max: int = 65_536
    believes_rollbacks: bool = True
    slow: SlowWrites | None = None
    """Whom writes are told; None: nobody."""


class PullOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one batch. `skip_orphans`: pass over commits without a prewrite, as the original
    does, instead of stopping."""

    commits_max: int = 1_024
    bytes_max: int = 4 << 20
    skip_orphans: bool = False
