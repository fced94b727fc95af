"""How a table is written follows from both sides of it; literals denote exactly the value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import session_mode
from binlogd.drainer.mysql.writer import without_values
from binlogd.drainer.rows.shape import (
    DownstreamColumn,
    DownstreamKey,
    DownstreamTable,
    Mode,
    Shape,
    shape_of,
)
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table

BIN = "utf8mb4_bin"
INT_KEY = Column(1, "id", 0, FieldType(Tp.LONGLONG, FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
NAME = Column(2, "Name", 1, FieldType(Tp.VARCHAR, FLAG_NOT_NULL, charset="utf8mb4", collate=BIN))
RAW = Column(3, "raw", 2, FieldType(Tp.VARCHAR, FLAG_NOT_NULL, charset="binary"))
PRIMARY = DownstreamKey("PRIMARY", ("id",), has_prefix=False)
BY_NAME = Index(2, "n", (IndexColumn("name", 1),), is_unique=True)
UPSTREAM = Table(1, "t", (INT_KEY, NAME, RAW), pk_is_handle=True)


def _column(name: str, data_type: str = "bigint", collation: str = "") -> DownstreamColumn:
    return DownstreamColumn(name, data_type, collation, is_nullable=False, is_generated=False)


ID_THERE = _column("id")
NAME_THERE = _column("name", "varchar", BIN)
RAW_THERE = _column("raw", "varbinary")
THERE = DownstreamTable((ID_THERE, NAME_THERE, RAW_THERE), (PRIMARY,))


def _by_name(collation: str = BIN, *, has_prefix: bool = False) -> Shape:
    """Of a table whose one unique key is `name`."""
    index = replace(BY_NAME, columns=(IndexColumn("name", 1, 5 if has_prefix else -1),))
    info = Table(1, "t", (INT_KEY, NAME, RAW), indexes=(index,))
    key = DownstreamKey("n", ("name",), has_prefix)
    columns = (ID_THERE, replace(NAME_THERE, collation=collation), RAW_THERE)
    return shape_of(info, DownstreamTable(columns, (key,)))


def test_one_exact_key_merges_by_key_in_lanes_by_key() -> None:
    shape = shape_of(UPSTREAM, THERE)
    assert (shape.mode, shape.by_key, shape.reason) == (Mode.MERGED, True, "")
    assert [each.column.name for each in shape.key] == ["id"]


@pytest.mark.parametrize(
    ("collation", "strips"),
    [("utf8mb4_bin", True), ("latin1_bin", True), ("utf8mb4_nopad_bin", False)],
)
def test_text_under_a_bin_collation_is_exact(collation: str, *, strips: bool) -> None:
    shape = _by_name(collation)
    assert (shape.mode, shape.by_key) == (Mode.MERGED, True)
    assert shape.key[0].strips_spaces == strips


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_520_ci", "binary_x"])
def test_text_under_any_other_collation_keeps_its_order(collation: str) -> None:
    shape = _by_name(collation)
    assert (shape.mode, shape.by_key) == (Mode.ORDERED, False)


def test_a_prefix_key_keeps_its_order() -> None:
    assert _by_name(has_prefix=True).mode is Mode.ORDERED


def test_a_second_unique_key_on_either_side_binds_the_table_to_one_lane() -> None:
    upstream = replace(UPSTREAM, indexes=(BY_NAME,))
    downstream = replace(THERE, keys=(PRIMARY, DownstreamKey("n", ("name",), has_prefix=False)))
    assert not shape_of(UPSTREAM, downstream).by_key
    for info, there in ((upstream, THERE), (upstream, downstream)):
        shape = shape_of(info, there)
        assert (shape.mode, shape.by_key) == (Mode.MERGED, False)
        assert [each.column.name for each in shape.key] == ["id"]


@pytest.mark.parametrize(
    ("columns", "has_prefix", "is_single"),
    [
        (("raw",), False, True),
        (("name",), True, True),
        (("",), False, True),
        (("name",), False, False),
        (("raw", "NAME"), False, False),
    ],
)
def test_a_unique_key_that_upstream_has_not_as_narrow_lets_no_row_replace_another(
    columns: tuple[str, ...], *, has_prefix: bool, is_single: bool
) -> None:
    upstream = replace(UPSTREAM, indexes=(BY_NAME,))
    shape = shape_of(
        upstream, replace(THERE, keys=(PRIMARY, DownstreamKey("X", columns, has_prefix)))
    )
    assert (shape.mode is Mode.SINGLE, shape.by_key, shape.is_upsert) == (is_single, False, False)
    assert (shape.reason == "unique keys that upstream lacks: X") == is_single


def test_a_unique_key_on_an_expression_is_known_by_its_name() -> None:
    hidden = Index(3, "x", (IndexColumn("_v$_x_0", 3),), is_unique=True)
    keys = (PRIMARY, DownstreamKey("X", ("",), has_prefix=False))
    shape = shape_of(replace(UPSTREAM, indexes=(hidden,)), replace(THERE, keys=keys))
    assert shape.mode is Mode.MERGED


def test_without_a_key_that_both_sides_have_rows_are_written_one_by_one() -> None:
    unknown = DownstreamKey("x", ("raw",), has_prefix=False)
    for keys in ((), (unknown,)):
        shape = shape_of(UPSTREAM, replace(THERE, keys=keys))
        assert (shape.mode, shape.key) == (Mode.SINGLE, ())


def test_a_key_that_may_be_null_is_no_key() -> None:
    columns = (replace(ID_THERE, is_nullable=True), NAME_THERE, RAW_THERE)
    assert shape_of(UPSTREAM, replace(THERE, columns=columns)).mode is Mode.SINGLE


@pytest.mark.parametrize(
    "downstream",
    [
        replace(THERE, has_triggers=True),
        replace(THERE, is_versioned=True),
        replace(THERE, columns=(*THERE.columns, _column("mine"))),
    ],
)
def test_what_replace_would_disturb_is_written_one_by_one(downstream: DownstreamTable) -> None:
    shape = shape_of(UPSTREAM, downstream)
    assert shape.mode is Mode.SINGLE
    assert shape.is_upsert
    assert shape.reason


def test_columns_that_the_downstream_computes_are_not_written() -> None:
    columns = (ID_THERE, NAME_THERE, replace(RAW_THERE, is_generated=True))
    shape = shape_of(UPSTREAM, replace(THERE, columns=columns))
    assert shape.mode is Mode.MERGED
    assert [column.name for column in shape.columns] == ["id", "Name"]


def test_a_float_is_no_exact_key() -> None:
    key = Column(1, "id", 0, FieldType(Tp.DOUBLE, FLAG_NOT_NULL))
    index = Index(1, "PRIMARY", (IndexColumn("id", 0),), is_primary=True)
    info = Table(1, "t", (key, NAME, RAW), indexes=(index,))
    assert shape_of(info, THERE).mode is Mode.ORDERED


# --- literals ----------------------------------------------------------------------------------


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_reads_back_as_itself_and_is_never_a_decimal(value: float) -> None:
    literal = sql.float_literal(value)
    assert float(literal) == value
    assert b"e" in literal


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=30), st.integers(1, 60))
def test_batches_keep_order_and_fit(items: list[bytes], bytes_max: int) -> None:
    batches = list(sql.batches(items, bytes_max))
    assert [item for batch in batches for item in batch] == items
    assert all(len(b",".join(batch)) <= bytes_max or len(batch) == 1 for batch in batches)


@given(st.lists(st.integers() | st.binary(max_size=9), min_size=1, max_size=4))
def test_a_key_is_taken_apart_as_it_was_put_together(values: list[int | bytes]) -> None:
    literals = [
        b"%d" % value if isinstance(value, int) else b"_binary" + sql.quoted(value)
        for value in values
    ]
    names = list("abcd"[: len(values)])
    conditions = [
        b"`%b` = %b" % (name.encode(), each) for name, each in zip(names, literals, strict=True)
    ]
    where = sql.where_key(names, sql.tuple_of(literals))
    assert where == b" WHERE " + b" AND ".join(conditions)


def test_a_backtick_in_a_name_is_doubled() -> None:
    assert sql.qualified("odd `name", "t") == b"`odd ``name`.`t`"


def test_modes_that_change_what_a_literal_means_are_left_out() -> None:
    mode = "ANSI_QUOTES,STRICT_TRANS_TABLES,no_backslash_escapes"
    assert session_mode(mode, for_rows=True) == "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO"
    kept = "ANSI_QUOTES,STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES"
    assert session_mode(mode, for_rows=False) == kept
    assert session_mode(None, for_rows=True) == "ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO"


def test_what_a_server_quotes_from_a_row_is_not_repeated() -> None:
    told = "Duplicate entry 'secret''s' for key 'PRIMARY'"
    assert without_values(1062, told) == "Duplicate entry '...' for key 'PRIMARY'"
    assert without_values(1146, "Table 's.t' doesn't exist") == "Table 's.t' doesn't exist"
