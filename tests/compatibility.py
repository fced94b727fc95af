"""The page of compatibility: which programs of others were tried, in which versions, and when.

`make report` makes it too. A run adds the files whose tests it ran to `tests/compatibility.json`,
which is checked in, each with its day and commit; of the others stands what was found when they
were run last. The versions are those that the programs told the tests (`tests.support.tried`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.support.markdown import table

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "compatibility.json"
PAGE = ROOT / "docs" / "COMPATIBILITY.md"
FILES_SHOWN = 2

Entry = dict[str, Any]
_KEY = ("program", "version", "test")


def entries_of(junit: Path) -> Iterator[Entry]:
    """Of a run of pytest: a program in a version, with the tests of one file."""
    found: dict[tuple[str, str, str], Entry] = {}
    for suite in ElementTree.parse(junit).iter("testsuite"):
        day = suite.get("timestamp", "").partition("T")[0]
        for case in suite.iter("testcase"):
            path = case.get("classname", "").replace(".", "/") + ".py"
            is_well = all(case.find(each) is None for each in ("failure", "error", "skipped"))
            for each in case.iter("property"):
                if each.get("name") == "tried":
                    program, _, version = each.get("value", "").rpartition(" = ")
                    key = (program, version, path)
                    counts = {"passed": 0, "failed": 0, "day": day}
                    entry = found.setdefault(key, dict(zip(_KEY, key, strict=True)) | counts)
                    entry["passed" if is_well else "failed"] += 1
    yield from found.values()


def merged(before: Sequence[Entry], runs: Iterable[Iterable[Entry]], commit: str) -> list[Entry]:
    """A run replaces what was told of the files that it ran; what was told of files that are gone
    goes too. Of several runs of a file the one with most of its tests counts: the gate runs the
    short ones, the long run the others."""
    now: dict[tuple[str, ...], Entry] = {}
    for run in runs:
        for entry in run:
            known = now.get(key := _key(entry))
            if known is None or _tests(known) <= _tests(entry):
                now[key] = {**entry, "commit": commit}
    every = {_key(entry): entry for entry in before} | now
    return [every[key] for key in sorted(every) if (ROOT / every[key]["test"]).exists()]


def _key(entry: Entry) -> tuple[str, ...]:
    return tuple(entry[name] for name in _KEY)


def _tests(entry: Entry) -> int:
    return int(entry["passed"] + entry["failed"])


def kept() -> list[Entry]:
    """What is published."""
    told: list[Entry] = json.loads(KEPT.read_text()) if KEPT.exists() else []
    return told


def keep(told: Sequence[Entry]) -> None:
    """Publishes it, an entry a line, with its page."""
    lines = ",\n".join(" " + json.dumps(entry) for entry in told)
    KEPT.write_text(f"[\n{lines}\n]\n" if told else "[]\n")
    PAGE.write_text(page(told))


def page(told: Sequence[Entry]) -> str:
    """The whole page."""
    of: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in told:
        of[entry["program"], entry["version"]].append(entry)
    head = ("what", "version", "tests passed", "failed", "last tried", "command")
    rows = [
        (
            program,
            version,
            f"{sum(each['passed'] for each in entries):,}",
            f"{sum(each['failed'] for each in entries):,}",
            _when(entries),
            _commands(entries),
        )
        for (program, version), entries in sorted(of.items(), key=lambda each: _order(each[0]))
    ]
    return "\n\n".join([*_INTRODUCTION, table(head, rows)]) + "\n"


_INTRODUCTION = (
    "# Servers and clients that were tried",
    "This page is made by `make report` of what the tests wrote down. Each version is what the"
    " program, or the package that ran, said of itself while a test had to do with it. A row counts"
    " these tests when they were run last; the row says on which day, and at which commit of"
    " binlogd. What no test counts is not here. What is meant to work, and what was not run, is on"
    " the page [Versions, privileges and ports](reference/versions.md).",
    '"As recorded" means that the tests replay what a real program sent, "by its files" that they'
    " read what a real one left on its disk. The programs of a Go module are made of that module's"
    " own code. A pseudo-version of Go (`v0.0.0-20221031...`) has the day of its commit.",
    "`make test` and `make soak` run all of these commands.",
)


def _order(key: tuple[str, str]) -> tuple[str, str]:
    return key[0].lower(), key[1]


def _when(entries: Sequence[Entry]) -> str:
    """The newest; and the oldest where a file was run on another day."""
    days = sorted((entry["day"], entry["commit"]) for entry in entries)
    first, last = days[0], days[-1]
    since = "" if first[0] == last[0] else f" (some on {first[0]})"
    return f"{last[0]}, {last[1]}{since}"


def _commands(entries: Sequence[Entry]) -> str:
    """The files with most tests of it."""
    files = sorted(entries, key=lambda entry: (-_tests(entry), entry["test"]))
    shown = " ".join(entry["test"] for entry in files[:FILES_SHOWN])
    more = len(files) - FILES_SHOWN
    return f"`pytest {shown}`" + (f" and {more} more files" if more > 0 else "")
