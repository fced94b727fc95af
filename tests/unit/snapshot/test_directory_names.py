"""Tables of any name have directories of their own, beside what else a snapshot holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.snapshot.log.rowkey import Handle, HandleKind
from binlogd.snapshot.publishing.lake.iceberg import CATALOG_FILE
from binlogd.snapshot.spec import MANIFEST_NAME
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.write import SCHEMA_FILE
from binlogd.snapshot.writing.writer import directory_name
from binlogd.tidb.model import Table

names = st.text(st.sampled_from("ab._%/-\\ é表'`\0"), min_size=1, max_size=8) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=64
)


def named(database: str, table: str, table_id: int = 7) -> str:
    info = Table(table_id, table, ())
    return directory_name(TablePlan(database, info, Handle(HandleKind.HIDDEN, (-1,)), (), (), ()))


@given(st.tuples(names, names), st.tuples(names, names))
def test_directories_are_plain_names_of_one_table_each(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    found = named(*one)
    assert 0 < len(found.encode()) <= 255
    assert found[0] not in "._"
    assert not set(found) & set("/\\\0")
    assert (found == named(*other, table_id=8)) == (one == other and not found.startswith("table-"))


@pytest.mark.parametrize("file", [SCHEMA_FILE, MANIFEST_NAME, CATALOG_FILE, "_state", "metadata"])
def test_no_table_is_called_like_a_file_of_a_snapshot_or_a_lake(file: str) -> None:
    database, _, table = file.partition(".")
    assert named(database, table or "x") != file


def test_usual_names_stay_what_they_are() -> None:
    assert named("shop", "orders_2024") == "shop.orders_2024"
    assert named("a_", "_b") == "a_._b"
