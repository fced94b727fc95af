"""A joined binlog, and the schema of its moment, to what a sink is given.

Called for every binlog in commit_ts order, also those that are passed over: a DDL moves the schema
whatever becomes of its statement. Rows stay bytes; each change is put beside the table that
explains it.

Source: tidb-binlog drainer/syncer.go (the loop, in the same order of decisions).
"""

from __future__ import annotations

from collections.abc import Iterable

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.replicated import DdlReplay
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.doubt import say_in_doubt, say_late, say_left
from binlogd.drainer.early_columns import EarlyColumns
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.late import followed, without_repeats
from binlogd.drainer.txn import BY_DECISION, Ddl, Decoded, Dml, Skip, TableChange, Txn
from binlogd.errors import BinlogdError, CorruptRow, MalformedBinlog, RowMismatch, UnknownTable
from binlogd.telemetry.faults import unforeseen
from binlogd.tidb.known_tables import Named, is_reserved
from binlogd.tidb.model import TableAt
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import Mutation, mutations_of

_TABLES_KEPT_MAX = 20_000


class Translator:
    """One pass over the binlogs of an upstream; owns how the schema moves."""

    def __init__(
        self,
        schema: SchemaTracker,
        table_filter: TableFilter,
        dialect: Dialect,
        trash: Trash | None = None,
    ) -> None:
        self.schema, self._filter = schema, table_filter
        self.router = table_filter.routes
        """How tables are called downstream."""
        self._replay = DdlReplay(dialect, schema, table_filter, trash)
        self._tables: dict[tuple[int, int], TableAt] = {}
        """Answers of the schema about tables that are replicated, by id and schema version."""
        self._as_of = schema.changes

    def translate(self, decoded: Decoded) -> Txn:
        """Only the job of an ignored DDL may be missing. Raises UnknownTable, RowMismatch,
        MissingDdlJob or UnsupportedDdl: all name the way past."""
        binlog = decoded.binlog
        if decoded.ddl is not None:
            return self._replay.translated(binlog, decoded.ddl, decoded.job)
        if self._filter.ignores_transaction(binlog.commit_ts):
            return Skip(binlog.commit_ts, BY_DECISION)
        try:
            return self._dml(binlog)
        except MalformedBinlog as error:
            raise unreadable(binlog, error) from error

    def _dml(self, binlog: CommittedBinlog) -> Txn:
        commit_ts = binlog.commit_ts
        schema_version, mutations = mutations_of(binlog.payload)
        if self._as_of != self.schema.changes:
            self._tables.clear()
            self._as_of = self.schema.changes
        loop = self._filter.loop
        if loop is not None and self._came_back(loop, mutations, commit_ts, schema_version):
            return Skip(commit_ts)
        if self.schema.moved.pasts:
            try:
                mutations = followed(self.schema.moved, mutations, schema_version, commit_ts)
            except CorruptRow as error:
                raise RowMismatch("a partitioned table", commit_ts, str(error)) from error
        changes = self._changes(mutations, schema_version, commit_ts)
        if self._filter.events.has_rules:
            changes = self._kept(changes)
        if not changes:
            return Skip(commit_ts)
        if self.router.has_rules:
            changes = [TableChange(self.router.table(c.table), c.mutation) for c in changes]
        return Dml(binlog.start_ts, commit_ts, schema_version, tuple(changes))

    def _changes(
        self, mutations: Iterable[Mutation], schema_version: int, commit_ts: Tso
    ) -> list[TableChange]:
        """Of tables that are replicated. Raises UnknownTable."""
        changes: list[TableChange] = []
        for mutation in mutations:
            table = self._tables.get((mutation.table_id, schema_version))
            if table is None:
                table = self._table_of(mutation.table_id, commit_ts, schema_version)
            if table is not None and mutation.sequence:
                if table.info.partition_ids and table.info.has_hidden_id:
                    mutation = without_repeats(mutation)
                changes.append(TableChange(table, mutation))
        return changes

    def _came_back(
        self, loop: LoopControl, mutations: Iterable[Mutation], commit_ts: Tso, version: int
    ) -> bool:
        """Whether the transaction was written by the Drainer of the opposite direction."""
        for mutation in mutations:
            table = self.schema.table_at(mutation.table_id, version)
            if table is not None and loop.is_mark(table):
                return loop.has_own(table, mutation, commit_ts)
        return False

    def _table_of(self, table_id: int, commit_ts: Tso, schema_version: int) -> TableAt | None:
        """None for a table that is not replicated. Raises UnknownTable."""
        table = self.schema.table_at(table_id, schema_version)
        if table is None:
            if self.schema.is_truncated(table_id) or is_reserved(table_id):
                return None
            raise UnknownTable(table_id, commit_ts, schema_version)
        if not self._filter.replicates(table.database, table.info.name):
            return None
        if self.router.has_rules:
            self.router.reserve(Named(table.database, table.info.name), self._replay.exists)
        if len(self._tables) >= _TABLES_KEPT_MAX:
            self._tables.clear()
        self._tables[table_id, schema_version] = table
        return table

    def _kept(self, changes: list[TableChange]) -> list[TableChange]:
        """Without the kinds of rows that the event filter leaves out."""
        kept = self._filter.events.kept
        found = (
            TableChange(each.table, kept(each.table.database, each.table.info.name, each.mutation))
            for each in changes
        )
        return [each for each in found if each.mutation.sequence]


def unreadable(binlog: CommittedBinlog, error: MalformedBinlog) -> RowMismatch:
    """What a binlog that does not decode stops the replication with."""
    return RowMismatch("an unreadable binlog", binlog.commit_ts, str(error))


class Walk:
    """The way of a binlog to what a sink is given: the schema moves, early values are carried, what
    is in doubt is said. One for each life: whoever has binlogs in commit_ts order, from the Pumps
    or out of a relay log, walks it.

    `after`: what is above it comes here. Doubts up to `said_ts` were said in a former life.
    """

    def __init__(self, translator: Translator, after: Tso, *, said_ts: Tso = NO_TS) -> None:
        self._translator, self._said_ts = translator, said_ts
        self.schema = translator.schema
        self.early = EarlyColumns(self.schema, translator.router, after)
        self.values_in_doubt = 0

    def due(self, before_ts: Tso) -> list[Txn]:
        """What must be written before a transaction with this commit_ts."""
        due = self.early.due(before_ts)
        return [due] if due is not None else []

    def take(self, decoded: Decoded) -> Txn:
        """The next transaction. Raises as `Translator.translate`; Unforeseen for a fault of it."""
        try:
            txn = self._translator.translate(decoded)
        except BinlogdError:
            raise
        except Exception as error:
            raise unforeseen("translation", error, decoded.binlog.commit_ts) from error
        if self.early.waiting:
            txn = self.early.joined(txn)
        doubt = self.early.saw(txn)
        is_new = txn.commit_ts > self._said_ts
        if is_new and doubt is not None and isinstance(txn, Ddl):
            self.values_in_doubt += 1
            say_in_doubt(txn, doubt)
        moved = self.schema.moved
        if moved.pasts and (late := moved.take_doubts()) and is_new:
            self.values_in_doubt += len(late)
            say_late(txn.commit_ts, late)
        return txn

    def end(self) -> None:
        """At an end right behind an ALTER nothing tells any more what may be written after it."""
        left = self.early.left()
        self.values_in_doubt += len(left)
        say_left(left)
