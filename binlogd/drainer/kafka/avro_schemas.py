"""The schemas of all tables, registered before the first message that has them.

Invariant. A message is encoded by a schema that the registry has given an id. Why it holds: the
schemas of a group of transactions are registered before the Kafka transaction begins that it goes
in, so that a registry that refuses or is away leaves nothing behind in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from binlogd.drainer.kafka.avro import AvroTable, twins
from binlogd.drainer.kafka.debezium import Document
from binlogd.drainer.kafka.schema_registry import NewSchema, SchemaRefused, SchemaRegistry
from binlogd.drainer.txn import Dml, Txn
from binlogd.errors import CorruptRow, RowMismatch
from binlogd.tidb.model import TableAt
from binlogd.tso import Tso

KEPT_MAX = 8192
"""Schemas and tables; when there are more, all are forgotten, and registered again."""


class AvroSchemas:
    """An `Encoding`; `topic_of` a database and a table is the topic, which names the subjects."""

    def __init__(self, registry: SchemaRegistry, topic_of: Callable[[str, str], str]) -> None:
        self._registry, self._topic_of = registry, topic_of
        self._tables: dict[tuple[int, int], AvroTable] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._owners: dict[str, str] = {}

    async def greet(self) -> None:
        """See SchemaRegistry."""
        await self._registry.greet()

    async def register(self, txns: Sequence[Txn]) -> None:
        """Before messages of these are made. Raises DownstreamUnavailable, SchemaRefused."""
        if max(len(self._tables), len(self._ids)) > KEPT_MAX:
            self._tables, self._ids, self._owners = {}, {}, {}
        made: dict[tuple[int, int], AvroTable] = {}
        wanted: dict[tuple[str, str], NewSchema] = {}
        for txn in txns:
            for table in [change.table for change in txn.changes] if isinstance(txn, Dml) else ():
                place = table.info.id, table.version
                known = made.get(place) or self._tables.get(place)
                if known is not None and known.table is table:
                    continue
                made[place] = self._made(table, txn.commit_ts)
                for each in made[place].messages:
                    if (each.subject, each.text) not in self._ids:
                        new = NewSchema(each.subject, each.text, table.label, txn.commit_ts)
                        wanted[each.subject, each.text] = new
        ids = await self._registry.ids_of(list(wanted.values())) if wanted else []
        self._ids.update(zip(wanted, ids, strict=True))
        for encoded in made.values():
            for each in encoded.messages:
                each.schema_id = self._ids[each.subject, each.text]
        self._tables |= made

    def of_table(self, table: TableAt) -> AvroTable:
        """See Encoding. Of a table that was registered."""
        return self._tables[table.info.id, table.version]

    def ddl(self, document: Document) -> bytes:
        """Not to be asked for: a topic has messages of one schema, those of rows."""
        raise AssertionError(f"a DDL is no message in Avro (settings/effects.py): {document}")

    def _made(self, table: TableAt, commit_ts: Tso) -> AvroTable:
        try:
            made = AvroTable(table, self._topic_of(table.database, table.info.name))
        except CorruptRow as error:
            raise RowMismatch(table.label, commit_ts, str(error)) from error
        for kind, name in (("the topic", made.topic), ("the schema", made.name)):
            owner = self._owners.setdefault(f"{kind} {name}", table.label)
            if owner != table.label:
                raise _collision(table, commit_ts, f"{kind} {name} is that of {owner} already")
        same = twins(table)
        if same:
            problem = f"its columns {' and '.join(same)} have one name in Avro"
            raise _collision(table, commit_ts, problem)
        return made


def _collision(table: TableAt, commit_ts: Tso, problem: str) -> SchemaRefused:
    return SchemaRefused(
        f"{table.label} cannot be written in Avro, at commit_ts {commit_ts}: {problem}",
        todo="rename one of them, upstream or (a table) by syncer.table-migrate-rule, or leave the"
        " table out (syncer.ignore-table)",
        skip_ts=commit_ts,
    )
