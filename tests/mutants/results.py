"""What became of the planted bugs, as JSON and as a table of Markdown.

`build/mutants.json` is what the runs of this machine found, `last.json` beside this file what was
published last; both are a `Results`. A report reads one of them and takes `table` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tests.mutants.catalogue import Bug

ROOT = Path(__file__).parents[2]
FOUND_HERE = ROOT / "build" / "mutants.json"
PUBLISHED = Path(__file__).parent / "last.json"

How = Literal["failed", "hung", "missed", "broken"]
"""Of a test or a seed: it failed with the bug, it did not end in time, it passed all the same, or
it fails without the bug too and tells nothing."""


Form = Literal["", "short"]
"""Of the lives of the simulation."""


class ByTests(msgspec.Struct, frozen=True, kw_only=True):
    """`test` found it, after those before it in the list had not; "" where none did."""

    how: How
    test: str = ""
    tests_run: int = 0
    seconds: float = 0.0


class BySeeds(msgspec.Struct, frozen=True, kw_only=True):
    """`seeds` is the range that was searched, `tried` how many were until `seed` found it (-1: none
    did)."""

    how: How
    seeds: str
    tried: int
    seed: int = -1
    form: Form = ""
    seconds: float = 0.0


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One bug. `digest` is `Bug.digest` of what was tried, `commit` what it was planted in, `day`
    is in UTC. `by_seeds` is null where the simulation was not asked."""

    name: str
    digest: str
    commit: str
    day: str
    by_tests: ByTests | None = None
    by_seeds: BySeeds | None = None

    @property
    def is_found(self) -> bool:
        """By either."""
        return any(
            each and each.how in ("failed", "hung") for each in (self.by_tests, self.by_seeds)
        )


class Results(msgspec.Struct, kw_only=True):
    """Of each bug by its name what the last run of it found."""

    schema: Literal[1] = 1
    bugs: dict[str, Tried] = msgspec.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of a file, none where it is not there. Raises msgspec.DecodeError."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """In the order of names, so that two runs can be compared."""
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = Results(bugs=dict(sorted(self.bugs.items())))
        text = msgspec.json.format(msgspec.json.encode(ordered), indent=2)
        path.write_bytes(text + b"\n")

    def of(self, bug: Bug) -> Tried | None:
        """What is known of a bug as it is now."""
        tried = self.bugs.get(bug.name)
        return tried if tried is not None and tried.digest == bug.digest else None


def latest() -> Results:
    """What this machine has found, over what was published."""
    return Results(bugs=Results.read(PUBLISHED).bugs | Results.read(FOUND_HERE).bugs)


def summary(bugs: Sequence[Bug], results: Results) -> str:
    """In one sentence."""
    tried = [known for bug in bugs if (known := results.of(bug)) is not None]
    found = sum(each.is_found for each in tried)
    asked = [each.by_seeds for each in tried if each.by_seeds is not None]
    by_seeds = sum(each.how in ("failed", "hung") for each in asked)
    said = f"{len(bugs)} bugs, {len(tried)} planted, {found} found"
    return f"{said}; the simulation was asked about {len(asked)} and found {by_seeds}."


def table(bugs: Sequence[Bug], results: Results) -> str:
    """A row a bug, in the order of the catalogue; no line of it depends on the machine."""
    rows = [
        "| bug | what it would do | promise | found by the test | found by the simulation |",
        "|---|---|---|---|---|",
    ]
    for bug in bugs:
        tried = results.of(bug)
        tests = tried.by_tests if tried is not None else None
        cells = (bug.name, bug.what, bug.invariant, _by_tests(tests), _by_seeds(bug, tried))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _by_tests(found: ByTests | None) -> str:
    match found:
        case None:
            return "not tried"
        case ByTests(how="missed"):
            return "**not found**"
        case ByTests(how="broken"):
            return f"**nothing shown**: `{_short(found.test)}` fails without the bug as well"
        case _:
            return f"`{_short(found.test)}`" + (" (hangs)" if found.how == "hung" else "")


def _by_seeds(bug: Bug, tried: Tried | None) -> str:
    if not bug.seeds:
        return "not in it"
    found = tried.by_seeds if tried is not None else None
    match found:
        case None:
            return "not tried"
        case BySeeds(how="missed"):
            return f"**not found** in {found.tried} {_lives(found)}: next work"
        case BySeeds(how="broken"):
            return f"**nothing shown**: seed {found.seed} fails without the bug as well"
        case _:
            hangs = ", hangs" if found.how == "hung" else ""
            return f"after {found.tried} {_lives(found)} (seed {found.seed}{hangs})"


def _lives(found: BySeeds) -> str:
    return f"{found.form} seeds".strip()


def _short(node_id: str) -> str:
    """File and test, as pages of this project name them."""
    path, _, name = node_id.partition("::")
    return f"{Path(path).name}::{name.partition('[')[0]}"
