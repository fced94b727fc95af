"""Debezium's messages as JSON, alone or each beside its schema.

Bytes are Base64. Alone, a DECIMAL is text (`decimal.handling.mode = string`), so that nothing is
rounded; beside a schema, for Kafka Connect, whose sinks ask for the types of columns, it is a
number: `{"schema": …, "payload": …}`. Source: KIP-481 (a Decimal as a number).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from binlogd.drainer.kafka.debezium import Document, EncodedTable
from binlogd.drainer.kafka.debezium_columns import Schema, Writer
from binlogd.drainer.kafka.debezium_schema import MessageTypes, ddl_schema
from binlogd.drainer.kafka.row_events import ColumnWriters
from binlogd.tidb.model import TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import Value


class DebeziumJson:
    """An `Encoding`."""

    def __init__(self, *, has_schemas: bool = False) -> None:
        self.of_table = PerTable[EncodedTable](partial(_Table, has_schemas=has_schemas)).of
        self.ddl = _Beside(ddl_schema() if has_schemas else None).encode


class _Beside:
    """A payload, beside its schema if it has one."""

    def __init__(self, schema: Schema | None) -> None:
        self._schema = msgspec.json.encode(schema) if schema is not None else b""

    def encode(self, payload: Document) -> bytes:
        text = msgspec.json.encode(payload)
        return b'{"schema":%b,"payload":%b}' % (self._schema, text) if self._schema else text


class _Table:
    """What all messages of a table have in common."""

    def __init__(self, table: TableAt, *, has_schemas: bool) -> None:
        form = MessageTypes(table, _number) if has_schemas else None
        self.columns = self.routes = plain_columns(table)
        if form is not None:
            self.columns = ColumnWriters(table.info, form.writer)
        self._key = _Beside(form.key_schema()) if form is not None else None
        self.value = _Beside(form.value_schema() if form is not None else None).encode

    def key(self, route: bytes, values: Mapping[int, Value]) -> bytes:
        return route if self._key is None else self._key.encode(self.columns.keys(values))


def plain_columns(table: TableAt) -> ColumnWriters[Any]:
    """The columns of a table where there is no schema."""
    return ColumnWriters(table.info, MessageTypes(table, lambda _scale: lambda value: value).writer)


def _number(_scale: int) -> Writer:
    return lambda value: msgspec.Raw(str(value).encode())
