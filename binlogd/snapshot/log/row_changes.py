"""Which keys the rows of one table changed, for many rows at once.

Of tables whose handle is a number. Every answer is that of `rowkey`, which reads one row at a time
and gets, on the slow path, rows in a form that TiDB does not write, or damaged ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.datums import (
    Columns,
    Longs,
    Mask,
    RowSpans,
    columns,
    integers,
    offsets,
    stretches,
)
from binlogd.snapshot.log.rowkey import (
    SEQ_STEP,
    Handle,
    both_images,
    deleted,
    inserted,
    last_image,
    updated,
)
from binlogd.tidb.datum import Flag, as_signed
from binlogd.tidb.varint import varint
from binlogd.wire.in_order import DELETE, INSERT, UPDATE

_VARINT = Flag.VARINT.value
Numbers = npt.NDArray[np.uint64]


class TableRows(NamedTuple):
    """The rows of one table in some transactions; `of` is the number of each kind's transaction."""

    inserts: RowSpans
    updates: RowSpans
    deletes: RowSpans
    sequence: npt.NDArray[np.uint8]
    """The kinds of rows in the order of execution, transaction after transaction."""
    of: Longs
    commit_ts: Longs
    schema_version: Longs


class Changed(NamedTuple):
    """Changes of one table, in any order. Of `kinds`, DELETE is of rows that are no more under
    their key; these are empty, or as they were if that was asked for."""

    keys: Numbers
    commit_ts: Longs
    seq: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    schema_version: Longs
    rows: pa.Array


def changed(handle: Handle, table: TableRows, *, keeps_gone: bool = False) -> Changed:
    """What some transactions changed in a table with a handle that is a number.

    Raises CorruptRow, of any of them.
    """
    news = _updated(handle, table.updates)
    gone, deleted_rows = _deleted(handle, table.deletes, keeps_rows=keeps_gone)
    kinds, of = table.sequence, table.of
    is_update = kinds == UPDATE
    is_move = np.zeros(len(kinds), np.int64)
    is_move[is_update] = news.keys != news.old_keys
    begins = offsets(np.bincount(of, minlength=len(table.commit_ts)))[:-1]
    seq = SEQ_STEP * (np.arange(len(kinds)) - begins[of]) + is_move

    left = np.flatnonzero(is_move)
    places = [*(np.flatnonzero(kinds == each) for each in (INSERT, UPDATE, DELETE)), left]
    of_change = np.concatenate(places)
    sizes = [len(each) for each in places]
    seqs = seq[of_change]
    seqs[len(seqs) - len(left) :] -= 1
    inserts = table.inserts
    inserted_rows = stretches(inserts, inserts.begins, inserts.ends)
    moved = np.flatnonzero(is_move[is_update]).tolist() if keeps_gone else ()
    left_rows = (
        pa.array([both_images(handle, table.updates[each]).old for each in moved], pa.binary())
        if keeps_gone
        else _nothing(len(left))
    )
    return Changed(
        np.concatenate(
            [_inserted(handle, inserts), news.keys, gone, news.old_keys[is_move[is_update] != 0]]
        ),
        table.commit_ts[of[of_change]],
        seqs.astype(np.int32),
        np.repeat(np.array([INSERT, UPDATE, DELETE, DELETE], np.uint8), sizes),
        table.schema_version[of[of_change]],
        pa.concat_arrays([inserted_rows, news.rows, deleted_rows, left_rows]),
    )


def _nothing(size: int) -> pa.Array:
    return pa.array([b""] * size, pa.binary())


def _inserted(handle: Handle, many: RowSpans) -> Numbers:
    keys, ends = integers(many.data, many.begins)
    for slow in np.flatnonzero((ends < 0) | (ends > many.ends)).tolist():
        keys[slow] = int.from_bytes(inserted(handle, many[slow]).key, "big")
    return keys


def _deleted(handle: Handle, many: RowSpans, *, keeps_rows: bool) -> tuple[Numbers, pa.Array]:
    found = columns(many, many.begins)
    keys, is_plain = _keys(many, handle, found)
    is_slow = found.is_slow | ~is_plain
    for slow in np.flatnonzero(is_slow).tolist():
        keys[slow] = int.from_bytes(deleted(handle, many[slow]), "big")
    if not keeps_rows or not len(many):
        return keys, _nothing(len(many))
    if is_slow.any():
        rows = [last_image(handle, many[each]).row for each in range(len(many))]
        return keys, pa.array(rows, pa.binary())
    at, here = np.argmax(found.ids == handle.column_ids[0], axis=0), np.arange(len(many))
    handles = _handles(many, found.begins[at, here], found.ends[at, here], keys)
    whole = stretches(many, many.begins, many.ends)
    return keys, pc.binary_join_element_wise(handles, whole, b"")


