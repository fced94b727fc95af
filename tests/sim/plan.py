"""What a seed means: all that is drawn before the first moment of its world.

A plan can be made smaller, field by field, and is printed as the options of a command that repeats
it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.sim.tidb import Habit, small
from tests.workload.tables import BANK, SHOP

KINDS = (
    "kill pump",
    "power of pump",
    "stop pump",
    "kill drainer",
    "power of drainer",
    "stop drainer",
    "slow sync",
    "sync fails",
    "disk full",
    "pd silent",
    "tikv silent",
    "history silent",
    "pd steps",
    "clock jumps",
    "cut",
    "half open",
    "partition",
    "slow network",
    "downstream",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world. Times in virtual seconds."""

    seed: int
    faults: tuple[str, ...] = ()
    fault_every_s: float = 20.0
    shards: int = 2
    segment_bytes_max: int = 20_000
    index_queue_max: int = 64
    gc_keep_s: float = 7 * 86_400.0
    gc_every_s: float = 3_600.0
    splits: float = 0.0
    flips: float = 0.02
    second_pump_after_s: float = 0.0
    habit: Habit = field(default_factory=Habit)


def drawn(seed: int, *, changes_columns: bool = False) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"{seed} plan")
    is_calm = rng.random() < 0.05
    share = rng.choice((0.15, 0.3, 0.5))
    faults = tuple(kind for kind in KINDS if not is_calm and rng.random() < share)
    has_gc = rng.random() < 0.5
    habit = Habit(
        sessions=rng.randint(1, 6),
        transactions=rng.randint(20, 90),
        pause_s=rng.choice((0.3, 2.0, 8.0, 20.0)),
        rollbacks=rng.choice((0.0, 0.1, 0.4)),
        lost=rng.choice((0.0, 0.05, 0.3)),
        late=rng.choice((0.0, 0.2, 0.5)),
        repeats=rng.choice((0.0, 0.1, 0.4)),
        large=rng.choice((0.0, 0.02)),
        ddl_every=rng.choice((0, 8, 25)),
        changes_columns=changes_columns,
        tables=small((*BANK, *SHOP), rng, rng.randint(2, 5)),
    )
    return Plan(
        seed=seed,
        faults=faults,
        fault_every_s=rng.choice((3.0, 10.0, 30.0)),
        shards=rng.choice((1, 2, 4)),
        segment_bytes_max=rng.choice((4_000, 20_000, 200_000)),
        index_queue_max=rng.choice((8, 64, 4_096)),
        gc_keep_s=rng.choice((5.0, 60.0)) if has_gc else 7 * 86_400.0,
        gc_every_s=rng.choice((5.0, 30.0)) if has_gc else 3_600.0,
        splits=rng.choice((0.0, 0.05, 0.3)),
        flips=rng.choice((0.0, 0.02, 0.3)),
        second_pump_after_s=rng.choice((0.0, 0.0, 15.0)),
        habit=habit,
    )
