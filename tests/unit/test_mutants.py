"""The bugs that are planted on purpose (tests/mutants) still fit, and planting one is noticed."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.mutants.catalogue import Bug, faults_of, load
from tests.mutants.results import ROOT, BySeeds, ByTests, Form, How, Results, Tried, summary, table
from tests.mutants.trying import Copy

REAL = "rollback-believed-unasked"


def test_every_bug_fits_the_sources_once_and_its_tests_are_there() -> None:
    bugs = load()
    assert len(bugs) >= 40
    assert [fault for bug in bugs for fault in faults_of(bug, ROOT)] == []


def test_a_bug_in_a_copy_of_the_tree_is_found_by_its_test_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    (bug,) = (each for each in load() if each.name == REAL)
    copy = Copy(tmp_path / "tree")
    before = (copy.place / bug.file).read_bytes()
    found = copy.by_tests(bug, {bug.tests[0]: True})
    assert (found.how, found.test) == ("failed", bug.tests[0])
    assert (copy.place / bug.file).read_bytes() == before == (ROOT / bug.file).read_bytes()


def _bug(name: str, old: str = "a", seeds: str = "") -> Bug:
    return Bug(
        name=name,
        what="it is wrong",
        invariant="I1",
        file="module.py",
        old=old,
        new="b",
        tests=("tests/test_module.py::test_it",),
        seeds=seeds,
    )


def test_what_is_wrong_with_a_bug_is_said(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("a = a\n")
    assert list(faults_of(_bug("twice", seeds="few"), tmp_path)) == [
        "twice: its text stands 2 times in module.py, not once",
        "twice: 'few' is no range of seeds",
        "twice: there is no test tests/test_module.py::test_it",
    ]
    broken = replace(_bug("broken", "= a"), new="=")
    assert next(faults_of(broken, tmp_path)) == "broken: invalid syntax (module.py, line 1)"


def test_a_result_is_that_of_the_bug_as_it_is_now_and_the_table_says_all(tmp_path: Path) -> None:
    bugs = [_bug("first", seeds="0-999"), _bug("second", seeds="0-999"), _bug("third")]
    results = Results()
    for bug, by_tests, by_seeds in (
        (bugs[0], ByTests(how="failed", test=bugs[0].tests[0]), _seeds("missed", -1)),
        (bugs[1], ByTests(how="missed"), _seeds("failed", 16, "short")),
    ):
        results.bugs[bug.name] = Tried(
            name=bug.name,
            digest=bug.digest,
            commit="c",
            day="2026-01-01",
            by_tests=by_tests,
            by_seeds=by_seeds,
        )
    results.write(tmp_path / "there.json")
    results = Results.read(tmp_path / "there.json")
    assert results.of(_bug("first", old="another")) is None
    assert table(bugs, results).splitlines()[2:] == [
        "| first | it is wrong | I1 | `test_module.py::test_it` | **not found** in 1000 seeds:"
        " next work |",
        "| second | it is wrong | I1 | **not found** | after 17 short seeds (seed 16) |",
        "| third | it is wrong | I1 | not tried | not in it |",
    ]
    assert summary(bugs, results) == (
        "3 bugs, 2 planted, 2 found; the simulation was asked about 2 and found 1."
    )


def _seeds(how: How, seed: int, form: Form = "") -> BySeeds:
    return BySeeds(how=how, seeds="0-999", tried=seed + 1 or 1000, seed=seed, form=form)
