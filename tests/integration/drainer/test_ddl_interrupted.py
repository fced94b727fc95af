"""A DDL of several statements that is interrupted between them is done once, and wholly."""

from __future__ import annotations

import pytest

from binlogd.tidb.model import ActionType
from tests.support.ddl_upstream import ID, Upstream, table, with_column
from tests.support.interrupted import interrupted_at_each
from tests.support.mariadb import MariaDb
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef


@pytest.mark.parametrize("there_before", ["b", "c", "d"])
async def test_an_alter_that_is_done_part_by_part_goes_on_with_the_next_part(
    there_before: str, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused as a whole, because the downstream has one of its columns already."""
    upstream = Upstream()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    before = table(10, "t", ID)
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)", before)
    upstream.insert(10, [1])
    await upstream.replicate(mariadb)
    mariadb.execute(f"ALTER TABLE shop.t ADD COLUMN {there_before} INT")
    after = before
    for name in "bcd":
        after = with_column(after, ColumnDef(name, tidb.integer()))
    parts = ", ".join(f"ADD COLUMN `{name}` INT" for name in "bcd")
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, f"ALTER TABLE `t` {parts}", after)
    upstream.insert(10, [2, 3, 4, 5])

    begun = await interrupted_at_each(
        lambda: upstream.replicate(mariadb), b"ALTER TABLE", monkeypatch
    )
    assert begun >= 6
    assert mariadb.execute("SELECT id, b, c, d FROM shop.t ORDER BY id") == [
        (b"1", None, None, None),
        (b"2", b"3", b"4", b"5"),
    ]
