"""Says which rows may lack values for a column that an ALTER made (see carry)."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from binlogd.drainer.carry import InDoubt
from binlogd.drainer.txn import Ddl, TableChange

log = structlog.get_logger(__name__)

_EVENT = "values_of_a_coming_column_in_doubt"


def say_in_doubt(ddl: Ddl, doubt: InDoubt) -> None:
    """Rows may have had values for columns that this DDL only now makes here."""
    log.warning(
        _EVENT,
        database=ddl.database,
        table=ddl.table,
        columns=list(doubt.columns),
        after_ts=doubt.after_ts,
        up_to_ts=doubt.up_to_ts,
        what_to_do="copy these columns of rows changed in this time from the upstream",
    )


def say_left(changes: Sequence[TableChange]) -> None:
    """Nothing follows the ALTER, so nobody tells at which commit_ts they may be written."""
    for change in changes:
        log.warning(
            _EVENT,
            database=change.table.database,
            table=change.table.info.name,
            rows=len(change.mutation.updated),
            what_to_do="copy the columns that the last ALTER added from the upstream",
        )
