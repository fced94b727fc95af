"""canal-json: the flat messages of Alibaba's Canal, with TiCDC's `_tidb` beside them.

    {"id": 0, "database": "shop", "table": "t", "pkNames": ["id"], "isDdl": false,
     "type": "UPDATE", "es": commit time in ms, "ts": the same, "sql": "",
     "sqlType": {"id": 4}, "mysqlType": {"id": "int"},
     "data": [{"id": "1"}], "old": [{"id": "1"}], "_tidb": {"commitTs": commit_ts}}

One message for each row. Values are text: ENUM and SET their number, BIT its unsigned number, bytes
as ISO 8859-1, TIMESTAMP in UTC; NULL is null.
Source: alibaba/canal FlatMessage; docs.pingcap.com/tidb/stable/ticdc-canal-json (fields, JDBC type
codes, how each type is printed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from binlogd.drainer.kafka.message import KafkaMessage
from binlogd.drainer.kafka.row_events import (
    ColumnWriters,
    RowEvent,
    RowReader,
    key_columns,
    shortest,
    text_of,
)
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb_write import mysql_type
from binlogd.drainer.txn import Ddl, Dml
from binlogd.tidb.kinds import STRING_TYPES, ActionType, Tp
from binlogd.tidb.layout import INTEGER_TYPES
from binlogd.tidb.model import Column, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import Value
from binlogd.tso import Tso, physical_ms

_JDBC: Mapping[int, int] = {
    Tp.TINY: -6,
    Tp.SHORT: 5,
    Tp.INT24: 4,
    Tp.LONG: 4,
    Tp.LONGLONG: -5,
    Tp.YEAR: 12,
    Tp.FLOAT: 7,
    Tp.DOUBLE: 8,
    Tp.NEW_DECIMAL: 3,
    Tp.DATE: 91,
    Tp.DURATION: 92,
    Tp.DATETIME: 93,
    Tp.TIMESTAMP: 93,
    Tp.ENUM: 4,
    Tp.SET: -7,
    Tp.BIT: -7,
    Tp.JSON: 12,
}
_CHAR, _VARCHAR, _CLOB, _BLOB = 1, 12, 2005, 2004
_DDL_TYPES: Mapping[int, str] = {
    ActionType.CREATE_TABLE: "CREATE",
    ActionType.RENAME_TABLE: "RENAME",
    ActionType.RENAME_TABLES: "RENAME",
    ActionType.ADD_INDEX: "CINDEX",
    ActionType.DROP_INDEX: "DINDEX",
    ActionType.DROP_TABLE: "ERASE",
    ActionType.DROP_VIEW: "ERASE",
    ActionType.TRUNCATE_TABLE: "TRUNCATE",
    ActionType.CREATE_SCHEMA: "QUERY",
    ActionType.DROP_SCHEMA: "QUERY",
    ActionType.MODIFY_SCHEMA_CHARSET: "QUERY",
}

Writer = Callable[[Value], str]


class CanalJson:
    """A `Notation`."""

    def __init__(self) -> None:
        self._reader = RowReader()
        self._shapes = PerTable(_Shape)

    def rows(self, dml: Dml) -> Iterator[KafkaMessage]:
        """One message for each row."""
        for event in self._reader.events(dml):
            yield self._message(event, dml.commit_ts)

    def ddl(self, ddl: Ddl) -> Iterator[KafkaMessage]:
        """One message for each statement, to every partition."""
        for statement in ddl.statements:
            document = _document(ddl.database, ddl.table, ddl.commit_ts) | {
                "isDdl": True,
                "type": _DDL_TYPES.get(ddl.job.type, "ALTER"),
                "sql": statement,
            }
            value = msgspec.json.encode(document)
            yield KafkaMessage(ddl.database, ddl.table, None, None, value, ddl.commit_ts, "ddl")

    def _message(self, event: RowEvent, commit_ts: Tso) -> KafkaMessage:
        shape = self._shapes.of(event.table)
        database, table = event.table.database, event.table.info.name
        document = _document(database, table, commit_ts) | {
            "pkNames": shape.key_names,
            "type": event.kind.name,
            "sqlType": shape.sql_types,
            "mysqlType": shape.mysql_types,
            "data": [shape.columns.values(event.present)],
        }
        if event.kind is RowKind.UPDATE and event.old is not None:
            document["old"] = [shape.columns.values(event.old)]
        key = shape.columns.key(event.present)
        route = key or f"{database}.{table}".encode()
        value, kind = msgspec.json.encode(document), event.kind.name.lower()
        return KafkaMessage(database, table, route, key, value, commit_ts, kind)


def _document(database: str, table: str, commit_ts: Tso) -> dict[str, Any]:
    ms = physical_ms(commit_ts)
    return {
        "id": 0,
        "database": database,
        "table": table,
        "pkNames": None,
        "isDdl": False,
        "type": "",
        "es": ms,
        "ts": ms,
        "sql": "",
        "sqlType": None,
        "mysqlType": None,
        "data": None,
        "old": None,
        "_tidb": {"commitTs": commit_ts},
    }


class _Shape:
    """What all messages of a table have in common."""

    def __init__(self, table: TableAt) -> None:
        columns = table.info.stored_columns()
        self.key_names = [each.name for each in key_columns(table.info)] or None
        self.sql_types = {each.name: _jdbc(each) for each in columns}
        self.mysql_types = {each.name: _type_name(each) for each in columns}
        self.columns = ColumnWriters(table.info, _writer)


def _type_name(column: Column) -> str:
    is_number = column.field_type.tp in INTEGER_TYPES and column.field_type.tp != Tp.YEAR
    suffix = " unsigned" if column.is_unsigned and is_number else ""
    return mysql_type(column) + suffix


def _jdbc(column: Column) -> int:
    """The JDBC type; an unsigned integer has that of the next larger one."""
    kind = column.field_type
    if kind.tp in STRING_TYPES:
        if kind.tp in (Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING):
            of_text = _CHAR if kind.tp == Tp.STRING else _VARCHAR
        else:
            of_text = _CLOB
        return _BLOB if column.is_binary else of_text
    if column.is_unsigned and kind.tp in INTEGER_TYPES:
        return {Tp.TINY: 5, Tp.SHORT: 4, Tp.INT24: 4, Tp.LONG: -5, Tp.LONGLONG: 3}.get(
            Tp(kind.tp), _VARCHAR
        )
    return _JDBC.get(kind.tp, _VARCHAR)


def _writer(column: Column) -> Writer:
    kind = column.field_type
    if kind.tp in STRING_TYPES:
        return _latin if column.is_binary else text_of(column)
    return (lambda value: str(shortest(value))) if kind.tp == Tp.FLOAT else str


def _latin(value: Value) -> str:
    assert isinstance(value, bytes)
    return value.decode("latin-1")
