"""What a transaction looks like to people and to programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.messages.named import NamedColumn, NamedDdl, NamedRow, RowKind
from binlogd.tidb.columns import Value
from binlogd.tools.shown import JsonWriter, TextWriter, json_value, printable, value_text
from binlogd.tools.transaction import FilePosition, Transaction
from binlogd.tso import Tso

COLUMNS = (
    NamedColumn("id", "bigint", 1, 1),
    NamedColumn("name", "varchar", b"o'ld", "né".encode()),
    NamedColumn("data", "blob", b"\x00\xff", b"\x00\xff"),
)
ROW = NamedRow("shop", "orders", RowKind.UPDATE, COLUMNS)


def transaction(ddl: NamedDdl | None = None, note: str = "") -> Transaction:
    place = FilePosition(Path("relay/relay-1.log"), 77)
    return Transaction(Tso(1 << 40), Tso(5), place, 99, ddl, lambda: iter((ROW,)), note)


def shown(found: Transaction, *, is_coloured: bool = False) -> list[str]:
    lines: list[str] = []
    writer = TextWriter(lines.append, is_coloured=is_coloured)
    writer.transaction(found, None if found.ddl else found.rows())
    return "".join(lines).splitlines()


def test_an_update_shows_what_changed_and_where_it_stands() -> None:
    head, row = shown(transaction())
    assert head.startswith(f"commit_ts {1 << 40} start_ts 5 1970-01-01T")
    assert head.endswith("relay/relay-1.log:77 (99 bytes)")
    assert row == "  ~ shop.orders id=1 name='o''ld'→'né' data=x'00ff'"


def test_a_ddl_and_a_note_have_lines_of_their_own() -> None:
    lines = shown(transaction(NamedDdl("shop", "DROP TABLE t"), "rolled back"))
    assert lines[1:] == ["  rolled back", "  use shop; DROP TABLE t"]


def test_colours_are_added_and_nothing_else() -> None:
    (_, plain), (_, coloured) = shown(transaction()), shown(transaction(), is_coloured=True)
    assert "\x1b[" in coloured
    assert "orders" in coloured
    assert plain != coloured


def test_a_long_value_is_cut_with_its_length_unless_wanted_whole() -> None:
    column = NamedColumn("t", "text", None, b"x" * 1000)
    row = NamedRow("d", "t", RowKind.INSERT, (column,))
    for limit, expected in ((200, "… (1002 characters)"), (None, "x'")):
        lines: list[str] = []
        writer = TextWriter(lines.append, is_coloured=False, value_chars_max=limit)
        writer.transaction(transaction(), iter((row,)))
        assert lines[-1].rstrip().endswith(expected)


def test_each_line_of_json_stands_for_itself() -> None:
    lines: list[str] = []
    JsonWriter(lines.append).transaction(transaction(), iter((ROW, ROW)))
    first, second = map(json.loads, lines)
    assert first == second
    assert (first["commit_ts"], first["kind"], first["table"]) == (1 << 40, "update", "orders")
    assert first["old"] == {"id": 1, "name": "o'ld", "data": {"hex": "00ff"}}
    assert first["new"]["name"] == "né"


@pytest.mark.parametrize(
    ("value", "mysql_type", "text", "document"),
    [
        (None, "int", "NULL", None),
        ((1 << 64) - 1, "bigint", "18446744073709551615", (1 << 64) - 1),
        ("1.50", "decimal", "1.50", "1.50"),
        ("2024-01-01", "date", "'2024-01-01'", "2024-01-01"),
        (b"a\nb", "text", "'a\\nb'", "a\nb"),
        (b"\xff", "varchar", "x'ff'", {"hex": "ff"}),
        (b"a", "varbinary", "x'61'", {"hex": "61"}),
        (1.5, "double", "1.5", 1.5),
    ],
)
def test_values_are_told_by_their_type(
    value: Value, mysql_type: str, text: str, document: object
) -> None:
    assert value_text(value, mysql_type) == text
    assert json_value(value, mysql_type) == document


@given(st.text())
def test_nothing_that_a_terminal_would_obey_is_printed(text: str) -> None:
    assert printable(text).isprintable()


def test_no_name_tells_a_terminal_what_to_do() -> None:
    odd = "a\x1b]0;x\x07\nb\udcff"
    row = NamedRow(
        odd, odd, RowKind.UPDATE, (NamedColumn(odd, "int", 1, 2), NamedColumn(odd, "int", 1, 1))
    )
    place = FilePosition(Path("f"), 1)
    for ddl in (None, NamedDdl(odd, "DROP TABLE t")):
        found = Transaction(Tso(1 << 40), Tso(5), place, 99, ddl, lambda: iter((row,)), "")
        lines = shown(found)
        assert len(lines) == 2
        assert lines[1].isprintable()
