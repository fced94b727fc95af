"""All that takes too long for `make test`, one stage after the other, and a table at the end.

    make nightly                       # eight hours and more
    make nightly ONLY="load instructions" MINUTES=10

A stage that fails does not end the others. build/nightly.json has of each its command, seconds and
exit code; exit code 1 where one failed. A stage that is not asked for is named as not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "build" / "nightly.json"
SEEDS_A_NIGHT = 100_000
"""So far apart begin those of two nights."""
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
            (python, "-m", "tests.sim", "--seeds", f"{first}-{first + seeds - 1}"),
            "lives of the whole system that nobody has seen",
        ),
        Stage("mutants", (python, "-m", "tests.mutants", "--jobs", "2"), "bugs planted on purpose"),
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
    console, table = Console(), Table("stage", "seconds", "result", "what")
    ran, is_well = [], True
    for stage in every:
        if given.only and stage.name not in given.only:
            table.add_row(stage.name, "", "not run", stage.what)
            continue
        console.rule(stage.name)
        began_s = time.monotonic()
        code = subprocess.run(stage.words, cwd=ROOT, check=False).returncode
        took_s = round(time.monotonic() - began_s)
        is_well = is_well and code == 0
        ran.append({"stage": stage.name, "seconds": took_s, "exit_code": code})
        table.add_row(stage.name, str(took_s), "ok" if code == 0 else f"failed: {code}", stage.what)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(ran, indent=1) + "\n")
    console.print(table)
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
