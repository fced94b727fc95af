"""Loop control: two clusters that replicate to each other, and what must not go round.

Whoever writes downstream marks each transaction by a row of `retl._drainer_repl_mark`; the Drainer
of the opposite direction, which has the same channel, finds that row in the binlog and leaves the
whole transaction out. What another channel marked comes from a third cluster and is replicated.

A DDL makes no row, so the original asks for `sync-ddl = false` on one side. Here it carries the
channel in a comment, which stays in the text of TiDB's job, and is left out by that.

Source: tidb-binlog drainer/loopbacksync, pkg/loader/load.go, drainer/syncer.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from binlogd.drainer import sql
from binlogd.errors import CorruptRow, RowMismatch
from binlogd.tidb.columns import Value
from binlogd.tidb.model import Job, TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.tso import Tso
from binlogd.wire.in_order import DELETE, INSERT, changes_of
from binlogd.wire.mutation import Mutation

MARK_DATABASE, MARK_TABLE = "retl", "_drainer_repl_mark"
_NAME = sql.qualified(MARK_DATABASE, MARK_TABLE)


class LoopControl:
    """One channel: the same number on both sides of a pair."""

    def __init__(self, channel_id: int) -> None:
        self.channel_id = channel_id
        self._comment = f"/* binlogd channel {channel_id} */"

    # --- what comes in -------------------------------------------------------------------------

    def is_mark(self, table: TableAt) -> bool:
        """Whether this is the table of the marks."""
        return (table.database.lower(), table.info.name.lower()) == (MARK_DATABASE, MARK_TABLE)

    def has_own(self, table: TableAt, mutation: Mutation, commit_ts: Tso) -> bool:
        """Whether a row of the mark table is of this channel. Raises RowMismatch."""
        try:
            return any(value == self.channel_id for value in _channels(table, mutation))
        except CorruptRow as error:
            raise RowMismatch(table.label, commit_ts, str(error)) from error

    def is_own_ddl(self, job: Job, query: str) -> bool:
        """Whether a DDL came through this channel; `query` is the text of the binlog."""
        return self._has_mark(job.query) or self._has_mark(query)

    def _has_mark(self, statement: str) -> bool:
        """Only where `marked` puts it: in a name or a string it is somebody's text."""
        return statement.lstrip().partition(" ")[2].startswith(self._comment)

    # --- what goes out -------------------------------------------------------------------------

    def create(self) -> tuple[bytes, ...]:
        """Makes the table unless it is there, as the original does."""
        return (
            b"CREATE DATABASE IF NOT EXISTS " + sql.ident(MARK_DATABASE),
            b"CREATE TABLE IF NOT EXISTS "
            + _NAME
            + b" (id bigint not null, channel_id bigint not null DEFAULT 0,"
            b" val bigint DEFAULT 0, channel_info varchar(64), PRIMARY KEY (id, channel_id))",
        )

    def mark(self, lane: int) -> bytes:
        """Belongs into each transaction. Connections have a row each, so none waits."""
        return b"INSERT INTO %b VALUES (%d, %d, 1, '') ON DUPLICATE KEY UPDATE val = val + 1" % (
            _NAME,
            lane,
            self.channel_id,
        )

    def marked(self, statement: str) -> str:
        """A DDL with the channel in a comment behind its first word."""
        word, space, rest = statement.partition(" ")
        return f"{word} {self._comment}{space}{rest}"


def _channels(table: TableAt, mutation: Mutation) -> Iterator[Value]:
    """The channel of each row, before and after. Raises CorruptRow."""
    number = {each.name.lower(): each.id for each in table.info.columns}.get("channel_id")
    if number is None:
        raise CorruptRow("the mark table has no column channel_id")
    for kind, old, new in changes_of(mutation, RowDecoder(table)):
        for values in {INSERT: (new,), DELETE: (old,)}.get(kind, (old, new)):
            if not isinstance(values.get(number), int):
                raise CorruptRow("channel_id is not a number")
            yield values[number]
