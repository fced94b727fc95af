"""Which tables, and which transactions, are replicated."""

from __future__ import annotations

import re

import pytest

from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.errors import ConfigError
from binlogd.node.replicated import table_filter
from binlogd.settings.config import SyncerConfig, parse
from binlogd.tso import Tso

DO_BOTH = {
    "do_databases": ["Shop", "~^tenant_[0-9]+$"],
    "do_tables": [TablePattern("bank", "accounts"), TablePattern("~^crm", "~log")],
}


@pytest.mark.parametrize(
    ("settings", "database", "table", "answer"),
    [
        ({}, "shop", "orders", True),
        ({}, "mysql", "user", False),
        ({}, "INFORMATION_schema", "tables", False),
        ({}, "mysql_too", "user", True),
        ({"ignored_databases": []}, "mysql", "user", True),
        (DO_BOTH, "shop", "orders", True),
        (DO_BOTH, "SHOP", "", True),
        (DO_BOTH, "tenant_17", "t", True),
        (DO_BOTH, "tenant_x", "t", False),
        (DO_BOTH, "bank", "ACCOUNTS", True),
        (DO_BOTH, "bank", "accounts_old", False),
        (DO_BOTH, "bank", "", False),
        (DO_BOTH, "crm_eu", "catalog", True),
        (DO_BOTH, "crm_eu", "people", False),
        ({"ignored_tables": [TablePattern("shop", "~^tmp")]}, "shop", "tmp_1", False),
        ({"ignored_tables": [TablePattern("shop", "~^tmp")]}, "shop", "orders", True),
        ({"ignored_tables": [TablePattern("shop", "~^tmp")]}, "bank", "tmp_1", True),
        ({"ignored_tables": [TablePattern("shop", "~^tmp")]}, "shop", "", True),
        (
            {"do_databases": ["shop"], "ignored_tables": [TablePattern("shop", "audit")]},
            "shop",
            "audit",
            False,
        ),
        ({"do_databases": ["a.b"]}, "a.b", "t", True),
        ({"do_databases": ["a.b"]}, "axb", "t", True),
        ({"do_databases": ["c++"]}, "c++", "t", True),
        ({"do_databases": ["shop"]}, "workshop", "t", False),
        ({"do_databases": ["shop|bank"]}, "bank", "t", True),
        ({"do_databases": ["shop|bank"]}, "shopping", "t", False),
    ],
)
def test_a_table_is_allowed_first_and_then_ignored(
    settings: dict[str, list[str]], database: str, table: str, *, answer: bool
) -> None:
    table_filter = TableFilter(**settings)  # type: ignore[arg-type]  # a table of all settings
    assert table_filter.replicates(database, table) is answer
    assert table_filter.replicates(database, table) is answer


def test_schemas_that_are_ignored_may_have_spaces_between_them() -> None:
    found = table_filter(SyncerConfig(ignore_schemas=" mysql, Shop ,,"))
    assert not found.replicates("shop", "orders")
    assert not found.replicates("mysql", "user")
    assert found.replicates("bank", "accounts")


@pytest.mark.parametrize("pattern", ["~(", "~^(?!tmp)", "~[a--b]"])
@pytest.mark.parametrize(
    ("syncer", "key"),
    [
        ('ignore-schemas = "mysql, {}"', "syncer.ignore-schemas"),
        ('replicate-do-db = ["{}"]', "syncer.replicate-do-db"),
        (
            '[[syncer.replicate-do-table]]\ndb-name = "a"\ntbl-name = "{}"',
            "syncer.replicate-do-table",
        ),
        ('[[syncer.ignore-table]]\ndb-name = "{}"\ntbl-name = "a"', "syncer.ignore-table"),
        (
            '[[syncer.to.original-shape-table]]\ndb-name = "a"\ntbl-name = "{}"',
            "syncer.to.original-shape-table",
        ),
    ],
)
def test_the_key_of_a_pattern_that_cannot_be_meant_is_named(
    syncer: str, key: str, pattern: str
) -> None:
    found = parse(f"[syncer]\n{syncer.format(pattern)}", "test")
    with pytest.raises(ConfigError, match=f"^{re.escape(key)}: .* is no regular expression"):
        table_filter(found.syncer)


@pytest.mark.parametrize(
    ("syncer", "said"),
    [
        ('replicate-do-db = ["a", ""]', "syncer.replicate-do-db: a name is empty"),
        (
            '[[syncer.ignore-table]]\ndb-name = "a"\ntbl-name = ""',
            "syncer.ignore-table: a name is empty",
        ),
        (
            '[syncer.binlog-filter-rule]\nx = {ignore-sql = [""]}',
            "syncer.binlog-filter-rule: an ignore-sql is empty",
        ),
    ],
)
def test_a_pattern_that_is_empty_is_refused(syncer: str, said: str) -> None:
    """It would be no table, or every DDL."""
    found = parse(f"[syncer]\n{syncer}", "test")
    with pytest.raises(ConfigError, match=said):
        table_filter(found.syncer)


def test_a_broken_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="'\\(' is no regular"):
        TableFilter(do_databases=["~("])


def test_a_transaction_is_passed_over_by_its_commit_ts() -> None:
    table_filter = TableFilter(ignored_commit_ts=[Tso(7)])
    assert table_filter.ignores_transaction(Tso(7))
    assert not table_filter.ignores_transaction(Tso(8))
