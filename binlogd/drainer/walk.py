"""The way of a binlog to what a sink is given: the schema moves, early values are carried, what is
in doubt is said. One for each life: whoever has binlogs in commit_ts order, from the Pumps or out
of a relay log, walks it.
"""

from __future__ import annotations

from binlogd.drainer.doubt import say_in_doubt, say_late, say_left
from binlogd.drainer.early_columns import EarlyColumns
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Decoded, Txn
from binlogd.errors import BinlogdError
from binlogd.telemetry.faults import unforeseen
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso


class Walk:
    """`after`: what is above it comes here. Doubts up to `said_ts` were said in a former life."""

    def __init__(
        self, schema: SchemaTracker, translator: Translator, after: Tso, *, said_ts: Tso = NO_TS
    ) -> None:
        self._schema, self._translator, self._said_ts = schema, translator, said_ts
        self.early = EarlyColumns(schema, translator.router, after)
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
        if self._schema.moved.pasts and (late := self._schema.moved.take_doubts()) and is_new:
            self.values_in_doubt += len(late)
            say_late(txn.commit_ts, late)
        return txn

    def end(self) -> None:
        """At an end right behind an ALTER nothing tells any more what may be written after it."""
        left = self.early.left()
        self.values_in_doubt += len(left)
        say_left(left)
