"""The page of compatibility is what was found, and every command on it exists."""

from __future__ import annotations

from pathlib import Path

from tests.compatibility import KEPT, PAGE, ROOT, entries_of, kept, merged, page
from tests.support.tried import LIBRARIES, library, taken, tried

JUNIT = """<testsuites><testsuite name="pytest" timestamp="2026-01-02T03:04:05.6+00:00">
<testcase classname="tests.unit.test_compatibility" name="a"><properties>
<property name="tried" value="MariaDB = 10.11.1"/><property name="tried" value="a = b = 3"/>
</properties></testcase>
<testcase classname="tests.unit.test_compatibility" name="b"><properties>
<property name="tried" value="MariaDB = 10.11.1"/></properties><failure>no</failure></testcase>
<testcase classname="tests.unit.test_compatibility" name="c"/>
</testsuite></testsuites>"""
HERE = "tests/unit/test_compatibility.py"


def test_the_page_is_what_is_published() -> None:
    assert PAGE.read_text() == page(kept()), "`make report` writes it"
    assert KEPT.exists()


def test_every_test_that_the_page_names_exists() -> None:
    assert [each["test"] for each in kept() if not (ROOT / each["test"]).exists()] == []


def test_what_users_meet_was_tried() -> None:
    """Where a test says no more which program it has to do with, the page must not shrink in
    silence."""
    found = {each["program"] for each in kept()}
    assert found >= {
        *("TiDB, as recorded", "PD, as recorded", "Go Pump, by its files", "MariaDB", "MySQL"),
        *("Go Drainer, by its files", "binlogctl, as recorded", "SQLite", "Kafka broker", "Spark"),
        *("etcd", "Python", "Chromium", LIBRARIES["deltalake"], LIBRARIES["pyiceberg"]),
    }


def test_tests_of_a_file_are_counted_with_their_outcome_and_day(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    mariadb, other = entries_of(file)
    assert mariadb == {
        **{"program": "MariaDB", "version": "10.11.1", "test": HERE},
        **{"form": "gate", "passed": 1, "failed": 1, "day": "2026-01-02"},
    }
    assert (other["program"], other["version"]) == ("a = b", "3")


def test_a_run_replaces_the_file_that_it_ran_and_leaves_the_others(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    (now, _) = entries_of(file)
    before = [
        {**now, "passed": 5, "failed": 0, "day": "2020-01-01", "commit": "old"},
        {**now, "version": "10.6", "day": "2020-01-01", "commit": "old"},
        {**now, "test": "tests/gone.py", "day": "2020-01-01", "commit": "old"},
    ]
    short = {**now, "passed": 1, "failed": 0}
    told = merged(before, [[now], [short]], "new")
    assert [(each["version"], each["failed"], each["commit"]) for each in told] == [
        ("10.11.1", 1, "new"),
        ("10.6", 1, "old"),
    ]
    made = page(told)
    assert f"| MariaDB | 10.11.1 | 1 | 1 | 2026-01-02, new | `pytest {HERE}` |" in made
    assert "| MariaDB | 10.6 | 1 | 1 | 2020-01-01, old |" in made


def test_the_tests_that_soak_alone_runs_are_counted_beside_those_of_the_gate(
    tmp_path: Path,
) -> None:
    """Whichever ran last, neither takes away what the other has found."""
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    (gate, _) = entries_of(file)
    told = '<property name="form" value="soak"/><property name="tried"'
    file.write_text(JUNIT.replace('<property name="tried"', told))
    (soak, _) = entries_of(file)
    before = merged([], [[gate]], "old")
    both = merged(before, [[soak]], "new")
    assert [(each["form"], each["commit"]) for each in both] == [("gate", "old"), ("soak", "new")]
    assert "| MariaDB | 10.11.1 | 2 | 2 | 2026-01-02, new and 1 more |" in page(both)
    assert f"`pytest -m soak {HERE}`" in page(merged([], [[soak]], "new"))


def test_a_test_tells_what_it_has_to_do_with() -> None:
    taken()
    tried("MariaDB", "10.11.1")
    tried("MariaDB", "10.11.1")
    library("promql-parser")
    first, (name, version) = taken()
    assert first == ("MariaDB", "10.11.1")
    assert name == LIBRARIES["promql-parser"]
    assert version[0].isdigit()
    assert taken() == []
