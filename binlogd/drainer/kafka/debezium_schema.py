"""What a Debezium message of a table looks like, as Kafka Connect's JsonConverter reads it.

    {"type": "struct", "name": …, "optional": false, "fields": [
        {"type": "int32", "optional": false, "field": "id"}, …]}

Types of columns are in debezium_columns.py. Source: Kafka Connect, JsonSchema; debezium.io
documentation, MySQL connector: change events.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlogd.drainer.kafka.debezium_columns import Exact, Schema, Writer, column_type, default_of
from binlogd.drainer.kafka.row_events import key_columns
from binlogd.tidb.model import Column, TableAt

TRANSACTION = "event.block"


class MessageTypes:
    """The columns of a table, and the schemas of its messages."""

    def __init__(self, table: TableAt, exact: Exact) -> None:
        self._table, self._exact = table, exact
        self.place = f"tidb.{table.label}"
        """What the names of its schemas begin with."""

    def writer(self, column: Column) -> Writer:
        """How a value is written."""
        return column_type(column, self._exact).write

    def value_schema(self) -> Schema:
        """Of what is sent for each row. Raises CorruptRow for a default that is none."""
        row = self._row("Value", self._table.info.stored_columns(), optional=True)
        envelope = [
            row | {"field": "before"},
            row | {"field": "after"},
            _SOURCE,
            _plain("op", "string"),
            _plain("ts_ms", "int64", optional=True),
            _struct(TRANSACTION, _TRANSACTION, optional=True) | {"field": "transaction"},
        ]
        return _struct(f"{self.place}.Envelope", envelope)

    def key_schema(self) -> Schema:
        """Of the key of such a message. Raises CorruptRow for a default that is none."""
        return self._row("Key", key_columns(self._table.info), optional=False)

    def _row(self, name: str, columns: Iterable[Column], *, optional: bool) -> Schema:
        fields = [self._field(each) for each in columns]
        return _struct(f"{self.place}.{name}", fields, optional=optional)

    def _field(self, column: Column) -> Schema:
        form = column_type(column, self._exact)
        default = default_of(column, form.write)
        more = {} if default is None else {"default": default}
        return {**form.schema, "optional": not column.not_null, "field": column.name, **more}


def ddl_schema() -> Schema:
    """Of what is sent for a DDL."""
    change = _struct("io.debezium.connector.schema.Change", [])
    changes = {"type": "array", "items": change, "optional": False, "field": "tableChanges"}
    names = [_plain(each, "string", optional=True) for each in ("databaseName", "schemaName")]
    texts = [*names, _plain("ddl", "string", optional=True), changes]
    fields = [_SOURCE, _plain("ts_ms", "int64"), *texts]
    return _struct("io.debezium.connector.tidb.SchemaChangeValue", fields)


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
