"""Which kinds of changes a filter rule leaves out."""

from __future__ import annotations

import pytest

from binlogd.drainer.filtering.event_filter import EventFilter, EventRule, event_of
from binlogd.errors import ConfigError
from binlogd.wire.mutation import Mutation

ROWS = Mutation(7, [b"i1", b"i2"], [b"u"], [b"d"], bytes([0, 4, 1, 0]))


def of(
    *events: str, sql: tuple[str, ...] = (), schema: str = "shop", table: str = "*"
) -> EventRule:
    return EventRule(schema, table, events, sql)


@pytest.mark.parametrize(
    ("query", "event"),
    [
        ("create schema if not exists s", "create database"),
        ("CREATE DATABASE `table`", "create database"),
        ("/* why */ DROP SCHEMA s", "drop database"),
        ("ALTER DATABASE s COLLATE utf8mb4_bin", "alter database"),
        ("create global temporary table t (a int) on commit delete rows", "create table"),
        ("create unique index i on t (a)", "create index"),
        ("DROP INDEX i ON t", "drop index"),
        (
            "CREATE OR REPLACE ALGORITHM = MERGE SQL SECURITY DEFINER VIEW v AS SELECT 1",
            "create view",
        ),
        ("drop view v", "drop view"),
        ("truncate t", "truncate table"),
        ("TRUNCATE TABLE t", "truncate table"),
        ("rename table a to b", "rename table"),
        ("alter table t truncate partition p", "alter table"),
        ("flashback table t", ""),
        ("create sequence s", ""),
        ("", ""),
    ],
)
def test_a_statement_is_known_by_its_first_words(query: str, event: str) -> None:
    assert event_of(query) == event


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        (("delete",), [0, 1, 0]),
        (("insert", "update"), [4]),
        (("all",), []),
        (("all dml",), []),
        (("ALL DDL",), [0, 4, 1, 0]),
        (("none", "delete"), [0, 4, 1, 0]),
        (("delete", "none"), [0, 1, 0]),
        (("none ddl", "delete"), [0, 1, 0]),
        (("drop table",), [0, 4, 1, 0]),
    ],
)
def test_the_first_event_that_decides_decides_about_rows(
    events: tuple[str, ...], kept: list[int]
) -> None:
    rows = EventFilter([of(*events)]).kept("Shop", "orders", ROWS)
    assert list(rows.sequence) == kept
    assert (len(rows.inserted), len(rows.updated), len(rows.deleted)) == (
        kept.count(0),
        kept.count(1),
        kept.count(4),
    )


@pytest.mark.parametrize(
    ("rule", "query", "is_ignored"),
    [
        (of("drop table"), "DROP TABLE orders", True),
        (of("drop table"), "TRUNCATE TABLE orders", False),
        (of("all ddl"), "TRUNCATE TABLE orders", True),
        (of("create schema"), "CREATE DATABASE shop", True),
        (of("none ddl", "all"), "DROP TABLE orders", False),
        (of(sql=("^alter table .* drop",)), "ALTER TABLE orders DROP COLUMN a", True),
        (of("none", sql=("drop",)), "DROP TABLE orders", True),
        (of("all"), "FLASHBACK TABLE orders", False),
        (of("all", sql=("flashback",)), "FLASHBACK TABLE orders", True),
    ],
)
def test_a_ddl_is_ignored_by_its_event_or_by_its_text(
    rule: EventRule, query: str, *, is_ignored: bool
) -> None:
    assert EventFilter([rule]).ignores_ddl("shop", "orders", query) is is_ignored


def test_a_rule_for_a_schema_holds_for_the_schema_itself() -> None:
    of_schema = EventFilter([of("create database", table="")])
    assert of_schema.ignores_ddl("shop", "", "CREATE DATABASE shop")
    assert not EventFilter([of("create database")]).ignores_ddl("shop", "", "CREATE DATABASE shop")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("log_*", "log_", True),
        ("log_*", "LOG_2024", True),
        ("log_?", "log_12", False),
        ("log_[0-9]", "log_7", True),
        ("log_[!0-9]", "log_7", False),
        ("log_[!0-9]", "log_x", True),
        ("a.b", "axb", False),
    ],
)
def test_a_pattern_is_a_glob(pattern: str, name: str, *, matches: bool) -> None:
    rows = EventFilter([of("all", table=pattern)]).kept("shop", name, ROWS)
    assert (rows.sequence == b"") is matches


def test_names_mind_their_case_when_told_to() -> None:
    rows = EventFilter([of("all", table="Log")], is_case_sensitive=True)
    assert rows.kept("shop", "log", ROWS) is ROWS
    assert rows.kept("shop", "Log", ROWS).sequence == b""


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (of("add index"), 'unknown event "add index"'),
        (of(table="a*b"), "only be the last"),
        (of(table="a[b"), "needs its"),
        (of(sql=("(",)), "no regular expression"),
    ],
)
def test_what_cannot_be_meant_is_refused(rule: EventRule, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EventFilter([rule])