def _handles(many: RowSpans, begins: Longs, ends: Longs, keys: Numbers) -> pa.Array:
    """The datums of handles as an inserted row has them in front."""
    if (many.data[begins] == _VARINT).all():
        return stretches(many, begins, ends)
    return pa.array((b"\x08" + varint(as_signed(key)) for key in keys.tolist()), pa.binary())


class _News(NamedTuple):
    """Updates: the keys that rows have, the rows, and the keys that they had."""

    keys: Numbers
    rows: pa.Array
    old_keys: Numbers


def _updated(handle: Handle, many: RowSpans) -> _News:
    found = columns(many, many.begins)
    keys, old_keys = np.zeros(len(many), np.uint64), np.zeros(len(many), np.uint64)
    is_slow = found.is_slow | (found.count % 2 == 1) | (found.count == 0)
    parts: list[pa.Array] = []
    places: list[Longs] = []
    for count in np.unique(found.count[~is_slow]).tolist():
        of_count = np.flatnonzero(~is_slow & (found.count == count))
        plain = _plain_updates(handle, many, found, of_count)
        is_slow[of_count[~plain.is_plain]] = True
        numbers = of_count[plain.is_plain]
        keys[numbers], old_keys[numbers] = plain.keys, plain.old_keys
        parts.append(plain.rows)
        places.append(numbers)
    rows = []
    for slow in np.flatnonzero(is_slow).tolist():
        gone, put = updated(handle, many[slow])
        keys[slow] = int.from_bytes(put.key, "big")
        old_keys[slow] = int.from_bytes(gone or put.key, "big")
        rows.append(put.row)
    if len(parts) == 1 and not rows:
        return _News(keys, parts[0], old_keys)
    parts.append(pa.array(rows, pa.binary()))
    places.append(np.flatnonzero(is_slow))
    order = np.empty(len(many), np.int64)
    order[np.concatenate(places)] = np.arange(len(many))
    return _News(keys, pa.concat_arrays(parts).take(pa.array(order)), old_keys)


class _Plain(NamedTuple):
    """Which updates are plain; keys and rows are of those only."""

    is_plain: Mask
    keys: Numbers
    old_keys: Numbers
    rows: pa.Array


def _plain_updates(handle: Handle, many: RowSpans, found: Columns, numbers: Longs) -> _Plain:
    """Those of some updates that have the same columns twice; they have as many pairs each."""
    count = found.count[numbers[0]]
    old, new = _pairs(found, numbers, 0, count // 2), _pairs(found, numbers, count // 2, count)
    keys, is_number = _keys(many, handle, new)
    old_keys, was_number = _keys(many, handle, old)
    is_plain: Mask = is_number & was_number & (old.ids == new.ids).all(axis=0) & _is_once(old.ids)
    at = np.argmax(new.ids == handle.column_ids[0], axis=0)
    here = np.arange(len(at))
    begins, ends = new.begins[at, here][is_plain], new.ends[at, here][is_plain]
    keys, old_keys = keys[is_plain], old_keys[is_plain]
    handles = _handles(many, begins, ends, keys)
    contents = stretches(many, old.ends[-1][is_plain], many.ends[numbers][is_plain])
    return _Plain(is_plain, keys, old_keys, pc.binary_join_element_wise(handles, contents, b""))


def _pairs(found: Columns, rows: Longs, begin: int, end: int) -> Columns:
    """Some rows, with their pairs from one number to another."""
    ids, begins, ends = (each[begin:end, rows] for each in (found.ids, found.begins, found.ends))
    return Columns(ids, begins, ends, found.count[rows], found.is_slow[rows])


def _keys(many: RowSpans, handle: Handle, found: Columns) -> tuple[Numbers, Mask]:
    """The handles of rows that have one column of it, which is a number; and which these are."""
    is_handle = (found.ids == handle.column_ids[0]) & (found.begins >= 0)
    if not len(is_handle):
        return np.zeros(is_handle.shape[1], np.uint64), np.zeros(is_handle.shape[1], bool)
    at = np.argmax(is_handle, axis=0)
    begins = found.begins[at, np.arange(len(at))]
    keys, ends = integers(many.data, np.maximum(begins, 0))
    return keys, (is_handle.sum(axis=0) == 1) & (ends >= 0)


def _is_once(ids: Longs) -> Mask:
    """Whether no column of a row comes twice."""
    if (ids == ids[:, :1]).all():
        return np.full(ids.shape[1], len(np.unique(ids[:, 0])) == len(ids))
    ascending = np.sort(ids, axis=0)
    found: Mask = (ascending[1:] != ascending[:-1]).all(axis=0)
    return found
