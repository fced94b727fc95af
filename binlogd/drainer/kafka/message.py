"""What the Kafka sink sends, whatever the notation of a message is.

A message goes to the partition that `route` is hashed to: rows of one key, or of one table without
a key, stay in order. `route` None means every partition: whoever reads one partition has to see a
DDL between the rows before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from binlogd.drainer.txn import Ddl, Dml
from binlogd.tso import NO_TS, Tso

FIRST_PARTITION = b""
"""The `route` of what belongs into partition 0, whatever else there is."""


class KafkaMessage(NamedTuple):
    """One record for Kafka; `database` and `table` choose the topic. `kind` is what happened to a
    row (insert, update, delete), `ddl`, or `transaction` for all of one."""

    database: str
    table: str
    route: bytes | None
    key: bytes | None
    value: bytes | None
    commit_ts: Tso = NO_TS
    kind: str = ""

    def headers(self) -> list[tuple[str, bytes]]:
        """What a consumer can choose by without reading the value, as text; none without a kind."""
        if not self.kind:
            return []
        return [
            ("commit_ts", b"%d" % self.commit_ts),
            ("kind", self.kind.encode()),
            ("schema", self.database.encode("utf-8", "surrogateescape")),
            ("table", self.table.encode("utf-8", "surrogateescape")),
        ]


class Notation(Protocol):
    """How changes are written down. Raises CorruptRow for a row that cannot be."""

    def rows(self, dml: Dml) -> Iterator[KafkaMessage]:
        """The messages of a transaction, in the order of execution."""

    def ddl(self, ddl: Ddl) -> Iterator[KafkaMessage]:
        """The messages of a DDL that is not skipped."""
