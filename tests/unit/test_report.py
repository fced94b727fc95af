"""The page of faults is what was found, and every command on it exists."""

from __future__ import annotations

from pathlib import Path

from tests.compatibility import runs_in
from tests.report import PAGE, ROOT, entries_of, kept, merged, page

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.integration.test_x" name="a"><properties>
<property name="fault" value="kill -9"/><property name="target" value="Pump"/>
<property name="cases" value="7"/><property name="lost" value="0"/></properties></testcase>
<testcase classname="tests.integration.test_x" name="b"><properties>
<property name="fault" value="kill -9"/><property name="target" value="Pump"/>
<property name="cases" value="2"/><property name="lost" value="1"/></properties></testcase>
<testcase classname="tests.integration.test_x" name="c"/>
</testsuite></testsuites>"""


def test_the_page_is_what_is_published() -> None:
    assert PAGE.read_text() == page(kept()), "`make report` writes it"


def test_every_test_that_the_page_names_exists() -> None:
    assert [
        each["test"] for each in kept() if "test" in each and not (ROOT / each["test"]).exists()
    ] == []


def test_cases_of_one_fault_are_added_and_a_new_run_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    (found,) = entries_of(file)
    assert (found["cases"], found["lost"]) == (9, 1)
    assert found["test"] == "tests/integration/test_x.py"
    before = [{**found, "cases": 1, "day": "2020-01-01", "commit": "old"}]
    (told,) = merged(before, iter([found]), day="2026-01-02", commit="new")
    assert (told["cases"], told["day"], told["commit"]) == (9, "2026-01-02", "new")
    assert merged(before, iter([]), day="2026-01-02", commit="new") == before
    assert "| kill -9 | Pump | 9 | 1 | 2026-01-02, new |" in page([told])


def test_a_search_of_seconds_does_not_replace_a_long_one_unless_it_found_something() -> None:
    known = {"kind": "fuzz", "target": "row", "seconds": 600, "left": 0}
    for seconds, left, is_told in ((20, 0, False), (300, 0, True), (20, 1, True)):
        now = {**known, "seconds": seconds, "left": left}
        (told,) = merged([known], iter([now]), day="2026-01-02", commit="new")
        assert (told["seconds"] == seconds) is is_told
    load = {"kind": "load", "minutes": 60.0, "differences": 0}
    short = {**load, "minutes": 2.0}
    assert merged([load], iter([short]), day="2026-01-02", commit="new") == [load]
    (told,) = merged([load], iter([{**short, "differences": 3}]), day="2026-01-02", commit="new")
    assert told["differences"] == 3


def test_a_run_is_told_with_the_commit_and_day_that_it_had(tmp_path: Path) -> None:
    """The report may be made of it days later."""
    told = 'value="Pump"/><property name="commit" value="abc1234"/>'
    run = JUNIT.replace('value="Pump"/>', told)
    for name, began in (("a", "2026-01-03T02:00:00"), ("b", "2026-01-02T02:00:00")):
        suite = f'<testsuite timestamp="{began}">'
        (tmp_path / f"{name}.xml").write_text(run.replace("<testsuite>", suite))
    older, newer = runs_in(tmp_path)
    assert (older.stem, newer.stem) == ("b", "a")
    (entry,) = merged([], entries_of(older), day="2026-01-09", commit="later")
    assert (entry["day"], entry["commit"]) == ("2026-01-02", "abc1234")


def test_the_short_and_the_long_form_of_a_test_stand_beside_each_other(tmp_path: Path) -> None:
    """The gate is run much more often: it would put its few cases in the place of thousands."""
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT.replace('value="7"/>', 'value="7"/><property name="form" value="soak"/>'))
    short, long = sorted(entries_of(file), key=lambda entry: int(entry["cases"]))
    assert [(each["form"], each["cases"]) for each in (short, long)] == [("gate", 2), ("soak", 7)]
    before = merged([], iter([long]), day="2026-01-01", commit="old")
    told = merged(before, iter([short]), day="2026-01-02", commit="new")
    made = page(told)
    file_name = "tests/integration/test_x.py"
    assert f"| kill -9 | Pump | 7 | 0 | 2026-01-01, old | `pytest -m soak {file_name}` |" in made
    assert f"| kill -9 | Pump | 2 | 1 | 2026-01-02, new | `pytest {file_name}` |" in made


def test_seeds_of_the_simulation_stand_with_their_hours_and_failures() -> None:
    found = {
        **{"kind": "sim", "first_seed": 1, "last_seed": 200, "seeds": 200, "commit": "abc1234"},
        **{"virtual_hours": 12.5, "faults": {"cut": 3, "kill": 1000}, "failed": [7, 33]},
    }
    (told,) = merged([], iter([found]), day="2026-01-02", commit="later")
    row = (
        "| 200 | 12.5 | 1,003 of 2 kinds | 7, 33 | 2026-01-02, abc1234"
        " | `python -m tests.sim --seeds 1-200` |"
    )
    assert row in page([told])
    fresh = {**found, "first_seed": 5000, "last_seed": 5199, "failed": []}
    assert len(merged([told], iter([fresh]), day="2026-01-03", commit="later")) == 2
