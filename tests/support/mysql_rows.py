"""Rows of small tables as transactions for a sink, written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.txn import Ddl, Dml, TableChange, Txn
from binlogd.errors import BinlogdError
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Table, TableAt, job_from_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.support.replay import running

ID = Column(1, "id", 0, FieldType(Tp.LONGLONG, FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
NUMBER = FieldType(Tp.LONGLONG)
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")


def table(table_id: int, name: str, *fields: FieldType, has_key: bool = True) -> TableAt:
    """`id` (a primary key, or not) and columns b, c, ..."""
    first = ID if has_key else Column(1, "id", 0, NUMBER)
    columns = (first, *(Column(n + 2, "bcdef"[n], n + 1, each) for n, each in enumerate(fields)))
    info = Table(table_id, name, columns, pk_is_handle=has_key)
    return TableAt("s", info, 1, None, {}, may_lack_columns=False)


def _values(row: Sequence[Value]) -> dict[int, Value]:
    return {n + 1: value for n, value in enumerate(row)}


def inserted(at: TableAt, *rows: Sequence[Value]) -> TableChange:
    handle = None if at.info.pk_is_handle else 1
    encoded = [encode_insert(at.info, _values(row), handle=handle) for row in rows]
    return TableChange(at, Mutation(at.info.id, encoded, [], [], bytes(len(rows))))


def updated(at: TableAt, old: Sequence[Value], new: Sequence[Value]) -> TableChange:
    return updates(at, (old, new))


def updates(at: TableAt, *pairs: tuple[Sequence[Value], Sequence[Value]]) -> TableChange:
    handle = None if at.info.pk_is_handle else 1
    encoded = [
        encode_update(at.info, _values(old), _values(new), handle=handle) for old, new in pairs
    ]
    return TableChange(at, Mutation(at.info.id, [], encoded, [], b"\x01" * len(pairs)))


def deleted(at: TableAt, row: Sequence[Value]) -> TableChange:
    handle = None if at.info.pk_is_handle else 1
    encoded = encode_delete(at.info, _values(row), handle=handle)
    return TableChange(at, Mutation(at.info.id, [], [], [encoded], b"\x04"))


def dml(ts: int, *changes: TableChange) -> Dml:
    return Dml(Tso(ts - 1), Tso(ts), 1, changes)


def ddl(ts: int, statement: str, name: str = "t", table_id: int = 1, further: str = "") -> Ddl:
    job = job_from_json(json.dumps({"id": ts, "type": 3, "table_id": table_id}).encode())
    rest = (further,) if further else ()
    return Ddl(Tso(ts - 1), Tso(ts), 2, job, statement, "s", name, is_skipped=False, further=rest)


async def apply(sink: MySqlSink, *txns: Txn) -> None:
    async with running(sink):
        for txn in txns:
            await sink.submit([txn])
        await sink.flush()


async def failing(sink: MySqlSink, *txns: Txn) -> BinlogdError:
    """The error that applying these ends with."""
    errors: list[BinlogdError] = []
    try:
        await apply(sink, *txns)
    except* BinlogdError as group:
        leaves: list[BaseException] = [*group.exceptions]
        while leaves:
            leaf = leaves.pop()
            if isinstance(leaf, BaseExceptionGroup):
                leaves += leaf.exceptions
            elif isinstance(leaf, BinlogdError):
                errors.append(leaf)
    assert errors, "nothing failed"
    return errors[0]
