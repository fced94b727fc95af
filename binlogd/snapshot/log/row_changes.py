"""Which keys the rows of one table changed, for many rows at once.

Of tables whose handle is a number. Every answer is that of `rowkey`, which reads one row at a time
and gets those that are odd: rows in a form that TiDB does not write, or damaged ones.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from binlogd.snapshot.log.datums import Columns, Rows, columns, integers
from binlogd.snapshot.log.rowkey import Handle, deleted, inserted, updated
from binlogd.snapshot.log.vectors import Longs, Mask, offsets
from binlogd.tidb.datum import Flag, as_signed, varint
from binlogd.wire.mutation import Mutation

_INSERT, _UPDATE, _DELETE = 0, 1, 4
_VARINT = Flag.VARINT.value
Numbers = npt.NDArray[np.uint64]


class Run(NamedTuple):
    """The rows of a table in one transaction."""

    change: Mutation
    commit_ts: int
    schema_version: int


class Changed(NamedTuple):
    """Changes of one table, in any order; a row that `is_gone` is empty."""

    keys: Numbers
    commit_ts: Longs
    seq: npt.NDArray[np.int32]
    is_gone: Mask
    schema_version: Longs
    rows: list[bytes]


def changed(handle: Handle, runs: list[Run]) -> Changed:
    """What some transactions changed in a table with a handle that is a number.

    Raises CorruptRow, of any of them.
    """
    inserts = [*chain.from_iterable(run.change.inserted for run in runs)]
    news = _updated(handle, [*chain.from_iterable(run.change.updated for run in runs)])
    gone = _deleted(handle, [*chain.from_iterable(run.change.deleted for run in runs)])

    sequences = [run.change.sequence for run in runs]
    kinds = np.frombuffer(b"".join(sequences), np.uint8)
    begins = offsets(np.fromiter(map(len, sequences), np.int64, len(sequences)))
    of_run = np.repeat(np.arange(len(runs)), np.diff(begins))
    is_update = kinds == _UPDATE
    is_move = np.zeros(len(kinds), np.int64)
    is_move[is_update] = news.keys != news.old_keys
    moves = offsets(is_move)
    # an update that leaves its key is two changes, and what follows it moves
    seq = np.arange(len(kinds)) + moves[1:]
    seq -= (begins[:-1] + moves[begins[:-1]])[of_run]

    left = np.flatnonzero(is_move)
    places = [*(np.flatnonzero(kinds == each) for each in (_INSERT, _UPDATE, _DELETE)), left]
    of_change = np.concatenate(places)
    counts = [len(each) for each in places]
    seqs = seq[of_change]
    seqs[len(seqs) - len(left) :] -= 1
    is_gone = np.repeat(np.array([False, False, True, True]), counts)
    old_keys = news.old_keys[is_move[is_update] != 0]
    commit_ts = np.array([run.commit_ts for run in runs], np.int64)
    versions = np.array([run.schema_version for run in runs], np.int64)
    return Changed(
        np.concatenate([_inserted(handle, inserts), news.keys, gone, old_keys]),
        commit_ts[of_run][of_change],
        seqs.astype(np.int32),
        is_gone,
        versions[of_run][of_change],
        [*inserts, *news.rows, *([b""] * (counts[2] + counts[3]))],
    )


def _inserted(handle: Handle, rows: list[bytes]) -> Numbers:
    many = Rows.joined(rows)
    keys, ends = integers(many.data, many.begins)
    for odd in np.flatnonzero((ends < 0) | (ends > many.ends)).tolist():
        keys[odd] = int.from_bytes(inserted(handle, rows[odd]).key, "big")
    return keys


def _deleted(handle: Handle, rows: list[bytes]) -> Numbers:
    many = Rows.joined(rows)
    found = columns(many, many.begins)
    keys, is_plain = _keys(many, handle, found)
    for odd in np.flatnonzero(found.is_odd | ~is_plain).tolist():
        keys[odd] = int.from_bytes(deleted(handle, rows[odd]).key, "big")
    return keys


class _News(NamedTuple):
    """Updates: the keys that rows have, the rows, and the keys that they had."""

    keys: Numbers
    rows: list[bytes]
    old_keys: Numbers


def _updated(handle: Handle, rows: list[bytes]) -> _News:
    many = Rows.joined(rows)
    found = columns(many, many.begins)
    news = _News(np.zeros(len(rows), np.uint64), [b""] * len(rows), np.zeros(len(rows), np.uint64))
    is_odd = found.is_odd | (found.count % 2 == 1) | (found.count == 0)
    for count in np.unique(found.count[~is_odd]).tolist():
        of_count = np.flatnonzero(~is_odd & (found.count == count))
        alike = _first_pairs(found, of_count, count)
        is_odd[of_count] = ~_take_updated(handle, many, alike, of_count, news)
    for odd in np.flatnonzero(is_odd).tolist():
        gone, put = updated(handle, rows[odd])
        news.keys[odd] = int.from_bytes(put.key, "big")
        news.old_keys[odd] = int.from_bytes((gone or put).key, "big")
        news.rows[odd] = put.row
    return news


def _take_updated(handle: Handle, many: Rows, found: Columns, numbers: Longs, news: _News) -> Mask:
    """Puts in the updates that have the same columns twice; which of them these are."""
    old, new = _halves(found)
    keys, is_number = _keys(many, handle, new)
    old_keys, was_number = _keys(many, handle, old)
    is_plain: Mask = is_number & was_number & (old.ids == new.ids).all(axis=0) & _is_once(old.ids)
    news.keys[numbers], news.old_keys[numbers] = keys, old_keys
    at = np.argmax(new.ids == handle.column_ids[0], axis=0)
    here = np.arange(len(at))
    places = numbers, new.begins[at, here], new.ends[at, here], old.ends[-1], many.ends[numbers]
    is_signed = many.data[new.begins[at, here]] == _VARINT
    raw, rows = many.raw, news.rows
    for number, begin, end, boundary, stop in zip(
        *(each[is_plain & is_signed].tolist() for each in places), strict=True
    ):
        rows[number] = raw[begin:end] + raw[boundary:stop]
    for number, key, boundary, stop in zip(
        *(each[is_plain & ~is_signed].tolist() for each in (numbers, keys, *places[3:])),
        strict=True,
    ):
        rows[number] = b"\x08" + varint(as_signed(key)) + raw[boundary:stop]
    return is_plain


def _first_pairs(found: Columns, rows: Longs, count: int) -> Columns:
    """So many pairs of some rows."""
    ids, begins, ends = (each[:count, rows] for each in (found.ids, found.begins, found.ends))
    return Columns(ids, begins, ends, found.count[rows], found.is_odd[rows])


def _halves(found: Columns) -> tuple[Columns, Columns]:
    """The pairs of all rows in two parts."""
    half = len(found.ids) // 2
    old, new = (
        Columns(found.ids[of], found.begins[of], found.ends[of], found.count, found.is_odd)
        for of in (slice(half), slice(half, 2 * half))
    )
    return old, new


def _keys(many: Rows, handle: Handle, found: Columns) -> tuple[Numbers, Mask]:
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
