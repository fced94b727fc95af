"""`python -m tests.mutants`: plants bugs, one at a time, and says who finds them.

Results go to `build/mutants.json`, each as soon as it is there; `--publish` puts them into
`tests/mutants/last.json`, of which the report is made where nothing was run. Exit code 1 where a
bug was found by nobody or a test shows nothing, 2 where a bug or a test of it is not there.
"""

from __future__ import annotations

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Annotated

import typer
from rich.console import Console

from tests.mutants.catalogue import Bug, faults_of, load
from tests.mutants.results import (
    FOUND_HERE,
    PUBLISHED,
    ROOT,
    BySeeds,
    ByTests,
    Form,
    Results,
    Tried,
    latest,
    summary,
    table,
)
from tests.mutants.trying import Copy

console = Console(highlight=False, soft_wrap=True)


def main(
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="parts of names of bugs, or of their files")
    ] = None,
    jobs: Annotated[int, typer.Option(help="bugs at a time")] = 1,
    tests: Annotated[bool, typer.Option(help="run the tests that ought to find it")] = True,
    seeds: Annotated[int, typer.Option(help="seeds of the simulation, at the most")] = 0,
    short: Annotated[bool, typer.Option("--short", help="of the seeds, the short lives")] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="those alone that nobody is known to find")
    ] = False,
    publish: Annotated[bool, typer.Option(help="write tests/mutants/last.json")] = False,
    show: Annotated[bool, typer.Option("--table", help="print the table, run nothing")] = False,
) -> None:
    """Plants bugs, one at a time, in a copy of this tree."""
    every = load()
    bugs = [
        bug
        for bug in every
        if not only or any(part in bug.name or part in bug.file for part in only)
    ]
    if faults := [fault for bug in bugs for fault in faults_of(bug, ROOT)]:
        console.print("\n".join(faults), markup=False)
        raise typer.Exit(2)
    if show:
        console.print(table(every, latest()), markup=False)
        return
    if missing:
        known = latest()
        bugs = [bug for bug in bugs if not _is_well(known.of(bug))]
    try:
        form: Form = "short" if short else ""
        results = _tried(bugs, jobs=jobs, is_testing=tests, seeds=seeds, form=form)
    except RuntimeError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    if publish:
        Results(bugs=Results.read(PUBLISHED).bugs | results.bugs).write(PUBLISHED)
    console.print(summary(bugs, latest()), markup=False)
    failed = [bug.name for bug in bugs if not _is_well(results.of(bug))]
    if failed:
        console.print(f"not found: {', '.join(failed)}", markup=False)
        raise typer.Exit(1)


def _tried(bugs: list[Bug], *, jobs: int, is_testing: bool, seeds: int, form: Form) -> Results:
    """What was found of all of them, written down as it comes."""
    commit, writing = _commit(), Lock()
    with ExitStack() as ends:
        free: SimpleQueue[Copy] = SimpleQueue()
        for _ in range(jobs):
            place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="mutant-")))
            copy = Copy(place / "tree")
            copy.compile()
            free.put(copy)
        sound: dict[str, bool] = {}

        def try_one(bug: Bug) -> None:
            copy = free.get()
            try:
                by_tests = copy.by_tests(bug, sound) if is_testing else None
                by_seeds = copy.by_seeds(bug, seeds, form=form) if bug.seeds and seeds else None
            finally:
                free.put(copy)
            with writing:
                _note(bug, commit, by_tests, by_seeds)

        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(try_one, bug) for bug in bugs]):
                done.result()
    return Results.read(FOUND_HERE)


def _note(bug: Bug, commit: str, by_tests: ByTests | None, by_seeds: BySeeds | None) -> None:
    """What was not asked now stays as it was known, for the same bug."""
    before, here = latest().of(bug), Results.read(FOUND_HERE)
    noted = Tried(
        name=bug.name,
        digest=bug.digest,
        commit=commit,
        day=datetime.now(UTC).date().isoformat(),
        by_tests=by_tests or (before.by_tests if before else None),
        by_seeds=by_seeds or (before.by_seeds if before else None),
    )
    here.bugs[bug.name] = noted
    here.write(FOUND_HERE)
    for what, each in (("tests", by_tests), ("seeds", by_seeds)):
        if each is not None:
            by = each.test if isinstance(each, ByTests) else f"{each.tried} seeds"
            console.print(f"{each.how:7}{bug.name}: {what} {by} {each.seconds} s", markup=False)


def _is_well(tried: Tried | None) -> bool:
    if tried is None or not tried.is_found:
        return False
    return all(each is None or each.how != "broken" for each in (tried.by_tests, tried.by_seeds))


def _commit() -> str:
    """What the copy is of, "+" behind it where that is not all."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "binlogd", "tests")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


if __name__ == "__main__":
    typer.run(main)
