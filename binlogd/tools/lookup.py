"""One transaction by its commit_ts or its start_ts, and what became of one without an outcome."""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.tidb.model import Job
from binlogd.tools.reading import Source, SourceKind, transactions
from binlogd.tools.records import RecordLine, records
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import Tso


def find_transaction(
    sources: Sequence[Source], ts: Tso, jobs: Sequence[Job], meter: Meter
) -> Transaction | None:
    """The transaction whose commit_ts or start_ts it is. Raises Corrupt, OSError.

    A commit lies behind its start, so nothing before `ts` is read.
    """
    for transaction in transactions(sources, CommitWindow(start=ts), jobs=jobs, meter=meter):
        if ts in (transaction.commit_ts, transaction.start_ts):
            return transaction
    return None


def records_of_transaction(sources: Sequence[Source], ts: Tso, meter: Meter) -> list[RecordLine]:
    """The records that carry a timestamp: of a transaction without a commit, its prewrite and
    rollback. Only a Pump's log has such."""
    return [
        line
        for source in sources
        if source.kind is SourceKind.PUMP
        for line in records(source, meter)
        if ts in (line.start_ts, line.commit_ts)
    ]
