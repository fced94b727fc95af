"""The schemas that stand beside Debezium's messages, as Kafka Connect's JsonConverter reads them.

    {"schema": {"type": "struct", "name": …, "optional": false, "fields": [
        {"type": "int32", "optional": false, "field": "id"}, …]}, "payload": {…}}

| MySQL | type, name |
|---|---|
| TINYINT, SMALLINT; with MEDIUMINT, INT; BIGINT | int16; int32; int64, UNSIGNED one wider |
| BIGINT UNSIGNED, DECIMAL | bytes, Connect's Decimal, written as a number: exact |
| FLOAT; DOUBLE | float; double |
| all else | as Debezium's defaults: its names below `io.debezium` |

Source: Kafka Connect, JsonSchema; KIP-481 (a
Decimal as a number); debezium.io documentation, MySQL connector: data type mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from binlogd.drainer.kafka.row_events import key_columns, visible_columns
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column, TableAt

Schema = dict[str, Any]
MILLIS_DIGITS_MAX = 3
_INTEGERS: Mapping[int, tuple[str, str]] = {
    Tp.TINY: ("int16", "int16"),
    Tp.SHORT: ("int16", "int32"),
    Tp.INT24: ("int32", "int32"),
    Tp.LONG: ("int32", "int64"),
}
"""Signed, and UNSIGNED."""


def value_schema(table: TableAt) -> bytes:
    """Of what is sent for each row of a table."""
    place = f"tidb.{table.database}.{table.info.name}"
    fields = [_of_column(each) for each in visible_columns(table.info)]
    row = _struct(f"{place}.Value", fields, optional=True)
    transaction = _struct("event.block", _TRANSACTION, optional=True)
    envelope = [
        row | {"field": "before"},
        row | {"field": "after"},
        _SOURCE,
        _plain("op", "string"),
        _plain("ts_ms", "int64", optional=True),
        transaction | {"field": "transaction"},
    ]
    return msgspec.json.encode(_struct(f"{place}.Envelope", envelope))


def key_schema(table: TableAt) -> bytes:
    """Of the key of such a message."""
    place = f"tidb.{table.database}.{table.info.name}"
    fields = [_of_column(each) for each in key_columns(table.info)]
    return msgspec.json.encode(_struct(f"{place}.Key", fields))


def ddl_schema() -> bytes:
    """Of what is sent for a DDL."""
    change = _struct("io.debezium.connector.schema.Change", [])
    changes = {"type": "array", "items": change, "optional": False, "field": "tableChanges"}
    names = [_plain(each, "string", optional=True) for each in ("databaseName", "schemaName")]
    texts = [*names, _plain("ddl", "string", optional=True), changes]
    fields = [_SOURCE, _plain("ts_ms", "int64"), *texts]
    return msgspec.json.encode(_struct("io.debezium.connector.tidb.SchemaChangeValue", fields))


def _struct(name: str, fields: list[Schema], *, optional: bool = False) -> Schema:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name}


def _plain(field: str, kind: str, *, optional: bool = False) -> Schema:
    return {"type": kind, "optional": optional, "field": field}


_TRANSACTION = [
    _plain("id", "string"),
    _plain("total_order", "int64"),
    _plain("data_collection_order", "int64"),
]
_SOURCE = {
    **_struct(
        "io.debezium.connector.tidb.Source",
        [
            *(_plain(each, "string") for each in ("version", "connector", "name")),
            _plain("ts_ms", "int64"),
            _plain("snapshot", "string", optional=True),
            _plain("db", "string"),
            _plain("table", "string", optional=True),
            _plain("commit_ts", "int64"),
        ],
    ),
    "field": "source",
}


def _of_column(column: Column) -> Schema:
    return {**_kind(column), "optional": not column.not_null, "field": column.name}


def _kind(column: Column) -> Schema:
    kind = column.field_type
    if kind.tp in STRING_TYPES:
        return {"type": "bytes" if column.is_binary else "string"}
    if kind.tp in _INTEGERS:
        return {"type": _INTEGERS[kind.tp][column.is_unsigned]}
    if kind.tp == Tp.LONGLONG:
        return _decimal(20, 0) if column.is_unsigned else {"type": "int64"}
    special = _SPECIAL.get(kind.tp)
    return special(column) if special is not None else {"type": "string"}


def _decimal(precision: int, scale: int) -> Schema:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    name = "org.apache.kafka.connect.data.Decimal"
    return {"type": "bytes", "name": name, "version": 1, "parameters": parameters}


def _named(kind: str, name: str, **parameters: str) -> Schema:
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": f"io.debezium.{name}", "version": 1, **more}


def _datetime(column: Column) -> Schema:
    is_ms = column.field_type.decimal <= MILLIS_DIGITS_MAX
    return _named("int64", "time.Timestamp" if is_ms else "time.MicroTimestamp")


def _bit(column: Column) -> Schema:
    bits = column.field_type.flen
    return {"type": "boolean"} if bits == 1 else _named("bytes", "data.Bits", length=str(bits))


def _labels(column: Column) -> str:
    return ",".join(column.field_type.elems)


_SPECIAL: Mapping[int, Callable[[Column], Schema]] = {
    Tp.FLOAT: lambda _: {"type": "float"},
    Tp.DOUBLE: lambda _: {"type": "double"},
    Tp.NEW_DECIMAL: lambda of: _decimal(of.field_type.flen, max(of.field_type.decimal, 0)),
    Tp.YEAR: lambda _: _named("int32", "time.Year"),
    Tp.DATE: lambda _: _named("int32", "time.Date"),
    Tp.NEWDATE: lambda _: _named("int32", "time.Date"),
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: lambda _: _named("string", "time.ZonedTimestamp"),
    Tp.DURATION: lambda _: _named("int64", "time.MicroTime"),
    Tp.BIT: _bit,
    Tp.ENUM: lambda of: _named("string", "data.Enum", allowed=_labels(of)),
    Tp.SET: lambda of: _named("string", "data.EnumSet", allowed=_labels(of)),
    Tp.JSON: lambda _: _named("string", "data.Json"),
}
