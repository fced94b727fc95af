"""The original's messages: one for each transaction, in the one partition of one topic.

A message is a secondary `Binlog` in protobuf, as the Go Drainer sends it, without a key; its
readers (the arbiter, consumers made with tidb-tools) read ours.
Source: tidb-binlog drainer/sync/kafka.go, drainer/translator/kafka.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage
from binlogd.drainer.messages.secondary_write import SecondaryEncoder, ddl_message, dml_message
from binlogd.drainer.txn import Ddl, Dml
from binlogd.tidb.per_table import PerTable


class OriginalMessages:
    """A `Notation`."""

    def __init__(self) -> None:
        self._encoders = PerTable(SecondaryEncoder)

    def rows(self, dml: Dml) -> Iterator[KafkaMessage]:
        """One message."""
        tables = []
        for change in dml.changes:
            encoder = self._encoders.of(change.table)
            tables.append(encoder.table(encoder.mutations(change.mutation)))
        first, value = dml.changes[0].table, dml_message(dml.commit_ts, tables)
        at = first.database, first.info.name, FIRST_PARTITION
        yield KafkaMessage(*at, None, value, dml.commit_ts, "transaction")

    def ddl(self, ddl: Ddl) -> Iterator[KafkaMessage]:
        """One message for each statement."""
        for statement in ddl.statements:
            query = statement.encode("utf-8", "surrogateescape")
            value = ddl_message(ddl.commit_ts, ddl.database, ddl.table, query)
            at = ddl.database, ddl.table, FIRST_PARTITION
            yield KafkaMessage(*at, None, value, ddl.commit_ts, "ddl")
