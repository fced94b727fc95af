"""`python -m tests.sim 4711` lives through the world of a seed and says what was found.

    python -m tests.sim 4711                       one seed, twice: both must be the same
    python -m tests.sim --seeds 1-200              many, with a line of progress
    python -m tests.sim --seeds 1-200 --short      many short lives, as make test has them
    python -m tests.sim --seeds 1-200 --publish    adds build/sim.json, which make report reads
    python -m tests.sim --seeds 1-1000 --until-failure
                                                   ends with the first that fails: exit code 1
    python -m tests.sim 4711 --shrink              a smaller plan that fails in the same way
    python -m tests.sim 4711 --trace               every line of every process

The options that take things away from a seed's plan (`--transactions`, `--without`) are what a
shrunk failure is repeated with. Exit code 1 where something was found, 0 where all held.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.sim.plan import Plan, drawn
from tests.sim.shrinking import command, shrunk
from tests.sim.world import Outcome, run
from tests.support.commit import commit

BUILD = Path(__file__).parents[2] / "build"
PUBLISHED = {False: BUILD / "sim.json", True: BUILD / "sim-short.json"}
"""Long lives, and short ones."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code."""
    asked = _parser().parse_args(arguments)
    if asked.seeds is not None:
        return _many(asked)
    if asked.seed is None:
        _parser().error("a seed, or --seeds FROM-TO")
    plan = _plan(asked, asked.seed)
    outcome = run(plan, keeps_trace=asked.trace)
    if asked.trace:
        sys.stdout.write("\n".join(outcome.trace) + "\n")
    _say(outcome)
    again = run(plan)
    if again.hash != outcome.hash:
        sys.stdout.write(f"NOT REPRODUCIBLE: the second time the trace was {again.hash}\n")
        return 1
    if outcome.violation and asked.shrink:
        _say_shrunk(outcome)
    return 1 if outcome.violation else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.split("\n")[0])
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", help="FROM-TO, both included")
    parser.add_argument("--short", action="store_true", help="a quarter of the transactions")
    parser.add_argument("--until-failure", action="store_true", help="end with the first failure")
    parser.add_argument("--twice", action="store_true", help="each seed twice, with the same hash")
    parser.add_argument("--publish", action="store_true", help="write build/sim.json")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--transactions", type=int, help="no more than so many")
    parser.add_argument("--without", action="append", default=[], help="a kind of fault")
    parser.add_argument("--trace", action="store_true", help="print every line")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller plan")
    return parser


def _plan(asked: argparse.Namespace, seed: int) -> Plan:
    plan = drawn(seed, is_short=asked.short)
    if asked.transactions is not None:
        plan = replace(plan, habit=replace(plan.habit, transactions=asked.transactions))
    kept = tuple(each for each in plan.faults if each not in asked.without)
    return replace(plan, faults=kept)


def _many(asked: argparse.Namespace) -> int:
    first, _, last = asked.seeds.partition("-")
    plans = [_plan(asked, seed) for seed in range(int(first), int(last or first) + 1)]
    found, done, virtual_s, faults = [], 0, 0.0, Counter[str]()
    for outcome, is_same in _lived(plans, asked):
        done += 1
        virtual_s += outcome.virtual_s
        faults.update(outcome.faults)
        if outcome.violation or not is_same:
            found.append(outcome)
            _say(outcome)
            if not is_same:
                sys.stdout.write("NOT REPRODUCIBLE: the second time the trace was another\n")
            if asked.until_failure:
                break
        if sys.stderr.isatty() or done % 20 == 0:
            sys.stderr.write(f"\r{done} of {len(plans)} seeds, {len(found)} found")
            sys.stderr.flush()
    sys.stderr.write("\n")
    sys.stdout.write(
        f"{done} seeds, {virtual_s / 3600:.1f} simulated hours, {faults.total()} faults:"
        f" {len(found)} seeds found something\n"
    )
    for name, count in sorted(faults.items()):
        sys.stdout.write(f"    {count:6d} {name}\n")
    if asked.publish:
        _publish(plans, done, virtual_s, faults, [each.plan.seed for each in found])
    return 1 if found else 0


def _publish(
    plans: list[Plan], done: int, virtual_s: float, faults: Counter[str], failed: list[int]
) -> None:
    """For `tests.report`; which options took something away stands in the fewer faults."""
    told = {
        "first_seed": plans[0].seed,
        "last_seed": plans[done - 1].seed,
        "form": "short" if plans[0].is_short else "",
        "seeds": done,
        "virtual_hours": round(virtual_s / 3600, 1),
        "faults": dict(sorted(faults.items())),
        "failed": failed,
        "commit": commit(),
    }
    BUILD.mkdir(exist_ok=True)
    PUBLISHED[plans[0].is_short].write_text(json.dumps(told, indent=1) + "\n")


def _lived(plans: list[Plan], asked: argparse.Namespace) -> Iterator[tuple[Outcome, bool]]:
    if asked.processes == 1:
        yield from map(_twice if asked.twice else _once, plans)
        return
    with ProcessPoolExecutor(asked.processes) as pool:
        yield from pool.map(_twice if asked.twice else _once, plans)


def _once(plan: Plan) -> tuple[Outcome, bool]:
    return run(plan), True


def _twice(plan: Plan) -> tuple[Outcome, bool]:
    outcome = run(plan)
    return outcome, run(plan).hash == outcome.hash


def _say(outcome: Outcome) -> None:
    plan = outcome.plan
    lines = [
        f"seed {plan.seed} at commit {commit()}, PYTHONHASHSEED"
        f" {os.environ.get('PYTHONHASHSEED', 'random')}",
        f"    {outcome.virtual_s:.1f} virtual seconds, {outcome.committed} transactions committed",
        f"    faults {outcome.faults or 'none'} of {', '.join(plan.faults) or 'no kind'}",
        f"    trace {outcome.hash}",
        f"    {outcome.violation or 'all held'}",
    ]
    if outcome.violation:
        lines.append(f"    repeat: {command(plan)}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _say_shrunk(outcome: Outcome) -> None:
    smaller = shrunk(outcome)
    sys.stdout.write("shrunk:\n")
    _say(smaller)


if __name__ == "__main__":
    sys.exit(main())
