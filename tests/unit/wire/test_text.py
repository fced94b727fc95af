"""Binlogs as text for people."""

from __future__ import annotations

import pytest

from binlogd.errors import MalformedBinlog
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from binlogd.wire.text import binlog_text


def shown(payload: bytes, chars_max: int = 1000) -> str:
    return binlog_text(payload, chars_max=chars_max)


def test_a_ddl_shows_its_statement_and_job() -> None:
    payload = prewrite_binlog(
        Tso(5), ddl_query=b'create table "t"', ddl_job_id=6, ddl_schema_state=5
    )
    assert shown(payload) == (
        'tp:Prewrite start_ts:5 ddl_query:"create table \\"t\\"" ddl_job_id:6 ddl_schema_state:5 \n'
    )


def test_rows_are_shown_by_table_and_order() -> None:
    table = Mutation(7, [b"\x01a"], [], [b"\\"], bytes([0, 4]))
    payload = prewrite_binlog(Tso(5), prewrite_value=encode_mutations(2, [table]))
    assert shown(payload).endswith(
        'schema_version:2 mutations:<table_id:7 inserted_rows:"\\001a" deleted_rows:"\\\\"'
        " sequence:Insert sequence:DeleteRow > \n"
    )


def test_rows_that_do_not_decode_are_said_to_be_so() -> None:
    payload = prewrite_binlog(Tso(5), prewrite_value=b"\xff")
    assert shown(payload).endswith("\n\n PrewriteValue: <Unmarshallable>\n")


def test_a_large_binlog_is_cut() -> None:
    table = Mutation(7, [bytes(100_000)], [], [], bytes([0]))
    value = encode_mutations(2, [table])
    text = shown(prewrite_binlog(Tso(5), prewrite_value=value))
    assert len(text) < 1200
    assert f"… cut: {len(value)} bytes in all" in text


def test_garbage_is_refused() -> None:
    with pytest.raises(MalformedBinlog, match="unexpected EOF"):
        shown(b"\x08")
