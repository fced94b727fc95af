"""Debezium's envelope, for its sinks and for Flink, Spark and the like.

    key    {"id": 1}
    value  {"before": …, "after": …, "source": {…, "commit_ts": …}, "op": "c" | "u" | "d",
            "ts_ms": commit time, "transaction": {"id": start_ts, "total_order": n, …}}

A delete is followed by a message without a value, which lets a compacted topic forget the key. A
row stays in the partition of its key as JSON, whatever the encoding is.
Source: debezium.io documentation, MySQL connector: change events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from binlogd import __version__
from binlogd.drainer.kafka.message import KafkaMessage
from binlogd.drainer.kafka.row_events import ColumnWriters, RowEvent, RowReader
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.txn import Ddl, Dml
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import Value
from binlogd.tso import Tso, physical_ms

_OPS = {RowKind.INSERT: "c", RowKind.UPDATE: "u", RowKind.DELETE: "d"}
Document = dict[str, Any]


class EncodedTable(Protocol):
    """How the messages of one table become bytes. Raises CorruptRow for a row that cannot."""

    @property
    def routes(self) -> ColumnWriters[Any]:
        """Of the key as JSON."""

    @property
    def columns(self) -> ColumnWriters[Any]:
        """Of what stands in `before` and `after`."""

    def key(self, route: bytes, values: Mapping[int, Value]) -> bytes:
        """Of a row whose key as JSON is `route`."""

    def value(self, envelope: Document) -> bytes:
        """Of an envelope, which may be changed."""


class Encoding(Protocol):
    """How messages become bytes."""

    def of_table(self, table: TableAt) -> EncodedTable:
        """That of a table as it is at a moment."""

    def ddl(self, document: Document) -> bytes:
        """Of a schema change event."""


class Debezium:
    """A `Notation`; `name` is the logical name of the server in `source`."""

    def __init__(self, name: str, encoding: Encoding) -> None:
        self._name, self._encoding = name, encoding
        self._reader = RowReader()

    def rows(self, dml: Dml) -> Iterator[KafkaMessage]:
        """A message for each row, and one without a value after each delete."""
        orders: dict[str, int] = {}
        for total, event in enumerate(self._reader.events(dml), 1):
            name = event.table.label
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
            value = self._encoding.ddl(
                {
                    "source": self._source(ddl.database, ddl.table, ddl.commit_ts),
                    "ts_ms": physical_ms(ddl.commit_ts),
                    "databaseName": ddl.database,
                    "schemaName": None,
                    "ddl": statement,
                    "tableChanges": [],
                }
            )
            yield KafkaMessage(ddl.database, ddl.table, None, None, value, ddl.commit_ts, "ddl")

    def _messages(
        self, event: RowEvent, commit_ts: Tso, transaction: Document
    ) -> Iterator[KafkaMessage]:
        database, table = event.table.database, event.table.info.name
        encoded = self._encoding.of_table(event.table)
        columns = encoded.columns
        value = encoded.value(
            {
                "before": None if event.old is None else columns.values(event.old),
                "after": None if event.new is None else columns.values(event.new),
                "source": self._source(database, table, commit_ts),
                "op": _OPS[event.kind],
                "ts_ms": physical_ms(commit_ts),
                "transaction": transaction,
            }
        )
        route = encoded.routes.key(event.present)
        key = encoded.key(route, event.present) if route is not None else None
        route = route or f"{database}.{table}".encode()
        made = KafkaMessage(database, table, route, key, value, commit_ts, event.kind.name.lower())
        yield made
        if event.kind is RowKind.DELETE and key is not None:
            yield made._replace(value=None)

    def _source(self, database: str, table: str, commit_ts: Tso) -> Document:
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
