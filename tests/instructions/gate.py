"""A gate on instructions retired: some twenty hot paths, counted by valgrind, against figures that
are checked in. Rates say little on a machine that others use; instructions are the same.

    python -m tests.instructions.gate                  # fails where a path needs 3 % more
    python -m tests.instructions.gate --write REASON   # the figures anew, and why they are others
    python -m tests.instructions.gate --paths merge relay

Counted with the hot modules compiled, a fixed hash seed, the collector off, after a warm-up, each
path in a process of its own: behind others it takes up to an eighth less or more. The
figures hold for one interpreter, processor family and valgrind: elsewhere the gate fails and says
so. It writes build/instructions.json. Exit code 1: a path needs more; 2: nothing can be compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from binlogd import native
from tests.instructions.paths import PATHS

ROOT = Path(__file__).parents[2]
FIGURES, RESULT = Path(__file__).with_name("figures.json"), ROOT / "build" / "instructions.json"
TOLERATED = 0.03
COUNT_S = 1800
_REASONS_KEPT = 20


class CannotCount(Exception):
    """Something is missing here; the text says what to do."""


class Count(NamedTuple):
    """Instructions of a path: the fewest of some times, for each item, and how far the times lay
    apart, as a share."""

    per_item: float
    unit: str
    spread: float


def environment() -> dict[str, str]:
    """What the figures depend on besides the code."""
    said = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "valgrind": said.stdout.strip(),
    }


def counted(names: Sequence[str]) -> dict[str, Count]:
    """Counts the paths. Raises CannotCount."""
    if shutil.which("valgrind") is None:
        raise CannotCount("valgrind is not installed: `make setup-soak` does")
    if native.form() != "compiled":
        raise CannotCount(f"the hot modules are {native.form()}: run `make compile` first")
    with tempfile.TemporaryDirectory() as place:
        library, out = Path(place) / "counted.so", Path(place) / "out"
        source = Path(__file__).with_name("counted.c")
        built = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(built, check=True)
        told = [_told(library, out.with_name(f"out.{name}"), name) for name in names]
        return _counts(told, Path(place).glob("out.*"))


def _told(library: Path, out: Path, name: str) -> dict[str, Any]:
    """Counts a path; what the child says of it. Its counts are in files that begin with `out`."""
    done = subprocess.run(
        [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"),
            f"--callgrind-out-file={out}",
            *(sys.executable, "-m", "tests.instructions.child", str(library), name),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=COUNT_S,
    )
    if done.returncode != 0:
        raise CannotCount(f"counting ended with {done.returncode}: {done.stderr[-3000:]}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(line))


def _counts(told: Sequence[Mapping[str, Any]], dumps: Any) -> dict[str, Count]:
    totals: dict[str, list[int]] = {}
    for dump in dumps:
        text = dump.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.M)
        total = re.search(r"^totals: (\d+)$", text, re.M)  # `summary` may lack other threads
        if name and total:
            totals.setdefault(name[1], []).append(int(total[1]))
    found = {}
    for each in told:
        times = totals[each["path"]]
        spread = max(times) / min(times) - 1
        found[each["path"]] = Count(min(times) / each["items"], each["unit"], spread)
    return found


def main() -> None:
    """Counts, compares or writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="REASON", help="write the figures anew, and say why")
    parser.add_argument("--paths", nargs="*", choices=sorted(PATHS), default=list(PATHS))
    arguments = parser.parse_args()
    console = Console()
    try:
        found = counted(arguments.paths)
        if arguments.write:
            _write(found, arguments.write)
        code = _compared(console, found)
    except CannotCount as error:
        console.print(f"[red]{error}[/]", highlight=False)
        code = 2
    sys.exit(code)


def _compared(console: Console, found: Mapping[str, Count]) -> int:
    """Prints and keeps what was found beside the figures; the exit code."""
    if not FIGURES.exists():
        raise CannotCount(f"there is no {FIGURES.name}: --write makes it")
    figures = json.loads(FIGURES.read_text())
    here = environment()
    if figures["environment"] != here:
        raise CannotCount(f"the figures are of {figures['environment']}, this is {here}: --write")
    table = Table("path", "instructions", "each", "figure", "change", "spread")
    paths, worse = [], []
    for name, count in found.items():
        before = figures["paths"].get(name)
        if before is None:
            raise CannotCount(f"there is no figure of {name}: --write makes it")
        change = count.per_item / before["per_item"] - 1
        if change > TOLERATED:
            worse.append(name)
        paths.append({"path": name, **count._asdict(), "change": change})
        table.add_row(
            name,
            f"{count.per_item:,.0f}",
            count.unit,
            f"{before['per_item']:,.0f}",
            f"{change:+.2%}",
            f"{count.spread:.2%}",
        )
    RESULT.parent.mkdir(exist_ok=True)
    document = {"environment": here, "tolerated": TOLERATED, "worse": worse, "paths": paths}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    console.print(table)
    if worse:
        words = f"more than {TOLERATED:.0%} above their figures: {', '.join(worse)}"
        console.print(f"[red]{words}[/]; `--write REASON` where it pays", highlight=False)
    return 1 if worse else 0


def _write(found: Mapping[str, Count], reason: str) -> None:
    """Puts the figures of these paths in place of those that were there."""
    before = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"paths": {}, "reasons": []}
    kept = before["paths"] if before.get("environment") == environment() else {}
    fresh = {
        name: {"per_item": round(each.per_item, 1), "unit": each.unit}
        for name, each in found.items()
    }
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    reasons = [f"{today}: {reason} ({', '.join(found)})", *before["reasons"]]
    document = {
        "environment": environment(),
        "paths": {name: {**kept, **fresh}[name] for name in PATHS if name in {**kept, **fresh}},
        "reasons": reasons[:_REASONS_KEPT],
    }
    FIGURES.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
