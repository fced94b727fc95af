"""What tables hold at a moment, told by changes in any order: Arrow in, Arrow out.

Works on raw rows: which change of a key wins needs its key and its timestamps only, so rows are
decoded after this, and only those that won.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa

from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.log.vectors import Longs, is_first, longs, ranks


def winners(
    pieces: Iterable[pa.RecordBatch], deletes_of: Collection[int]
) -> Iterator[pa.RecordBatch]:
    """The last change of each key, unless it is a delete; of some tables, those as well."""
    for changes in pieces:
        found = newest(changes)
        is_wanted = found.column("op").to_numpy() != Op.DELETE
        if deletes_of:
            is_wanted |= np.isin(longs(found, "table_id"), list(deletes_of))
        yield found.filter(pa.array(is_wanted))


def newest(changes: pa.RecordBatch) -> pa.RecordBatch:
    """The last change of each key, by table and key.

    Of `events.CHANGES`, `before` is what the key held before the first of them, `before_version`
    that one's schema version and `first_op` its operation.
    """
    first, last = _ends(changes)
    found = changes.take(pa.array(last))
    if "before" not in changes.schema.names:
        return found
    opening = changes.take(pa.array(first))
    names = [*found.schema.names, "before_version", "first_op"]
    columns = [opening.column(n) if n == "before" else found.column(n) for n in found.schema.names]
    columns += [opening.column("schema_version"), opening.column("op")]
    return pa.RecordBatch.from_arrays(columns, names=names)


def folded(changes: pa.RecordBatch) -> pa.RecordBatch:
    """What `newest` of more changes looks at of these: of each key the last one, and the first
    where what was before it counts."""
    first, last = _ends(changes)
    has_before = "before" in changes.schema.names
    places = np.union1d(first, last) if has_before else last
    return changes.take(pa.array(places))


def _ends(changes: pa.RecordBatch) -> tuple[Longs, Longs]:
    """Where the first and the last change of each key stand, by table and key."""
    table_id, commit_ts = longs(changes, "table_id"), longs(changes, "commit_ts")
    rank = ranks(changes.column("key"))
    order = np.lexsort((changes.column("seq").to_numpy(), commit_ts, rank, table_id))
    first = np.flatnonzero(is_first(table_id[order], rank[order]))
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return order[first], order[last]


def net(changes: pa.RecordBatch) -> pa.RecordBatch:
    """What each key came to, by table and time: its row at the end, and the one it had before.

    A row that came and went is no change; one that went and came back is an UPDATE, like one that
    was updated. Of `events.CHANGES`.
    """
    found = newest(changes)
    op, first_op = (found.column(name).to_numpy() for name in ("op", "first_op"))
    is_new, is_gone = first_op == Op.PUT, op == Op.DELETE
    is_kept_as = is_new | (op == Op.UNKNOWN_TABLE)
    told = np.where(
        is_gone, Op.DELETE.value, np.where(is_kept_as, first_op, Op.UPDATE.value)
    ).astype(np.int8)
    place = found.schema.get_field_index("op")
    found = found.set_column(place, "op", pa.array(told))
    return _in_time(found.filter(pa.array(~(is_new & is_gone))))


def all_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every change, by table and time. Of `events.CHANGES`, all of which are in memory."""
    found = list(batches)
    if found:
        changes = _in_time(pa.concat_batches(found))
        version = changes.column("schema_version")
        yield changes.append_column("before_version", version)


def _in_time(changes: pa.RecordBatch) -> pa.RecordBatch:
    """By table, commit_ts and place in the transaction."""
    columns = (changes.column(name).to_numpy() for name in ("seq", "commit_ts", "table_id"))
    return changes.take(pa.array(np.lexsort(tuple(columns))))
