"""A smaller plan that fails like a large one: fewer kinds of faults, then fewer transactions."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.plan import Plan, drawn
from tests.sim.world import Outcome, run

_TRIES_MAX = 60


def shrunk(failing: Outcome) -> Outcome:
    """The smallest that was found; it fails, perhaps at another check."""
    best, tries = failing, 0
    is_smaller = True
    while is_smaller and tries < _TRIES_MAX:  # ends: each turn takes something away
        is_smaller = False
        for plan in _smaller(best.plan):
            tries += 1
            outcome = run(plan)
            if outcome.violation:
                best, is_smaller = outcome, True
                break
            if tries >= _TRIES_MAX:
                break
    return best


def _smaller(plan: Plan) -> list[Plan]:
    count = plan.habit.transactions
    by_faults = [
        replace(plan, faults=tuple(each for each in plan.faults if each != gone))
        for gone in plan.faults
    ]
    by_size = [
        replace(plan, habit=replace(plan.habit, transactions=fewer))
        for fewer in (count // 4, count // 2, count * 3 // 4)
        if 0 < fewer < count
    ]
    return [*by_size, *by_faults]


def command(plan: Plan) -> str:
    """What repeats it."""
    whole = drawn(plan.seed, is_short=plan.is_short)
    parts = [f"python -m tests.sim {plan.seed}"]
    parts += ["--short"] if plan.is_short else []
    parts += [f'--without "{gone}"' for gone in whole.faults if gone not in plan.faults]
    if plan.habit.transactions != whole.habit.transactions:
        parts.append(f"--transactions {plan.habit.transactions}")
    return " ".join(parts)
