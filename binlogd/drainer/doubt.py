"""Says which rows are in doubt: values of a column that an ALTER made (see `early_columns`), rows
that a DDL of partitions may have taken along (see `tidb.turns`), values that a DDL cut downstream.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from binlogd.drainer.early_columns import InDoubt, RowsInDoubt
from binlogd.drainer.txn import Ddl, TableChange
from binlogd.tidb.moved_rows import Doubt
from binlogd.tidb.turns import COMPARE, ROWS_IN_DOUBT, UNKNOWN
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

_EVENT = "values_of_a_coming_column_in_doubt"


def say_in_doubt(ddl: Ddl, doubt: InDoubt | RowsInDoubt) -> None:
    """Rows may have had values for columns that this DDL only now makes here, or may have gone with
    a partition."""
    if isinstance(doubt, RowsInDoubt):
        log.warning(
            ROWS_IN_DOUBT,
            database=ddl.database,
            table=ddl.table,
            ddl=ddl.statement,
            rows=doubt.rows,
            after_ts=doubt.after_ts,
            up_to_ts=doubt.up_to_ts,
            cause=doubt.reason or UNKNOWN,
            what_to_do=COMPARE,
        )
        return
    log.warning(
        _EVENT,
        database=ddl.database,
        table=ddl.table,
        columns=list(doubt.columns),
        after_ts=doubt.after_ts,
        up_to_ts=doubt.up_to_ts,
        what_to_do="copy these columns of rows changed in this time from the upstream",
    )


def say_cut(ddl: Ddl, statement: str, warnings: Sequence[str]) -> None:
    """The downstream did a DDL, and could not keep every value: its rows were other ones. Without
    `warnings` nobody read what it said."""
    log.warning(
        "values_cut_by_a_ddl",
        commit_ts=ddl.commit_ts,
        database=ddl.database,
        table=ddl.table,
        ddl=statement,
        warnings=list(warnings),
        cause="a value downstream did not fit, and more did so than upstream"
        if warnings
        else "the connection or the process ended before it had told whether it cut values",
        what_to_do="compare the table with the upstream, and mend its rows",
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


def say_late(commit_ts: Tso, doubts: Sequence[Doubt]) -> None:
    """Rows came behind a DDL of partitions that they may not have seen."""
    for doubt in doubts:
        log.warning(
            ROWS_IN_DOUBT,
            table_id=doubt.table_id,
            rows=doubt.rows,
            commit_ts=commit_ts,
            cause=doubt.reason or UNKNOWN,
            what_to_do=COMPARE,
        )
