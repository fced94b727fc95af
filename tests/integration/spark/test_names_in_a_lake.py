"""Tables of a lake are told apart by database.table, where both may hold a dot."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from binlogd.snapshot.log.rowkey import Handle, HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.lake import moving, seed
from binlogd.spark.lake.manifest import LakeTables, PipelineStopped
from binlogd.tidb.model import Table


def plan(table_id: int, database: str, table: str) -> TablePlan:
    handle = Handle(HandleKind.HIDDEN, (-1,))
    return TablePlan(database, Table(table_id, table, ()), handle, (), (), ())


def test_two_tables_that_a_lake_would_take_for_one_stop_it() -> None:
    tables = {1: plan(1, "a.b", "c"), 2: plan(2, "a", "b.c")}
    batch: Any = Mock(after=tables, before={}, origins={})
    with pytest.raises(PipelineStopped, match=r"a\.b\.c: two tables are called so"):
        moving.check(LakeTables(0, {}, "delta"), batch, is_first=True)
    with pytest.raises(PipelineStopped, match=r"a\.b\.c: two tables are called so"):
        seed.todo(Mock(), Mock(tables=tables))
    del tables[2]
    moving.check(LakeTables(0, {}, "delta"), batch, is_first=True)
