"""The row changes of many prewrites at once: where the rows of each table lie.

Invariant. Of a prewrite that is not odd, rows and their order are those of `wire.peek.changes`; of
an odd one nothing is told. Why it holds. A step is taken for all at once, and only over tags that
TiDB writes, in the order that it writes them; lists and sequence are held to each other as there.
Anything else makes a prewrite odd, and so does what would take many steps for few.

Source: pingcap/tipb proto/binlog/binlog.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from binlogd.snapshot.log.datums import RowSpans
from binlogd.snapshot.log.heads import canonical
from binlogd.snapshot.log.vectors import Bytes, Longs, Mask, uvarints
from binlogd.wire.in_order import DELETE, INSERT, UPDATE

_VERSION, _TABLES, _TABLE_ID, _SEQUENCE = 0x08, 0x12, 0x08, 0x38
_STEPS_MAX = 64
_FEW = 16
"""After so many steps, so few are read by themselves: a step costs the same for one."""

_NO_KIND = 0xFF
_KINDS_OF_TABLES, _KINDS_OF_ROWS = np.full((2, 256), _NO_KIND, np.uint8)
"""By the tag of a field: the kind of what it holds."""
_KINDS_OF_TABLES[_TABLES] = 0
_KINDS_OF_ROWS[[0x12, 0x1A, 0x32]] = INSERT, UPDATE, DELETE


class Stretches(NamedTuple):
    """Some bytes of something each, in the order of the bytes for each number."""

    of: Longs
    begins: Longs
    ends: Longs
    kinds: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Told:
    """The rows of wanted tables, in the order of their lists; each mutation is one table's."""

    prewrites: RowSpans
    is_odd: Mask
    """Of each prewrite; mutations are of those that are not."""
    schema_version: Longs
    """Of each prewrite."""
    of_prewrite: Longs
    """Of each mutation, which prewrite it is in."""
    table_id: Longs
    rows: Stretches
    """Of a row, `of` is the number of its mutation."""
    sequence: npt.NDArray[np.uint8]
    """The kinds of rows in the order of execution, mutation after mutation."""
    of_step: Longs
    """Of each kind there, the number of its mutation."""


def told(prewrites: RowSpans, is_wanted: Callable[[int], bool]) -> Told:
    """The rows of the tables of which it is said that they are wanted."""
    data = prewrites.data
    found = canonical(prewrites)
    is_odd, at, ends = ~found.is_plain, found.rows_at.copy(), found.rows_end
    version = np.zeros(len(at), np.int64)
    has_version = np.flatnonzero(~is_odd & (at < ends) & (data[at] == _VERSION))
    value, after = uvarints(data, at[has_version] + 1)
    version[has_version] = value.view(np.int64)
    is_odd[has_version] |= after < 0
    at[has_version] = after

    tables = _stretches(data, at, ends, is_odd, _KINDS_OF_TABLES)
    is_odd |= at != ends
    id_at = tables.begins
    ids, row_at = uvarints(data, id_at + 1)
    is_named = (data[id_at] == _TABLE_ID) & (row_at >= 0) & (row_at < tables.ends)
    is_odd[tables.of[~is_named]] = True
    every = np.unique(ids).view(np.int64)
    wanted = every[np.array([is_wanted(each) for each in every.tolist()], bool)]
    table_id = ids.view(np.int64)
    is_told = np.isin(table_id, wanted) & ~is_odd[tables.of]
    of_prewrite, table_id = tables.of[is_told], table_id[is_told]

    is_wrong = np.zeros(len(table_id), bool)
    at, ends = row_at[is_told], tables.ends[is_told]
    rows = _stretches(data, at, ends, is_wrong, _KINDS_OF_ROWS)
    sequence, of_step = _sequences(data, at, ends, is_wrong)
    for kind in (INSERT, UPDATE, DELETE):
        in_list = np.bincount(rows.of[rows.kinds == kind], minlength=len(at))
        is_wrong |= in_list != np.bincount(of_step[sequence == kind], minlength=len(at))
    is_wrong |= np.bincount(rows.of, minlength=len(at)) != np.bincount(of_step, minlength=len(at))
    is_odd[of_prewrite[is_wrong]] = True
    kept = ~is_odd[of_prewrite]
    number = np.cumsum(kept) - 1
    has_row, has_step = kept[rows.of], kept[of_step]
    return Told(
        prewrites,
        is_odd,
        version,
        of_prewrite[kept],
        table_id[kept],
        Stretches(
            number[rows.of[has_row]],
            rows.begins[has_row],
            rows.ends[has_row],
            rows.kinds[has_row],
        ),
        sequence[has_step],
        number[of_step[has_step]],
    )


def _stretches(
    data: Bytes,
    at: Longs,
    ends: Longs,
    is_odd: Mask,
    kinds_of: npt.NDArray[np.uint8],
) -> Stretches:
    """The fields with a length from `at` on, up to one of another tag or the end.

    `at` is moved to there. What is cut, or takes too many steps, is odd.
    """
    live = np.flatnonzero(~is_odd & (at < ends))
    found: list[Stretches] = []
    steps = 0
    while live.size:
        kinds = kinds_of[data[at[live]]]
        live, kinds = live[kinds != _NO_KIND], kinds[kinds != _NO_KIND]
        size, begins = uvarints(data, at[live] + 1)
        after = begins + size.view(np.int64)
        is_cut = (begins < 0) | (size > len(data)) | (after > ends[live])
        if is_cut.any():
            is_odd[live[is_cut]] = True
            live, kinds = live[~is_cut], kinds[~is_cut]
            begins, after = begins[~is_cut], after[~is_cut]
        found.append(Stretches(live, begins, after, kinds))
        at[live] = after
        live = live[after < ends[live]]
        steps += 1
        if steps > _STEPS_MAX and len(live) <= _FEW:
            is_odd[live] = True
            break
    if not found:
        nothing = np.zeros(0, np.int64)
        return Stretches(nothing, nothing, nothing, np.zeros(0, np.uint8))
    of = np.concatenate([each.of for each in found])
    order = np.argsort(of, kind="stable")
    return Stretches(
        of[order],
        np.concatenate([each.begins for each in found])[order],
        np.concatenate([each.ends for each in found])[order],
        np.concatenate([each.kinds for each in found])[order],
    )


def _sequences(
    data: Bytes, at: Longs, ends: Longs, is_odd: Mask
) -> tuple[npt.NDArray[np.uint8], Longs]:
    """The kinds that a run of tags and kinds up to each end tells, and of which each is."""
    is_odd |= (ends - at) % 2 != 0
    counts = np.where(is_odd, 0, (ends - at) // 2)
    of = np.repeat(np.arange(len(at)), counts)
    begins = np.cumsum(counts) - counts
    places = at[of] + 2 * (np.arange(len(of)) - begins[of])
    is_odd[of[data[places] != _SEQUENCE]] = True
    return data[places + 1], of
