"""Warnings that tell of a changed value are told from those that do not matter."""

from __future__ import annotations

from binlogd.drainer.mysql.refusals import Warned, changed_value

MEMBERS = frozenset({"e"})


def warning(code: int, column: str) -> Warned:
    return Warned("Warning", code, f"Data truncated for column {column} at row 3")


def test_the_invalid_member_of_an_enum_is_what_upstream_has() -> None:
    assert changed_value([warning(1265, "'E'")], MEMBERS) is None


def test_a_value_that_was_cut_is_found_behind_others() -> None:
    cut = warning(1265, "`db`.`t`.`c`")
    assert changed_value([warning(1265, "'e'"), cut], MEMBERS) == cut


def test_a_number_that_was_clipped_is_found() -> None:
    clipped = warning(1264, "'e'")
    assert changed_value([clipped], MEMBERS) == clipped


def test_a_note_that_something_was_cut_off_tells_of_a_changed_value() -> None:
    """Of spaces at the end of a text, of digits behind a point."""
    note = Warned("Note", 1265, "Data truncated for column 'c' at row 1")
    assert changed_value([note], MEMBERS) == note


def test_any_other_note_is_only_a_note() -> None:
    assert changed_value([Warned("Note", 1292, "Truncated incorrect value")], MEMBERS) is None


def test_other_warnings_are_not_about_values() -> None:
    assert changed_value([warning(1287, "'c'")], MEMBERS) is None
