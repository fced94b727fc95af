"""Debezium's envelope as JSON, for its sinks and for Flink, Spark and the like.

    key    {"id": 1}
    value  {"before": …, "after": …, "source": {…, "commit_ts": …}, "op": "c" | "u" | "d",
            "ts_ms": commit time, "transaction": {"id": start_ts, "total_order": n, …}}

With schemas, each is the payload beside its schema (debezium_schema.py), and a DECIMAL a number.
A delete is followed by a message without a value, which lets a compacted topic forget the key.

| MySQL | JSON, as Debezium's defaults but for DECIMAL |
|---|---|
| integers, YEAR, FLOAT, DOUBLE | number |
| DECIMAL | text (`decimal.handling.mode = string`): nothing is rounded |
| DATE | days since 1970 |
| DATETIME(0..3); DATETIME(4..6) | ms; µs since 1970 |
| TIMESTAMP | text, `2024-02-29T12:00:00Z` |
| TIME | µs |
| BIT(1); BIT(n) | boolean; Base64 of the bytes, lowest first |
| BINARY, BLOB | Base64 |
| ENUM, SET, JSON, text | text; labels of a SET joined by commas |

A date that is none (a month or day of zero) is null, in a NOT NULL column 0 or the epoch.
Source: debezium.io documentation, MySQL connector: change events, data type mappings.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from binlogd import __version__
from binlogd.drainer.kafka.debezium_schema import (
    MILLIS_DIGITS_MAX,
    ddl_schema,
    key_schema,
    value_schema,
)
from binlogd.drainer.kafka.message import KafkaMessage
from binlogd.drainer.kafka.row_events import (
    ColumnWriters,
    EventKind,
    RowEvent,
    RowReader,
)
from binlogd.drainer.kafka.text import text_of
from binlogd.drainer.txn import Ddl, Dml
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import Value
from binlogd.tidb.singles import shortest_single
from binlogd.tidb.times import duration_ns
from binlogd.tso import Tso, physical_ms

_OPS = {EventKind.INSERT: "c", EventKind.UPDATE: "u", EventKind.DELETE: "d"}
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000

Json = int | float | str | bool | msgspec.Raw | None
Writer = Callable[[Value], Json]


class DebeziumJson:
    """A `Notation`; `name` is the logical name of the server in `source`."""

    def __init__(self, name: str, *, has_schemas: bool = False) -> None:
        """`has_schemas`: for Kafka Connect, whose sinks ask for the types of columns."""
        self._name = name
        self._reader = RowReader()
        self._shapes = PerTable(_ShapeWithSchemas if has_schemas else _Shape)
        self._ddl_schema = ddl_schema() if has_schemas else b""

    def rows(self, dml: Dml) -> Iterator[KafkaMessage]:
        """A message for each row, and one without a value after each delete."""
        orders: dict[str, int] = {}
        for total, event in enumerate(self._reader.events(dml), 1):
            name = f"{event.table.database}.{event.table.info.name}"
            orders[name] = orders.get(name, 0) + 1
            transaction = {
                "id": str(dml.start_ts),
                "total_order": total,
                "data_collection_order": orders[name],
            }
            yield from self._messages(event, dml.commit_ts, transaction)

    def ddl(self, ddl: Ddl) -> Iterator[KafkaMessage]:
        """A schema change event for each statement, to every partition."""
        for statement in ddl.statements:
            value = msgspec.json.encode(
                {
                    "source": self._source(ddl.database, ddl.table, ddl.commit_ts),
                    "ts_ms": physical_ms(ddl.commit_ts),
                    "databaseName": ddl.database,
                    "schemaName": None,
                    "ddl": statement,
                    "tableChanges": [],
                }
            )
            value = _beside(self._ddl_schema, value)
            yield KafkaMessage(ddl.database, ddl.table, None, None, value, ddl.commit_ts, "ddl")

    def _messages(
        self, event: RowEvent, commit_ts: Tso, transaction: Mapping[str, Any]
    ) -> Iterator[KafkaMessage]:
        shape, info = self._shapes.of(event.table), event.table.info
        columns = shape.columns
        database = event.table.database
        value = msgspec.json.encode(
            {
                "before": None if event.old is None else columns.values(event.old),
                "after": None if event.new is None else columns.values(event.new),
                "source": self._source(database, info.name, commit_ts),
                "op": _OPS[event.kind],
                "ts_ms": physical_ms(commit_ts),
                "transaction": transaction,
            }
        )
        route = key = shape.routes.key(event.present)
        if shape.key_schema and key is not None:
            key = _beside(shape.key_schema, columns.key(event.present) or b"")
        value = _beside(shape.value_schema, value)
        route = route or f"{database}.{info.name}".encode()
        made = KafkaMessage(database, info.name, route, key, value, commit_ts, event.kind.word)
        yield made
        if event.kind is EventKind.DELETE and key is not None:
            yield made._replace(value=None)

    def _source(self, database: str, table: str, commit_ts: Tso) -> dict[str, Any]:
        return {
            "version": __version__,
            "connector": "tidb",
            "name": self._name,
            "ts_ms": physical_ms(commit_ts),
            "snapshot": "false",
            "db": database,
            "table": table or None,
            "commit_ts": commit_ts,
        }


class _Shape:
    """What all messages of a table have in common."""

    key_schema = value_schema = b""

    def __init__(self, table: TableAt) -> None:
        self.columns = self.routes = ColumnWriters(table.info, _writer)


class _ShapeWithSchemas(_Shape):
    def __init__(self, table: TableAt) -> None:
        super().__init__(table)  # rows stay in their partition, whatever stands beside them
        self.columns = ColumnWriters(table.info, _writer_of_numbers)
        self.key_schema, self.value_schema = key_schema(table), value_schema(table)


def _beside(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":%b,"payload":%b}' % (schema, payload) if schema else payload


def _writer_of_numbers(column: Column) -> Writer:
    if column.field_type.tp == Tp.NEW_DECIMAL:
        return lambda value: msgspec.Raw(str(value).encode())
    return _writer(column)


def _writer(column: Column) -> Writer:
    kind = column.field_type
    if kind.tp in STRING_TYPES:
        return _base64 if column.is_binary else text_of(column)
    special = _SPECIAL.get(kind.tp)
    return special(column) if special is not None else _same


def _same(value: Value) -> Json:
    assert not isinstance(value, bytes)
    return value


def _single(_column: Column) -> Writer:
    def write(value: Value) -> Json:
        assert isinstance(value, float)
        return shortest_single(value)

    return write


def _base64(value: Value) -> Json:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


def _bit(column: Column) -> Writer:
    size = (max(column.field_type.flen, 1) + 7) // 8

    def write(value: Value) -> Json:
        assert isinstance(value, int)
        if column.field_type.flen == 1:
            return bool(value)
        return base64.b64encode(value.to_bytes(size, "little")).decode()

    return write


def _enum(column: Column) -> Writer:
    elems = column.field_type.elems

    def write(value: Value) -> Json:
        assert isinstance(value, int)
        return elems[value - 1] if 0 < value <= len(elems) else ""

    return write


def _set(column: Column) -> Writer:
    elems = column.field_type.elems

    def write(value: Value) -> Json:
        assert isinstance(value, int)
        return ",".join(label for bit, label in enumerate(elems) if value >> bit & 1)

    return write


def _date(column: Column) -> Writer:
    none = 0 if column.not_null else None

    def write(value: Value) -> Json:
        day = _day(str(value))
        return none if day is None else day

    return write


def _datetime(column: Column) -> Writer:
    none = 0 if column.not_null else None
    unit_us = 1000 if column.field_type.decimal <= MILLIS_DIGITS_MAX else 1

    def write(value: Value) -> Json:
        date, _, clock = str(value).partition(" ")
        day = _day(date)
        return none if day is None else (day * _DAY_US + duration_ns(clock) // 1000) // unit_us

    return write


def _timestamp(column: Column) -> Writer:
    none = "1970-01-01T00:00:00Z" if column.not_null else None

    def write(value: Value) -> Json:
        text = str(value)
        return none if _day(text[:10]) is None else text.replace(" ", "T") + "Z"

    return write


def _time(_column: Column) -> Writer:
    return lambda value: duration_ns(str(value)) // 1000


def _day(text: str) -> int | None:
    """Days since 1970; None for what is no day of a calendar."""
    try:
        return datetime.date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


_SPECIAL: Mapping[int, Callable[[Column], Writer]] = {
    Tp.FLOAT: _single,
    Tp.BIT: _bit,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.DATE: _date,
    Tp.NEWDATE: _date,
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: _timestamp,
    Tp.DURATION: _time,
}
