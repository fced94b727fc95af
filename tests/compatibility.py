"""The page of compatibility: which programs of others were tried, in which versions, and when.

`make report` makes it too. A run adds the files whose tests it ran to `tests/compatibility.json`,
which is checked in, each with its day and commit; of the others stands what was found when they
were run last. The versions are those that the programs told the tests (`tests.support.tried`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from tests.support.markdown import table

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "compatibility.json"
PAGE = ROOT / "docs" / "COMPATIBILITY.md"
FILES_SHOWN = 2

Entry = dict[str, Any]
GATE = "gate"
"""The form of what `make test` runs; the other one is `soak`."""
_KEY = ("program", "version", "test", "form")


class Case(NamedTuple):
    """A test of a run of pytest, and what it told: names and values."""

    day: str
    path: str
    is_well: bool
    told: Sequence[tuple[str, str]]

    @property
    def form(self) -> str:
        """Who runs it."""
        return dict(self.told).get("form", GATE)

    @property
    def commit(self) -> dict[str, str]:
        """At which it ran, where it says so."""
        return {name: value for name, value in self.told if name == "commit"}


def runs_in(build: Path) -> list[Path]:
    """The JUnit files there, the newest run last."""

    def began(junit: Path) -> str:
        suites = ElementTree.parse(junit).iter("testsuite")
        return max((suite.get("timestamp", "") for suite in suites), default="")

    return sorted(build.glob("*.xml"), key=lambda junit: (began(junit), junit.name))


def cases_of(junit: Path) -> Iterator[Case]:
    """All tests of a run."""
    for suite in ElementTree.parse(junit).iter("testsuite"):
        day = suite.get("timestamp", "").partition("T")[0]
        for case in suite.iter("testcase"):
            path = case.get("classname", "").replace(".", "/") + ".py"
            is_well = all(case.find(each) is None for each in ("failure", "error", "skipped"))
            every = case.iter("property")
            told = [(each.get("name", ""), each.get("value", "")) for each in every]
            yield Case(day, path, is_well, told)


def entries_of(junit: Path) -> Iterator[Entry]:
    """Of a run of pytest: a program in a version, with the tests of one file and form."""
    found: dict[tuple[str, str, str, str], Entry] = {}
    for case in cases_of(junit):
        for name, value in case.told:
            if name == "tried":
                program, _, version = value.rpartition(" = ")
                key = (program, version, case.path, case.form)
                counts = {"passed": 0, "failed": 0, "day": case.day, **case.commit}
                entry = found.setdefault(key, dict(zip(_KEY, key, strict=True)) | counts)
                entry["passed" if case.is_well else "failed"] += 1
    yield from found.values()


def merged(before: Sequence[Entry], runs: Iterable[Iterable[Entry]], commit: str) -> list[Entry]:
    """A run replaces what was told of the files that it ran, in the form in which it ran them; what
    was told of files that are gone goes too. Of several runs of a file the one with most of its
    tests counts, the last one where they have as many. What does not say itself at which commit it
    was found was found at `commit`."""
    now: dict[tuple[str, ...], Entry] = {}
    for run in runs:
        for entry in run:
            known = now.get(key := _key(entry))
            if known is None or _tests(known) <= _tests(entry):
                now[key] = {"commit": commit, **entry}
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
    """The newest day with a commit of it; and the oldest where a file was run on another day."""
    first, last = (pick(entry["day"] for entry in entries) for pick in (min, max))
    commits = sorted({entry["commit"] for entry in entries if entry["day"] == last})
    others = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
    since = "" if first == last else f" (some on {first})"
    return f"{last}, {commits[0]}{others}{since}"


def command_of(form: str) -> str:
    """Of pytest, in front of the files."""
    return "pytest" if form == GATE else f"pytest -m {form}"


def _commands(entries: Sequence[Entry]) -> str:
    """The files with most tests of it."""
    tests: Counter[str] = Counter()
    for entry in entries:
        tests[entry["test"]] += _tests(entry)
    files = sorted(tests, key=lambda file: (-tests[file], file))
    forms = {entry["form"] for entry in entries}
    command = command_of(forms.pop() if len(forms) == 1 else GATE)
    more = len(files) - FILES_SHOWN
    shown = f"`{command} {' '.join(files[:FILES_SHOWN])}`"
    return shown + (f" and {more} more files" if more > 0 else "")
