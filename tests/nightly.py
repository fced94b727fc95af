"""All that takes too long for `make test`, one stage after the other, and a table at the end.

    make nightly                       # eight hours and more
    make nightly ONLY="load instructions seeds" MINUTES=10 SEEDS=50

A stage that fails, or cannot be started, does not end the others, and the last one is the report of
what all of them left in build/. build/nightly.json has of each its seconds and exit code, or that
it was not asked for; exit code 1 where one failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "build" / "nightly.json"
SEEDS_A_NIGHT = 100_000
"""So far apart begin those of two nights."""
BENCHES = "append codec decode index lookup pull relay translate tso write_rpc"
"""Those that take a minute and no server."""
STAGE_S = 12 * 3600.0
"""The longest that a stage may take."""
SPREAD = ("--numprocesses", "4", "--dist", "loadgroup")


class Stage(NamedTuple):
    """A command, run in the directory of the project."""

    name: str
    words: tuple[str, ...]
    what: str


def stages(*, minutes: str, seconds: str, seeds: int) -> list[Stage]:
    """In their order: what finds most in the least time first."""
    python, first = str(Path(sys.executable)), _night() * SEEDS_A_NIGHT
    tests = (python, "-m", "pytest", "-q", "--nothing-skipped", "--timeout", "3600")
    return [
        Stage(
            "instructions",
            (python, "-m", "tests.instructions.gate"),
            "hot paths, by instructions retired",
        ),
        Stage(
            "soak",
            (*tests, "-m", "soak", "--junitxml", "build/soak.xml"),
            "long kill and fault loops, foreign programs",
        ),
        Stage(
            "properties",
            (*tests, "-m", "not soak", *SPREAD, "--junitxml", "build/properties.xml"),
            "every other test, with fresh examples",
        ),
        Stage(
            "load",
            (python, "-m", "tests.soak.load", "--minutes", minutes, "--seed", str(_night())),
            "mixed load with random faults",
        ),
        Stage(
            "fuzz",
            (python, "-m", "tests.fuzz", "--seconds", seconds),
            "inputs that fail, guided by coverage",
        ),
        Stage(
            "seeds",
            (python, "-m", "tests.sim", "--publish", "--seeds", f"{first}-{first + seeds - 1}"),
            "lives of the whole system that nobody has seen",
        ),
        Stage("mutants", (python, "-m", "tests.mutants", "--jobs", "2"), "bugs planted on purpose"),
        Stage("bench", ("make", "bench", f"BENCHES={BENCHES}"), "rates, the short ones"),
        Stage("table", (python, "-m", "tests.bench.bench_table"), "beside the Go Pump and Drainer"),
        Stage("report", (python, "-m", "tests.report"), "docs/FAULTS.md, docs/COMPATIBILITY.md"),
    ]


def _night() -> int:
    """The number of this day."""
    return datetime.now(UTC).date().toordinal()


def main() -> None:
    """Runs them, says what became of each, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="stages; all without it")
    parser.add_argument("--minutes", default="60", help="of load")
    parser.add_argument("--seconds", default="600", help="of fuzzing, for each target")
    parser.add_argument("--seeds", type=int, default=1000, help="fresh ones of the simulation")
    given = parser.parse_args()
    every = stages(minutes=given.minutes, seconds=given.seconds, seeds=given.seeds)
    unknown = set(given.only) - {each.name for each in every}
    if unknown:
        parser.error(f"no stages: {', '.join(sorted(unknown))}")
    sys.exit(0 if all_well(every, given.only, RESULT) else 1)


def all_well(every: Sequence[Stage], only: Sequence[str], result: Path) -> bool:
    """Runs those that are asked for, all of them without `only`; whether each ended well."""
    console, table = Console(), Table("stage", "seconds", "result", "what")
    ran: list[dict[str, object]] = []
    for stage in every:
        if only and stage.name not in only:
            ran.append({"stage": stage.name, "exit_code": None})
            table.add_row(stage.name, "", "not run", stage.what)
            continue
        console.rule(stage.name)
        began_s = time.monotonic()
        try:
            code = subprocess.run(stage.words, cwd=ROOT, check=False, timeout=STAGE_S).returncode
        except (OSError, subprocess.TimeoutExpired) as error:  # no such program, or no end
            console.print(f"[red]{error}[/]", highlight=False)
            code = 127
        took_s = round(time.monotonic() - began_s)
        ran.append({"stage": stage.name, "seconds": took_s, "exit_code": code})
        table.add_row(stage.name, str(took_s), "ok" if code == 0 else f"failed: {code}", stage.what)
    result.parent.mkdir(exist_ok=True)
    result.write_text(json.dumps(ran, indent=1) + "\n")
    console.print(table)
    return not any(each["exit_code"] for each in ran)


if __name__ == "__main__":
    main()
