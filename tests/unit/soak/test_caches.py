"""When caches are full, and what has no limit, is told from counts."""

from __future__ import annotations

from tests.soak.caches import Look, full_since_s
from tests.support.held import LONG_MIN, long_containers, objects_below

OUTCOMES = "binlogd.pump.shard.sorter.Sorter._outcomes"


def looks(*entries: int) -> list[Look]:
    return [Look(60.0 * at, {OUTCOMES: each}, 1) for at, each in enumerate(entries)]


def test_caches_are_full_from_when_they_hold_what_they_hold_at_the_end() -> None:
    assert full_since_s(looks(10, 500, 985, 995, 990, 1000)) == 180.0


def test_caches_that_fill_to_the_end_are_not_full() -> None:
    assert full_since_s(looks(100, 200, 300, 400)) is None
    assert full_since_s(looks(100)) is None


def test_a_container_that_nobody_named_has_no_limit_and_one_above_its_limit_is_told() -> None:
    look = Look(0, {OUTCOMES: 40_000, "binlogd.node.lag.Lag._seen": 700, "other.T.x": 900}, 1)
    assert look.unlimited == {"binlogd.node.lag.Lag._seen": 700}
    assert look.above_limit(1) == {OUTCOMES.removeprefix("binlogd."): 40_000}
    assert look.above_limit(2) == {}


class Held:
    """Has a long container, and is one of two."""

    def __init__(self, entries: int) -> None:
        self.kept = dict.fromkeys(range(entries))


def test_a_long_container_is_named_by_its_owner_and_those_of_one_name_are_added_up() -> None:
    held = [Held(LONG_MIN), Held(LONG_MIN + 2), Held(LONG_MIN - 1)]
    assert long_containers()[f"{Held.__module__}.Held.kept"] == 2 * LONG_MIN + 2
    assert objects_below(held[0]) >= LONG_MIN
