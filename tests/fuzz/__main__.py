"""`python -m tests.fuzz [TARGET ...] --seconds N`: looks for inputs that fail, by coverage.

Each target is searched for so long, from its seeds and what earlier searches kept. What fails is
shown, written to `build/fuzz/TARGET/` and ends with exit code 1. `build/fuzz.json` has of each
target its seconds, executions, coverage (edges) and crashes. `--keep` puts what this search found
into the corpus, as small as it can be made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from tests.fuzz.inputs import corpus, crashes, keep, names, target
from tests.support.commit import commit

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
INPUT_BYTES_MAX = 4096
INPUT_S_MAX = 10
MEMORY_MIB_MAX = 1500
CHILD_S_MAX = 200
"""Then another process goes on: what instruments the code keeps up to 25 KB for each input."""
CRASHES_MAX = 5
"""Of one target in one run; the same place counts once."""
KEPT_BYTES_MAX = 24 << 10
_COVERAGE, _UNITS = re.compile(r"\bcov: (\d+)"), re.compile(r"number_of_executed_units:\s*(\d+)")
_FAULT = re.compile(r"^(\w[\w.]*(?:Error|Exception|Interrupt|Corrupt\w*|Malformed\w*)\b.*)$", re.M)


def search(name: str, seconds: int) -> dict[str, Any]:
    """One target. Raises ChildProcessError where the search itself does not run."""
    work = BUILD / "fuzz" / name
    inputs = work / "corpus"
    inputs.mkdir(parents=True, exist_ok=True)
    of = target(name)
    for each in (*of.seeds(), *corpus(name), *(data for _, data in crashes(name))):
        (inputs / hashlib.sha1(each, usedforsecurity=False).hexdigest()).write_bytes(each)
    began_s, executions, coverage = monotonic(), 0, 0
    found: dict[str, str] = {}
    while len(found) < CRASHES_MAX:
        left = seconds - int(monotonic() - began_s)
        if left <= 0:
            break
        output = _searched(name, work, min(left, CHILD_S_MAX))
        executions += sum(map(int, _UNITS.findall(output)))
        coverage = max([coverage, *map(int, _COVERAGE.findall(output))])
        artefact = re.search(r"Test unit written to (\S+)", output)
        if artefact is None:
            if not executions:
                raise ChildProcessError(f"{name}: the search did not run:\n{output[-4000:]}")
            continue
        if not _fails_alone(name, artefact[1]):
            continue
        reasons = _FAULT.findall(output)
        reason = reasons[-1] if reasons else "time or memory"
        if reason in found:
            break
        found[reason] = artefact[1]
        sys.stdout.write(f"--- {name}: {reason}\n{output[-3000:]}\n")
    return {
        "target": name,
        "seconds": round(monotonic() - began_s),
        "executions": executions,
        "coverage": coverage,
        "crashes": [{"reason": each, "input": path} for each, path in found.items()],
    }


def _searched(name: str, work: Path, seconds: int) -> str:
    options = (f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1")
    places = (f"-artifact_prefix={work}/", "-reload=0", str(work / "corpus"))
    return _child(name, *options, *places, wait_s=seconds + 300).stdout.decode(errors="replace")


def _fails_alone(name: str, artefact: str) -> bool:
    """Whether it was this input: what instruments the code keeps memory for each one before it."""
    return _child(name, artefact, wait_s=INPUT_S_MAX + 300).returncode != 0


def _child(name: str, *options: str, wait_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.child", name),
            *(f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MIB_MAX}", *options),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=wait_s,
        check=False,
    )


def smallest(name: str, inputs: Iterable[bytes]) -> list[bytes]:
    """Those that reach a line from a line that no smaller one does."""
    run, reached, kept, size = target(name).run, set[tuple[str, int, int]](), list[bytes](), 0
    for each in sorted(set(inputs), key=lambda data: (len(data), data)):
        if size + len(each) > KEPT_BYTES_MAX:
            continue
        news = _reached(run, each) - reached
        if news:
            reached |= news
            kept.append(each)
            size += len(each)
    return kept


def _reached(run: Any, data: bytes) -> set[tuple[str, int, int]]:
    found: set[tuple[str, int, int]] = set()

    def of_call(frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if "/binlogd/" not in file:
            return None
        before = 0

        def of_line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal before
            if event == "line":
                found.add((file, before, frame.f_lineno))
                before = frame.f_lineno
            return of_line

        return of_line

    sys.settrace(of_call)
    try:
        run(data)
    finally:
        sys.settrace(None)
    return found


def main() -> int:
    """1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", choices=[[], *names()], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="put what is new into the corpus")
    chosen = parser.parse_args()
    results = []
    for name in chosen.targets or names():
        results.append(result := {"commit": commit(), **search(name, chosen.seconds)})
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        BUILD.mkdir(exist_ok=True)
        (BUILD / "fuzz.json").write_text(json.dumps(results, indent=1) + "\n")
        if chosen.keep:
            found = (BUILD / "fuzz" / name / "corpus").iterdir()
            keep(name, smallest(name, [each.read_bytes() for each in found]))
    return 1 if any(each["crashes"] for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
