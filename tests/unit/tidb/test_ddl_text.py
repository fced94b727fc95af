"""What stands only in the text of a DDL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.tidb.ddl_text import Rename, changed_columns, renamed_tables, words


def test_strings_names_and_comments_are_told_apart() -> None:
    said = words("CREATE /* not me */ TABLE `a``b` -- nor me\n (x INT DEFAULT 'it''s; \\'') # no")
    assert [word.text for word in said] == [
        "CREATE",
        "TABLE",
        "a`b",
        "(",
        "x",
        "INT",
        "DEFAULT",
        "'it''s; \\''",
        ")",
    ]


def test_what_stands_in_comments_of_tidb_counts() -> None:
    said = words("ALTER TABLE t /*T![auto_id_cache] AUTO_ID_CACHE = 5 */")
    assert [word.text for word in said[3:]] == ["AUTO_ID_CACHE", "=", "5"]


@pytest.mark.parametrize(
    ("statement", "renames"),
    [
        ("rename table a to b", [Rename("", "a", "", "b")]),
        (
            "RENAME TABLE `x y`.`a` TO b.`c``d` , e TO f;",
            [Rename("x y", "a", "b", "c`d"), Rename("", "e", "", "f")],
        ),
        ("/* hi */ rename tables a to b", [Rename("", "a", "", "b")]),
        ("ALTER TABLE a RENAME b", []),
        ("RENAME TABLE a TO", []),
        ("RENAME TABLE a b", []),
        ("", []),
    ],
)
def test_renames_are_read_in_order(statement: str, renames: list[Rename]) -> None:
    assert renamed_tables(statement) == renames


def test_changed_columns_are_read_by_their_new_names() -> None:
    statement = "alter table t CHANGE a `B` int, change column `c` c bigint, modify d int"
    assert changed_columns(statement) == {"b": "a", "c": "c"}
    assert changed_columns("ALTER TABLE t CHANGE COLUMN IF EXISTS `a` `b` INT") == {"b": "a"}


@given(st.text(alphabet="`'\"/*T![]-#\n a;,.()\\=é", max_size=60))
def test_no_text_is_too_odd(statement: str) -> None:
    said = words(statement)
    assert [word.begin for word in said] == sorted({word.begin for word in said})
    renamed_tables("rename table " + statement)
    changed_columns("change " + statement)
