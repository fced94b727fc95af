"""What a DDL text is about."""

from __future__ import annotations

import pytest

from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.messages.named import NamedDdl


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CREATE DATABASE IF NOT EXISTS `a`", ("a", "")),
        ("drop schema a", ("a", "")),
        ("ALTER DATABASE a CHARACTER SET utf8mb4", ("a", "")),
        ("CREATE TABLE t (id INT)", ("used", "t")),
        ("CREATE TABLE IF NOT EXISTS `x y`.`t.t` (`index` INT)", ("x y", "t.t")),
        ("CREATE GLOBAL TEMPORARY TABLE t (a INT)", ("used", "t")),
        ("DROP TABLE IF EXISTS a.t, a.u", ("a", "t")),
        ("TRUNCATE t", ("used", "t")),
        ("TRUNCATE TABLE a.t", ("a", "t")),
        ("RENAME TABLE a.t TO b.u", ("a", "t")),
        ("ALTER TABLE t ADD INDEX i (a)", ("used", "t")),
        ("CREATE UNIQUE INDEX i ON a.t (`on`)", ("a", "t")),
        ("DROP INDEX i ON t", ("used", "t")),
        ("CREATE OR REPLACE ALGORITHM = UNDEFINED VIEW v AS SELECT 1", ("used", "v")),
        ("CREATE SEQUENCE s", ("used", "s")),
        ("/* TABLE x */ CREATE TABLE t (a INT)", ("used", "t")),
        ("SELECT SETVAL(`a`.`s`, 5)", ("used", "")),
    ],
)
def test_the_first_table_that_a_statement_names(text: str, name: tuple[str, str]) -> None:
    assert name_of(NamedDdl("used", text)) == name
