"""Patterns of tables on the command line."""

from __future__ import annotations

import pytest

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.errors import ConfigError
from binlogd.tools.chosen import table_patterns


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("shop", ("shop", "orders"), ("shopping", "orders")),
        ("shop.orders", ("shop", "orders"), ("shop", "orders_old")),
        ("shop.~^ord", ("shop", "orders"), ("shop", "the_orders")),
        ("~^sh", ("shop", "orders"), ("pushed", "orders")),
        ("~^sh.~^ord", ("shop", "orders"), ("shop", "log")),
    ],
)
def test_a_pattern_means_what_it_says(
    text: str, wanted: tuple[str, str], unwanted: tuple[str, str]
) -> None:
    chosen = TableFilter(do_tables=table_patterns([text], "--table"), ignored_databases=())
    assert chosen.replicates(*wanted)
    assert not chosen.replicates(*unwanted)


@pytest.mark.parametrize("text", ["", ".orders", "shop."])
def test_half_a_pattern_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--table"):
        table_patterns([text], "--table")
