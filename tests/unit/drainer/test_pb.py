"""pb_binlog by hand against the generated messages, and back to values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.messages import secondary
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb import PbHead, PbReader, head_of
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import (
    TableEncoder,
    ddl_binlog,
    ddl_text,
    dml_binlog,
    mysql_type,
)
from binlogd.errors import Corrupt
from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.model import Column, FieldType, SchemaState, Table, TableAt, Tp
from binlogd.tidb.row import Value
from binlogd.tso import Tso
from binlogd.wire.generated import pb_binlog
from binlogd.wire.mutation import Mutation
from tests.support.pb_reader import PbColumn, decode
from tests.support.row_strategies import Sample, samples

tsos = st.integers(0, 2**63 - 1).map(Tso)


def handle_of(table: Table) -> int | None:
    return None if table.pk_is_handle or table.is_common_handle else 5


def shown(sample: Sample, values: dict[int, Value]) -> dict[str, Value]:
    return {column.name: values.get(column.id) for column in sample.table.columns}


@given(samples(), st.data(), tsos)
def test_rows_come_back_in_the_order_in_which_they_changed(
    sample: Sample, data: st.DataObject, commit_ts: Tso
) -> None:
    table, handle = sample.table, handle_of(sample.table)
    a, b, c, d = (data.draw(sample.rows()) for _ in range(4))
    mutation = Mutation(
        table_id=table.id,
        inserted=[encode_insert(table, a, handle=handle), encode_insert(table, b, handle=handle)],
        updated=[encode_update(table, b, c, handle=handle)],
        deleted=[encode_delete(table, d, handle=handle)],
        sequence=b"\0\4\0\1",
    )
    encoder = ChangeEncoder(sample.at())
    payload = dml_binlog(commit_ts, encoder.events(mutation))
    transaction = decode(payload)
    assert (transaction.commit_ts, transaction.ddl) == (commit_ts, "")
    assert head_of(payload) == PbHead(commit_ts, is_ddl=False)
    first, second, third, fourth = transaction.events
    assert [event.kind for event in transaction.events] == [
        RowKind.INSERT,
        RowKind.DELETE,
        RowKind.INSERT,
        RowKind.UPDATE,
    ]
    assert {name: column.value for name, column in first.columns.items()} == shown(sample, a)
    assert {name: column.value for name, column in third.columns.items()} == shown(sample, b)
    written = {column.name for column in table.columns if not column.is_generated}
    assert fourth.columns.keys() == written
    for name, column in fourth.columns.items():
        assert column.value == shown(sample, b)[name]
        assert column.changed_value == shown(sample, c)[name]
    for name, column in second.columns.items():
        assert column.value == shown(sample, d)[name]


@given(samples(), st.data(), tsos)
def test_the_generated_messages_read_the_same(
    sample: Sample, data: st.DataObject, commit_ts: Tso
) -> None:
    old, new = data.draw(sample.rows()), data.draw(sample.rows())
    encoder = TableEncoder("d`b", sample.table)
    events = [encoder.insert(old), encoder.update(old, new), encoder.delete(new)]
    payload = dml_binlog(commit_ts, events)
    message = pb_binlog.Binlog().parse(payload)
    assert (message.commit_ts, message.tp) == (commit_ts, pb_binlog.BinlogType.DML)
    types = {each.name: each.field_type.tp for each in sample.table.columns}
    for mine, theirs in zip(decode(payload).events, message.dml_data.events, strict=True):
        assert (mine.database, mine.table) == (theirs.schema_name, theirs.table_name)
        assert mine.kind == theirs.tp
        columns = [pb_binlog.Column().parse(row) for row in theirs.row]
        assert list(mine.columns) == [column.name for column in columns]
        for column, ours in zip(columns, mine.columns.values(), strict=True):
            assert ours.mysql_type == column.mysql_type
            assert column.tp == bytes((types[column.name],))


@given(tsos, st.text(max_size=300))
def test_ddl_comes_back_and_reads_the_same_generated(commit_ts: Tso, query: str) -> None:
    payload = ddl_binlog(commit_ts, ddl_text("db", query))
    assert decode(payload).ddl == f"use `db`; {query};"
    assert head_of(payload) == PbHead(commit_ts, is_ddl=True)
    message = pb_binlog.Binlog().parse(payload)
    assert (message.tp, message.commit_ts) == (pb_binlog.BinlogType.DDL, commit_ts)
    assert message.ddl_query == f"use `db`; {query};".encode()


def test_a_ddl_without_a_database_has_no_use() -> None:
    assert ddl_text("", "CREATE DATABASE `x`;") == "CREATE DATABASE `x`;;"
    assert ddl_text("a`b", "DROP TABLE `t`") == "use `a``b`; DROP TABLE `t`;"


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_transaction_or_corrupt(payload: bytes) -> None:
    for read in (decode, head_of):
        with suppress(Corrupt):
            read(payload)


def column(number: int, tp: int, charset: str = "") -> Column:
    return Column(number, f"c{number}", number - 1, FieldType(tp, charset=charset))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x08\x00\x10\x01\x10\x02",  # a second commit_ts
        b"\x08\x00\x10\x01\x08\x01",  # a second type
        b"\x08\x00\x10\x01\x00\x00",  # a field 0
        b"\x08\x00\x10\x01\x02\x00",
        b"\x08\x00\x10\x01\x18\x01",  # rows that are a number
        b"\x10\x01\x08\x00",  # no type at the beginning
        b"\x10\x01",
        b"",
    ],
)
def test_whoever_reads_the_whole_refuses_what_the_head_would_not_tell(payload: bytes) -> None:
    """A tool chooses by the head what it reads whole: one commit_ts for both, or none."""
    for read in (decode, PbReader().named, lambda data: list(secondary.decode(data).rows())):
        with pytest.raises(Corrupt):
            read(payload)


@pytest.mark.parametrize("event", [b"\x02\x00", b"\x00\x00"])
def test_an_event_has_no_field_0(event: bytes) -> None:
    rows = b"\x0a" + bytes((len(event),)) + event
    payload = b"\x08\x00\x10\x01\x1a" + bytes((len(rows),)) + rows
    with pytest.raises(Corrupt):
        list(PbReader().named(payload).rows())


@pytest.mark.parametrize(
    ("tp", "charset", "name"),
    [
        (Tp.VARCHAR, "utf8mb4", "varchar"),
        (Tp.VARCHAR, "binary", "varbinary"),
        (Tp.STRING, "latin1", "char"),
        (Tp.STRING, "binary", "binary"),
        (Tp.VAR_STRING, "binary", "var_string"),
        (Tp.BLOB, "utf8mb4", "text"),
        (Tp.BLOB, "binary", "blob"),
        (Tp.LONG_BLOB, "binary", "longblob"),
        (Tp.JSON, "binary", "json"),
        (Tp.DURATION, "binary", "time"),
        (Tp.NEW_DECIMAL, "binary", "decimal"),
    ],
)
def test_types_are_named_as_the_original_names_them(tp: int, charset: str, name: str) -> None:
    assert mysql_type(column(1, tp, charset=charset)) == name


def test_the_bytes_are_those_of_the_original() -> None:
    table = Table(1, "t", (column(1, Tp.LONG), column(2, Tp.VARCHAR), column(3, Tp.ENUM)))
    encoder = TableEncoder("d", table)
    event = encoder.update({1: 1, 2: b"a", 3: None}, {1: -1, 2: b"", 3: 3})
    assert dml_binlog(Tso(300), [event]).hex(" ") == (
        "08 00 10 ac 02 1a 51 0a 4f 0a 01 64 12 01 74 18 01 "
        "22 14 0a 02 63 31 12 01 03 1a 03 69 6e 74 22 02 08 02 2a 02 08 01 "
        "22 19 0a 02 63 32 12 01 0f 1a 07 76 61 72 63 68 61 72 22 03 02 02 61 2a 02 02 00 "
        "22 14 0a 02 63 33 12 01 f7 1a 04 65 6e 75 6d 22 01 00 2a 02 09 03"
    )


def test_an_insert_shows_columns_on_their_way_in_and_out_and_generated_ones() -> None:
    columns = (
        column(1, Tp.LONG),
        replace(column(2, Tp.LONG), generated_expr="`c1` + 1"),
        replace(column(3, Tp.LONG), state=SchemaState.WRITE_ONLY, origin_default="7"),
    )
    table = Table(1, "t", columns)
    row = encode_insert(Table(1, "t", columns[:1]), {1: 5}, handle=1)
    mutation = Mutation(1, [row], [], [], b"\0")
    at = TableAt("d", table, 1, None, {}, may_lack_columns=False)
    payload = dml_binlog(Tso(1), ChangeEncoder(at).events(mutation))
    (event,) = decode(payload).events
    assert event.columns == {
        "c1": PbColumn("int", 5, None),
        "c2": PbColumn("int", None, None),
        "c3": PbColumn("int", 7, None),
    }
