"""The page of faults: what was tried, how often, what was lost, and how to try it again.

    make report      # build/ has what make soak, nightly, fuzz, load and mutants found

A run adds what it tried to `tests/report.json`, which is checked in, each with its day and commit;
what it did not try stays as it was told before. The short form of a test, which is in `make test`,
and the long one of `make soak` stand beside each other: neither takes the other's place, whichever
was run last. docs/FAULTS.md is that file as a page, and the
planted bugs of `tests/mutants`. Nothing on it is written by hand. docs/COMPATIBILITY.md is made of
the same runs, by `tests.compatibility`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests import compatibility
from tests.compatibility import command_of
from tests.mutants.catalogue import load
from tests.mutants.results import latest, summary, table
from tests.support import markdown
from tests.support.commit import commit

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "report.json"
PAGE = ROOT / "docs" / "FAULTS.md"
BUILD = ROOT / "build"

Entry = dict[str, Any]


def entries_of(junit: Path) -> Iterator[Entry]:
    """Of a run of pytest the tests that say which fault they tried, a fault and target of one form
    together."""
    found: dict[tuple[str, str, str], Entry] = {}
    for case in compatibility.cases_of(junit):
        told = dict(case.told)
        if "fault" not in told:
            continue
        entry = found.setdefault(
            (told["fault"], told["target"], case.form),
            {"kind": "fault", "fault": told["fault"], "target": told["target"], "cases": 0}
            | {"lost": 0, "test": case.path, "form": case.form, **case.commit}
            | ({"day": case.day} if case.day else {}),
        )
        entry["cases"] += int(told["cases"])
        entry["lost"] += int(told["lost"])
    yield from found.values()


def entries() -> Iterator[Entry]:
    """All that `build/` has."""
    for junit in compatibility.runs_in(BUILD):
        yield from entries_of(junit)
    for name in ("fuzz", "load", "sim", "sim-short"):
        path = BUILD / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            yield from (
                map(_of_fuzz, found)
                if name == "fuzz"
                else [{"kind": name.partition("-")[0], **found}]
            )


def _of_fuzz(target: Entry) -> Entry:
    """Without the inputs, which lie where they were found."""
    return {"kind": "fuzz", **target, "crashes": [], "left": len(target["crashes"])}


def kept() -> list[Entry]:
    """What is published."""
    told: list[Entry] = json.loads(KEPT.read_text())
    return told


def _key(entry: Entry) -> tuple[str, str, str, int, str]:
    seed, form = entry.get("first_seed", 0), entry.get("form", "")
    return entry["kind"], entry.get("fault", ""), entry.get("target", ""), seed, form


def merged(before: list[Entry], now: Iterator[Entry], *, day: str, commit: str) -> list[Entry]:
    """What was tried now stands in the place of what was told of it before. What says itself at
    which commit and on which day it was found keeps that."""
    every = {_key(entry): entry for entry in before}
    for entry in now:
        if not _is_small_beside(entry, every.get(key := _key(entry))):
            every[key] = {"commit": commit, "day": day, **entry}
    return [every[key] for key in sorted(every)]


def _is_small_beside(entry: Entry, known: Entry | None) -> bool:
    """A search or a load of seconds, tried by the way, tells less than the hour that it would
    replace; but what it found is told, however short it was."""
    extent = {"fuzz": "seconds", "load": "minutes"}.get(entry["kind"])
    if known is None or extent is None or entry.get("left") or entry.get("differences"):
        return False
    return bool(entry[extent] * 2 < known[extent])


def page(told: list[Entry]) -> str:
    """The whole page."""
    parts = [
        "# Faults that were tried",
        "This page is made by `make report` of what the tests wrote down. A row says what the"
        " newest run of it found, on which day and at which commit. What is not here was not"
        " counted. `make nightly` runs all of it.",
        "## Crashes, power loss and damage",
        "In each case a real file, process or recorded system call was broken, and everything"
        " acknowledged before was looked for. `-m soak` is the long form, which `make soak` runs.",
        _table(
            ("fault", "of", "cases", "lost", "tried", "command"),
            [
                (e["fault"], e["target"], f"{e['cases']:,}", e["lost"], _when(e), _command(e))
                for e in told
                if e["kind"] == "fault"
            ],
        ),
        "## The whole system, simulated",
        "Each seed is a life of two Pumps, a Drainer and TiDBs that write, on a simulated clock,"
        " disk and network, with faults drawn at random. The same seed is the same life again.",
        _table(
            ("seeds", "simulated hours", "faults", "seeds that failed", "tried", "command"),
            [_simulated(e) for e in told if e["kind"] == "sim"],
        ),
        "## Load with random faults",
        *(_load(entry) for entry in told if entry["kind"] == "load"),
        "## Inputs searched by coverage",
        "`make fuzz` searches for inputs that raise anything but the errors that a module"
        " promises, or take too long.",
        _table(
            ("target", "seconds", "executions", "coverage", "crashes left", "tried"),
            [
                (
                    e["target"],
                    e["seconds"],
                    f"{e['executions']:,}",
                    e["coverage"],
                    e["left"],
                    _when(e),
                )
                for e in told
                if e["kind"] == "fuzz"
            ],
        ),
        "## Bugs planted on purpose",
        "How sensitive is the search? `make mutants` plants one bug at a time and asks the tests,"
        " and the simulation of the whole system (`python -m tests.sim`), whether they see it. "
        + summary(load(), latest()),
        table(load(), latest()).rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    return markdown.table(head, rows) if rows else "Not run yet."


def _when(entry: Entry) -> str:
    return f"{entry['day']}, {entry['commit']}"


def _command(entry: Entry) -> str:
    return f"`{command_of(entry['form'])} {entry['test']}`"


def _simulated(entry: Entry) -> tuple[str, ...]:
    seeds = f"{entry['first_seed']}-{entry['last_seed']}"
    seeds += " --short" if entry.get("form") == "short" else ""
    return (
        f"{entry['seeds']:,}",
        f"{entry['virtual_hours']:,}",
        f"{sum(entry['faults'].values()):,} of {len(entry['faults'])} kinds",
        ", ".join(map(str, entry["failed"])) or "none",
        _when(entry),
        f"`python -m tests.sim --seeds {seeds}`",
    )


def _slope(measure: Entry) -> tuple[str, str]:
    return f"{measure['slope_per_hour']:+,.3g}", f"{measure['error_per_hour']:,.3g}"


def _load(entry: Entry) -> str:
    faults = ", ".join(f"{count} x {name}" for name, count in sorted(entry["faults"].items()))
    rows = [
        (m["name"], f"{m['mean']:,.4g} {m['unit']}", *_slope(m), m["verdict"])
        for m in entry["measures"]
    ]
    said = (
        f"`python -m tests.soak.load --minutes {entry['minutes']:g} --seed {entry['seed']}`"
        f" ({_when(entry)}): {entry['transactions']:,} transactions, {entry['rows']:,} rows,"
        f" {entry['ddl_jobs']} DDL jobs; {faults}; {entry['differences']} differences at the end."
    )
    if not entry.get("caches_full", True):
        said += " Caches were still filling at the end, so memory is not judged."
    head = ("measure", "mean", "slope an hour", "its error", "verdict")
    return said + "\n\n" + _table(head, rows)


def main() -> None:
    """Takes in what `build/` has, and writes the pages."""
    day = datetime.now(UTC).date().isoformat()
    told = merged(kept(), entries(), day=day, commit=commit())
    KEPT.write_text(json.dumps(told, indent=1) + "\n")
    PAGE.write_text(page(told))
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(told)} results\n")
    runs = [compatibility.entries_of(junit) for junit in compatibility.runs_in(BUILD)]
    tried = compatibility.merged(compatibility.kept(), runs, commit())
    compatibility.keep(tried)
    sys.stdout.write(f"{compatibility.PAGE.relative_to(ROOT)}: {len(tried)} results\n")


if __name__ == "__main__":
    main()
