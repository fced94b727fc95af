"""The page of faults is what was found, and every command on it exists."""

from __future__ import annotations

from pathlib import Path

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
