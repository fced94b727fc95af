"""A table that asks for it is written in the original's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.rows.parts import Gatherer, Limits
from binlogd.drainer.rows.progress import LanePosition
from binlogd.drainer.rows.shape import (
    DownstreamColumn,
    DownstreamKey,
    DownstreamTable,
    Mode,
    Shape,
    Shapes,
    original_shape,
    shape_of,
)
from binlogd.drainer.rows.target import Reader, Target
from binlogd.drainer.txn import Dml, TableChange
from binlogd.tidb.columns import Value
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import encode_delete, encode_insert, encode_update
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import Mutation

ID = Column(1, "id", 0, FieldType(Tp.LONGLONG, FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
CODE = Column(2, "code", 1, FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin"))
B = Column(3, "B", 2, FieldType(Tp.LONG))
BY_CODE = Index(2, "by_code", (IndexColumn("code", 1),), is_unique=True)
KEYED = Table(7, "t", (ID, CODE, B), indexes=(BY_CODE,), pk_is_handle=True)
NULLABLE_ID = replace(ID, field_type=FieldType(Tp.LONGLONG))
UNIQUE = Table(7, "t", (NULLABLE_ID, CODE, B), indexes=(BY_CODE,))
COLUMNS = (
    DownstreamColumn("id", "bigint", "", is_nullable=False, is_generated=False),
    DownstreamColumn("code", "varchar", "utf8mb4_bin", is_nullable=True, is_generated=False),
    DownstreamColumn("B", "int", "", is_nullable=True, is_generated=False),
)
PRIMARY = DownstreamKey("PRIMARY", ("id",), has_prefix=False)
CODE_KEY = DownstreamKey("by_code", ("code",), has_prefix=False)
THERE = DownstreamTable(COLUMNS, (PRIMARY, CODE_KEY))
OLD: dict[int, Value] = {1: 5, 2: b"it's", 3: None}
NEW: dict[int, Value] = {1: 6, 2: None, 3: 9}


def shape(info: Table, there: DownstreamTable = THERE, *, is_safe: bool = False) -> Shape:
    return original_shape(shape_of(info, there), there, is_safe=is_safe, merges=False)


def written(info: Table, of: Shape, *, without: str = "") -> list[str]:
    """The statements of an insert, an update and a delete, in this order; an update of rows that
    are `without` a column, which is on its way out."""
    at = TableAt("shop", info, 1, None, {}, may_lack_columns=bool(without))
    known = replace(info, columns=tuple(each for each in info.columns if each.name != without))
    mutation = Mutation(
        info.id,
        [encode_insert(info, OLD, handle=5)],
        [encode_update(known, OLD, NEW, handle=5)],
        [encode_delete(info, NEW, handle=6)],
        bytes([0, 1, 4]),
    )
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    dml = Dml(Tso(1), Tso(2), 1, (TableChange(at, mutation),))
    for _ in gatherer.add(dml, [Reader(at, Target("shop", info, of))]):
        pass
    part = gatherer.take(0)
    assert part is not None
    return [statement.text.decode() for statement in part.statements(1 << 20)]


def test_columns_come_by_name_and_rows_by_the_primary_key() -> None:
    assert written(KEYED, shape(KEYED)) == [
        "INSERT INTO `shop`.`t`(`B`,`code`,`id`) VALUES(NULL,'it''s',5)",
        "UPDATE `shop`.`t` SET `B` = 9,`code` = NULL,`id` = 6 WHERE `id` = 5 LIMIT 1",
        "DELETE FROM `shop`.`t` WHERE `id` = 6 LIMIT 1",
    ]


def test_in_safe_mode_an_update_is_a_delete_and_a_replace() -> None:
    assert written(KEYED, shape(KEYED, is_safe=True)) == [
        "REPLACE INTO `shop`.`t`(`B`,`code`,`id`) VALUES(NULL,'it''s',5)",
        "DELETE FROM `shop`.`t` WHERE `id` = 5 LIMIT 1",
        "REPLACE INTO `shop`.`t`(`B`,`code`,`id`) VALUES(9,NULL,6)",
        "DELETE FROM `shop`.`t` WHERE `id` = 6 LIMIT 1",
    ]


def test_in_safe_mode_a_row_is_looked_for_by_what_its_update_has() -> None:
    """What stands for a column on its way out is no value that the downstream has."""
    of = shape(replace(UNIQUE, indexes=()), replace(THERE, keys=()), is_safe=True)
    _, deletion, replacement, _ = written(UNIQUE, of, without="B")
    assert deletion.startswith("DELETE FROM `shop`.`t` WHERE `code` = 'it''s' AND ")
    assert deletion.endswith(" AND `id` = 5 LIMIT 1")
    assert "`B`" not in deletion
    assert replacement == "REPLACE INTO `shop`.`t`(`B`,`code`,`id`) VALUES(NULL,NULL,6)"


def test_a_key_with_a_null_gives_way_to_all_columns() -> None:
    statements = written(UNIQUE, shape(UNIQUE, replace(THERE, keys=(CODE_KEY,))))
    assert statements[1].endswith(" WHERE `code` = 'it''s' LIMIT 1")
    assert statements[2].endswith(" WHERE `B` = 9 AND `code` IS NULL AND `id` = 6 LIMIT 1")


def test_with_the_merge_option_a_table_with_a_primary_key_is_merged() -> None:
    assert (
        original_shape(shape_of(KEYED, THERE), THERE, is_safe=False, merges=True).mode
        is Mode.MERGED
    )
    without = replace(THERE, keys=(CODE_KEY,))
    assert (
        original_shape(shape_of(UNIQUE, without), without, is_safe=False, merges=True).mode
        is Mode.ORIGINAL
    )


@pytest.mark.parametrize(("table", "mode"), [("t", Mode.ORIGINAL), ("u", Mode.MERGED)])
def test_single_tables_can_ask_for_it(table: str, mode: Mode) -> None:
    tables = TableFilter(do_tables=[TablePattern("shop", "t")], ignored_databases=())
    shapes = Shapes(tables, safe_mode=False)
    assert shapes.of("shop", replace(KEYED, name=table), THERE).mode is mode
    assert not shapes.is_safe
