"""Which tables certainly never had a name: what has rows of these alone, no read of it needs.

Invariant. A table that has the name at any moment of the history is not among them.
Why it holds. It gets its name by a job that has it, in what the job left or in its text, and that
names the table's id. An id goes on in another one (TRUNCATE, EXCHANGE PARTITION) by a job that has
both; so ids that a job has together are told apart by nobody here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from binlogd.tidb.model import Job
from binlogd.tidb.schema import recovered_tables


def ids_elsewhere(jobs: Iterable[Job], table: str) -> frozenset[int]:
    """Ids of tables and partitions that the history knows, and that never had to do with a table of
    this name, of whichever database."""
    word = re.compile(rf"(?<!\w){re.escape(table)}(?!\w)", re.IGNORECASE)
    together: dict[int, set[int]] = {}
    named: set[int] = set()
    for job in jobs:
        infos = [each for each in (job.table, *job.tables) if each is not None]
        infos += [each.table for each in recovered_tables(job)]
        ids = {job.table_id, *(each.id for each in infos)} - {0}
        ids.update(part for each in infos for part in each.partition_ids)
        for each in ids:
            together.setdefault(each, set()).update(ids)
        names = [job.table_name, *(each.name for each in infos)]
        if word.search(job.query) or table.lower() in (each.lower() for each in names):
            named |= ids
    reached: set[int] = set()
    while named:  # ends when every id that hangs together with them was reached
        reached |= named
        named = set().union(*(together[each] for each in named)) - reached
    return frozenset(together.keys() - reached)
