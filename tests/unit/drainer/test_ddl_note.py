"""Which statements undo themselves, and what the numbers of tables tell of them."""

from __future__ import annotations

import pytest

from binlogd.drainer.mysql.ddl_note import (
    Note,
    Outcome,
    Round,
    TableOrPartition,
    goes_round,
    was_lax,
    went_round,
)

A, B = TableOrPartition("s", "a"), TableOrPartition("s", "b")
TURN = Round((A, B), (1, 0))


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("RENAME TABLE a TO x, s.b TO a, x TO `b`", TURN),
        ("RENAME TABLE a TO x, b TO a", None),
        ("RENAME TABLE a TO x, x TO a", None),
        ("RENAME TABLE a TO b", None),
        (
            "ALTER TABLE `s`.`a` EXCHANGE PARTITION `p` WITH TABLE b WITHOUT VALIDATION",
            Round((TableOrPartition("s", "a", "p"), B), (1, 0)),
        ),
        ("ALTER TABLE a ADD COLUMN `EXCHANGE` INT", None),
    ],
)
def test_what_undoes_itself_is_known_by_its_text(text: str, turn: Round | None) -> None:
    assert goes_round(text, "s") == turn


@pytest.mark.parametrize(
    ("before", "now", "outcome"),
    [
        (("1", "2"), ("2", "1"), Outcome.DONE),
        (("1", "2"), ("1", "2"), Outcome.NOT_DONE),
        (("1", "2"), ("9", "1"), Outcome.DONE),
        (("1", "2"), ("1", "9"), Outcome.NOT_DONE),
        (("1", "2"), ("8", "9"), Outcome.UNKNOWN),
        (("?", "?"), ("2", "1"), Outcome.UNKNOWN),
        (("1", "2"), ("?", "?"), Outcome.UNKNOWN),
        ((), ("2", "1"), Outcome.UNKNOWN),
    ],
)
def test_numbers_tell_where_tables_went(
    before: tuple[str, ...], now: tuple[str, ...], outcome: Outcome
) -> None:
    assert went_round(TURN, before, now) is outcome


def test_a_note_is_read_as_it_was_written_and_fits() -> None:
    note = Note("v", "t", "c", ("1", "2"))
    assert Note.of(str(note)) == note
    assert Note.of(str(Note("v", "", "-"))) == Note("v", "", "-")
    assert Note.of("12ab 34cd") is None
    lax = Note("v", "t", "c", is_lax=True)
    assert Note.of(str(lax)) == lax
    assert was_lax(str(lax)), "and of an earlier version nobody knows"
    assert was_lax("2 v t c -")
    assert not was_lax(str(note))
    assert len(str(Note("v", "t", "c", ("12345678",) * 40))) <= 255
