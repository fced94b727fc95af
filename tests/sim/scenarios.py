"""Seeds that once found something, by what it was: they are lived through again in every run."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.plan import Plan, before_the_database, drawn, with_partitions
from tests.sim.replica import Database


def plan(seed: int, *, transactions: int | None = None, without: tuple[str, ...] = ()) -> Plan:
    """The plan of a seed, made smaller as `python -m tests.sim` says it."""
    return _smaller(drawn(seed), transactions, without)


def short(seed: int) -> Plan:
    """The plan of a short life."""
    return drawn(seed, is_short=True)


def in_memory(seed: int, *, transactions: int | None = None, without: tuple[str, ...] = ()) -> Plan:
    """As `plan`, as it was when the downstream was a store in memory."""
    return _smaller(before_the_database(seed), transactions, without)


def _smaller(whole: Plan, transactions: int | None, without: tuple[str, ...]) -> Plan:
    kept = tuple(each for each in whole.faults if each not in without)
    habit = whole.habit
    if transactions is not None:
        habit = replace(habit, transactions=transactions)
    return replace(whole, faults=kept, habit=habit)


def _emptied(seed: int) -> Plan:
    """A short life in which partitions are emptied every few transactions."""
    whole = short(seed)
    return replace(whole, habit=replace(with_partitions(whole.habit), ddl_every=5))


def _few(seed: int, faults: tuple[str, ...], database: Database, transactions: int) -> Plan:
    """A seed's world of before the database with this one, and these faults alone."""
    whole = in_memory(seed, transactions=transactions)
    return replace(whole, faults=faults, database=database, fault_every_s=2.0)


SCENARIOS: dict[str, Plan] = {
    "a loss of power leaves any bytes in the last frame of a relay log": in_memory(37),
    "a prewrite that went to another Pump comes to the first one too late": in_memory(33),
    "a failover loses a table that rows come for": replace(
        in_memory(2), faults=("fail over", "pd steps"), database=Database(changes_max=20)
    ),
    "a Drainer is paused before the first binlog and resumed": _few(
        0, ("pause drainer",), Database(), transactions=10
    ),
    "a Drainer whose lanes stand apart is stopped before it is given anything": short(156),
    "a copy takes over between the checkpoint and the progress beside it": plan(
        10058, transactions=16
    ),
    "a copy takes over between a look at the lanes and the save of a checkpoint": plan(10231),
    "a Drainer dies between a DDL that is done and the end of its note": _emptied(175),
}
