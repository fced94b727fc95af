"""Containers of a node that have a limit, and when they are full: then memory may be judged.

A leak in a container that is not named here is entries without a limit, which have a slope of
their own. Source: docs/reference/sizing.md, tests/unit/test_remembered.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LIMITED = (
    "pump.shard.sorter.Sorter._outcomes",
    "pump.shard.window.Window.",
    "pump.shard.chaser.Tail._entries",
    "drainer.early_columns.EarlyColumns._kept",
    "drainer.early_columns.EarlyColumns._last_ahead",
    "drainer.early_columns.EarlyColumns._done",
    "drainer.session.Session._ahead",
    "drainer.rows.literals.",
    "tidb.times.",
    "tidb.columns.",
    "tidb.decimals.",
    "tidb.known_tables.KnownTables.gone",
    "tidb.schema.SchemaTracker._applied",
    "upstream.keyspace.versions.Keyspace._log",
    "node.samples.SampleHistory.",
    "drainer.slow.",
)
FOR_GOOD = ("tidb.job_index.JobIndex.",)
"""Four numbers for each DDL job."""
FULL_SHARE = 0.99
"""What may still come is then less than a rise that matters."""

MOST = {
    "pump.shard.sorter.Sorter._outcomes": 32_768,
    "pump.shard.window.Window._kept": 2 * 65_536,
    "drainer.early_columns.EarlyColumns._kept": 50_000,
    "drainer.rows.literals._CLOCK_AT": 16_384,
    "drainer.rows.literals._DAYS_AT": 4_096,
    "tidb.times.day_text": 4_096,
    "upstream.keyspace.versions.Keyspace._log": 2 * 1_000 * 4,
}
"""Entries of one of them at most; a process has one `Sorter` and `Window` for each shard."""
OF_SHARDS = "pump.shard."


@dataclass(frozen=True, slots=True)
class Look:
    """What a process held at a second of the run, by `Type.attribute`."""

    at_s: float
    containers: Mapping[str, int]
    objects: int
    lasting_threads: int = 0
    """But for those that a pool of few begins when it needs them."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """In use, and held for later by the allocator (`watched.py`)."""

    @property
    def limited(self) -> int:
        """Entries of containers with a limit."""
        return sum(n for name, n in self.containers.items() if _is_of(name, LIMITED))

    def above_limit(self, shards: int) -> Mapping[str, int]:
        """Containers that hold more than they may."""
        return {
            name: self.containers[f"binlogd.{name}"]
            for name, most in MOST.items()
            if self.containers.get(f"binlogd.{name}", 0)
            > most * (shards if name.startswith(OF_SHARDS) else 1)
        }

    @property
    def unlimited(self) -> Mapping[str, int]:
        """Those of the program that have none."""
        return {
            name: entries
            for name, entries in self.containers.items()
            if name.startswith("binlogd.") and not _is_of(name, (*LIMITED, *FOR_GOOD))
        }


def full_since_s(looks: Sequence[Look]) -> float | None:
    """From when on containers with a limit held what they hold at the end, some of it more or less:
    None where they were still filling then."""
    if len(looks) < 2:
        return None
    enough = FULL_SHARE * looks[-1].limited
    at_s = next(look.at_s for look in looks if look.limited >= enough)
    return at_s if at_s < looks[-1].at_s else None


def _is_of(name: str, places: Sequence[str]) -> bool:
    return name.removeprefix("binlogd.").startswith(tuple(places))
