"""Debezium's messages as JSON, alone or each beside its schema.

Bytes are Base64. Alone, a DECIMAL is text (`decimal.handling.mode = string`), so that nothing is
rounded; beside a schema, for Kafka Connect, whose sinks ask for the types of columns, it is a
number: `{"schema": …, "payload": …}`. Source: KIP-481 (a Decimal as a number).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        kind: Callable[[TableAt], EncodedTable] = _TableWithSchemas if has_schemas else _Table
        self.of_table = PerTable(kind).of
        self._ddl = _Beside(ddl_schema() if has_schemas else None)

    def ddl(self, document: Document) -> bytes:
        """See Encoding."""
        return self._ddl.encode(document)


class _Beside:
    """A payload, beside its schema if it has one."""

    def __init__(self, schema: Schema | None) -> None:
        self._schema = msgspec.json.encode(schema) if schema is not None else b""

    def encode(self, payload: Document) -> bytes:
        text = msgspec.json.encode(payload)
        return b'{"schema":%b,"payload":%b}' % (self._schema, text) if self._schema else text


class _Table:
    """What all messages of a table have in common."""

    def __init__(self, table: TableAt) -> None:
        self.columns = self.routes = plain_columns(table)

    def key(self, route: bytes, values: Mapping[int, Value]) -> bytes:
        del values
        return route

    def value(self, envelope: Document) -> bytes:
        return msgspec.json.encode(envelope)


class _TableWithSchemas:
    def __init__(self, table: TableAt) -> None:
        form = MessageTypes(table, _number)
        self.routes = plain_columns(table)
        self.columns = ColumnWriters(table.info, form.writer)
        self._key, self._value = _Beside(form.key_schema()), _Beside(form.value_schema())
        self.value = self._value.encode

    def key(self, route: bytes, values: Mapping[int, Value]) -> bytes:
        del route
        return self._key.encode(self.columns.keys(values))


def plain_columns(table: TableAt) -> ColumnWriters[Any]:
    """The columns of a table where there is no schema."""
    return ColumnWriters(table.info, MessageTypes(table, _as_told).writer)


def _as_told(_scale: int) -> Writer:
    return lambda value: value


def _number(_scale: int) -> Writer:
    return lambda value: msgspec.Raw(str(value).encode())
