"""What a seed means: all that is drawn before the first moment of its world.

A plan can be made smaller, field by field, and is printed as the options of a command that repeats
it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.sim.replica import Database
from tests.sim.tidb import Habit, small
from tests.workload.tables import BANK, PARTITIONED, SHOP

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

DATABASE_KINDS = (
    "pause drainer",
    "commits cut",
    "statements cut",
    "deadlocks",
    "slow database",
    "connections refused",
    "read-only database",
    "kill database",
    "fail over",
)
"""Of a world whose downstream is a MySQL."""
_WEEK_S = 7 * 86_400.0
_SLOW_EVERY = 8
"""Of short lives one in so many has a slow database: with a quick one lanes hardly ever stand apart
when a life ends, and no kill meets a DDL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world. Times in virtual seconds."""

    seed: int
    is_short: bool = False
    """Whether it was drawn as a short life."""
    faults: tuple[str, ...] = ()
    fault_every_s: float = 20.0
    shards: int = 2
    segment_bytes_max: int = 20_000
    index_queue_max: int = 64
    gc_keep_s: float = _WEEK_S
    gc_every_s: float = 3_600.0
    splits: float = 0.0
    flips: float = 0.02
    second_pump_after_s: float = 0.0
    database: Database | None = None
    """None: a store in memory takes the transactions."""
    habit: Habit = field(default_factory=Habit)

    @property
    def has_gc(self) -> bool:
        """Whether a Pump removes what is saved downstream before the end of the world."""
        return self.gc_keep_s < _WEEK_S


def drawn(seed: int, *, is_short: bool = False) -> Plan:
    """The plan of a seed; or a short life with the same faults, of which the gate can afford two
    hundred."""
    whole = with_database(before_the_database(seed))
    return shortened(whole) if is_short else whole


def shortened(plan: Plan) -> Plan:
    """A quarter of the transactions in less than a tenth of the time: what is drawn is the same,
    and comes as often between two transactions, or oftener."""
    habit = replace(
        plan.habit,
        sessions=max(2, plan.habit.sessions),
        transactions=max(8, plan.habit.transactions // 4),
        pause_s=min(plan.habit.pause_s, 1.5),
        ddl_every=plan.habit.ddl_every // 4,
    )
    database = plan.database
    if database is not None and plan.seed % _SLOW_EVERY == _SLOW_EVERY - 1:
        database = replace(database, latency_s=(0.0001, 0.3), ddl_s=(0.0, 2.0))
    return replace(
        plan,
        is_short=True,
        habit=habit,
        database=database,
        fault_every_s=plan.fault_every_s / 4,
        gc_keep_s=min(plan.gc_keep_s, 5.0) if plan.has_gc else plan.gc_keep_s,
        gc_every_s=min(plan.gc_every_s, 2.0) if plan.has_gc else plan.gc_every_s,
    )


def with_database(plan: Plan) -> Plan:
    """A MySQL as the downstream, and what may go wrong with it."""
    rng = random.Random(f"{plan.seed} database")
    share = rng.choice((0.15, 0.3, 0.5)) if plan.faults else 0.0
    faults = tuple(kind for kind in DATABASE_KINDS if rng.random() < share)
    lanes = rng.choice((1, 2, 3, 8))
    is_transactional = rng.random() < 0.5
    lives = [(lanes, is_transactional)]
    if rng.random() < 0.2:  # the operator changes it now and then
        lives = [(rng.choice((1, 2, 3, 8)), rng.random() < 0.5) for _ in range(6)]
    database = Database(
        lives=tuple(lives),
        changes_max=rng.choice((3, 20, 2_000)),
        cut_changes_max=rng.choice((10, 50_000)),
        latency_s=(0.0001, rng.choice((0.001, 0.01))),
        linger_s=rng.choice(((0.0, 0.0), (0.0, 0.1), (0.0, 8.0))),
    )
    habit = replace(plan.habit, changes_columns=rng.random() < 0.7)
    if rng.random() < 0.3:
        habit = with_partitions(habit)
    return replace(plan, faults=(*plan.faults, *faults), database=database, habit=habit)


def with_partitions(habit: Habit) -> Habit:
    """With a table in partitions, which DDLs empty and drop."""
    others = tuple(each for each in habit.tables if each is not PARTITIONED)
    return replace(habit, tables=(*others, PARTITIONED))


def before_the_database(seed: int) -> Plan:
    """The plan of a seed with a store in memory, which takes whole transactions, as downstream."""
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
        tables=small((*BANK, *SHOP), rng, rng.randint(2, 5)),
    )
    return Plan(
        seed=seed,
        faults=faults,
        fault_every_s=rng.choice((3.0, 10.0, 30.0)),
        shards=rng.choice((1, 2, 4)),
        segment_bytes_max=rng.choice((4_000, 20_000, 200_000)),
        index_queue_max=rng.choice((8, 64, 4_096)),
        gc_keep_s=rng.choice((5.0, 60.0)) if has_gc else _WEEK_S,
        gc_every_s=rng.choice((5.0, 30.0)) if has_gc else 3_600.0,
        splits=rng.choice((0.0, 0.05, 0.3)),
        flips=rng.choice((0.0, 0.02, 0.3)),
        second_pump_after_s=rng.choice((0.0, 0.0, 15.0)),
        habit=habit,
    )
