"""Which binlogs a log holds, and the row changes of many prewrites at once: where the rows of each
table lie.

A head takes 25 bytes in memory, less on its way: what is told of each is its kind, its place and
its two timestamps, and only of DDL what it did. Canonical payloads are read all at once; one that
is of another form, or of a DDL, by itself.

Invariant. Of a prewrite that is not slow, rows and their order are those of
`wire.mutation.mutations_of`; of a slow one, which is left to them, nothing is told. Why it holds. A
step is taken for all at once, and only over tags that TiDB writes, in the order that it writes
them; lists and sequence are held to each other as there.
Anything else makes a prewrite slow, and so does what would take many steps for few.

Source: pingcap/tipb proto/binlog/binlog.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord, MalformedBinlog
from binlogd.snapshot.log.datums import (
    Bytes,
    Longs,
    Mask,
    RowSpans,
    offsets,
    packed_longs,
    unpacked_longs,
    uvarints,
)
from binlogd.snapshot.log.reader import Slice, payloads
from binlogd.snapshot.log.row_changes import TableRows
from binlogd.wire.in_order import DELETE, INSERT, UPDATE
from binlogd.wire.peek import NO_DDL, Head, body, peek

PREWRITE, COMMIT, ROLLBACK, DDL_COMMIT, OTHER = range(5)
"""Kinds of heads."""

PACKED = pa.schema([("number", pa.int32()), ("heads", pa.binary()), ("ddl", pa.binary())])
"""The heads of one slice on their way to whoever asked."""

_NO_COMMIT = 8
"""Is added to the kind of a head without a commit_ts, on its way."""
_LEAST_BYTES = 10
"""Of a canonical payload."""


class DdlCommit(msgspec.Struct, array_like=True, frozen=True):
    """The Commit of a DDL."""

    commit_ts: int
    start_ts: int
    job_id: int
    schema_state: int
    query: bytes


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of one slice, by their places in its file."""

    kind: npt.NDArray[np.int8]
    at: Longs
    start_ts: Longs
    commit_ts: Longs
    ddl: tuple[DdlCommit, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)


def heads(part: Slice) -> Heads:
    """The heads of a slice. Raises CorruptRecord, also for a payload that is no binlog."""
    records = list(payloads(part))
    found = canonical(RowSpans.joined([payload for _, payload in records]))
    at = np.fromiter((each for each, _ in records), np.int64, len(records))
    ddl = []
    for number in np.flatnonzero(~found.is_plain).tolist():
        place, payload = records[number]
        try:
            head = peek(payload)
            commit = _ddl_commit(head, payload)
        except MalformedBinlog as error:
            raise CorruptRecord(part.path, place, f"no binlog: {error}") from error
        kind = head.tp if head.tp in (PREWRITE, COMMIT, ROLLBACK) else OTHER
        if commit is not None:
            kind = DDL_COMMIT
            ddl.append(commit)
        found.kind[number] = kind
        found.start_ts[number], found.commit_ts[number] = head.start_ts, head.commit_ts
    counts = (found.start_ts != 0) | (found.commit_ts != 0)  # others were left by old versions
    return Heads(
        found.kind[counts],
        at[counts],
        found.start_ts[counts],
        found.commit_ts[counts],
        tuple(ddl),
    )


def ddl_commits(payloads_of: Sequence[bytes]) -> list[DdlCommit]:
    """The Commits of DDL among some payloads. Raises MalformedBinlog."""
    is_plain = canonical(RowSpans.joined(list(payloads_of))).is_plain
    slow = (payloads_of[number] for number in np.flatnonzero(~is_plain).tolist())
    found = (_ddl_commit(peek(payload), payload) for payload in slow)
    return [each for each in found if each is not None]


def _ddl_commit(head: Head, payload: bytes) -> DdlCommit | None:
    if not head.ddl_job_id or head.tp != BinlogType.COMMIT:
        return None
    said, job_id = body(payload), head.ddl_job_id
    return DdlCommit(head.commit_ts, head.start_ts, job_id, said.ddl_schema_state, said.ddl_query)


def packed(number: int, heads: Heads) -> pa.RecordBatch:
    """`PACKED` of one slice."""
    has_none = heads.commit_ts == 0
    columns = (
        heads.kind.astype(np.int64) + np.where(has_none, _NO_COMMIT, 0),
        heads.at,
        heads.start_ts,
        np.where(has_none, 0, heads.commit_ts - heads.start_ts),
    )
    row = {
        "number": [number],
        "heads": [packed_longs(*columns)],
        "ddl": [msgspec.msgpack.encode(heads.ddl)],
    }
    return pa.RecordBatch.from_pydict(row, schema=PACKED)


def unpacked(heads: bytes, ddl: bytes) -> Heads:
    """What `packed` put together."""
    kind, at, start_ts, behind = unpacked_longs(heads)
    commit_ts = np.where(kind >= _NO_COMMIT, 0, start_ts + behind)
    return Heads(
        (kind % _NO_COMMIT).astype(np.int8),
        at,
        start_ts,
        commit_ts,
        msgspec.msgpack.decode(ddl, type=tuple[DdlCommit, ...]),
    )


class LogHeads:
    """The heads of all slices, in the order of the slices: by shard, file and place."""

    def __init__(self, parts: Sequence[Slice], of_parts: Sequence[Heads]) -> None:
        self.parts = tuple(parts)
        self.begins = offsets(np.array([len(each) for each in of_parts], np.int64))
        """Where the heads of each slice begin."""
        self.kind = np.concatenate([each.kind for each in of_parts])
        self.at = np.concatenate([each.at for each in of_parts])
        self.start_ts = np.concatenate([each.start_ts for each in of_parts])
        self.commit_ts = np.concatenate([each.commit_ts for each in of_parts])
        self.ddl = [ddl for each in of_parts for ddl in each.ddl]

    def per_head(self, of_parts: Sequence[int]) -> Longs:
        """A number of each slice for each of its heads."""
        return np.repeat(np.array(of_parts, np.int64), np.diff(self.begins))


# --- canonical payloads ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Canonical:
    """What was told of some payloads; nothing of those that are not plain."""

    is_plain: Mask
    kind: npt.NDArray[np.int8]
    start_ts: Longs
    commit_ts: Longs
    rows_at: Longs
    rows_end: Longs
    """Where the row changes of a Prewrite are."""


def canonical(payloads_of: RowSpans) -> Canonical:
    """The heads of payloads that are canonical and no DDL."""
    data, begins, ends = payloads_of.data, payloads_of.begins, payloads_of.ends
    kind = data[begins + 1].astype(np.int8)
    is_plain = (ends - begins >= _LEAST_BYTES) & (data[begins] == 0x08) & (kind >= 0)
    is_plain &= data[begins + 2] == 0x10
    start_ts, at = _minimal(data, begins + 3, is_plain)
    is_plain &= data[at] == 0x18
    commit_ts, at = _minimal(data, at + 1, is_plain)
    places = []
    for tag in b"\x22\x2a\x32":
        has = np.flatnonzero(is_plain & (data[at] == tag))
        size, begin = uvarints(data, at[has] + 1)
        after = begin + size.view(np.int64)
        is_wrong = (begin < 0) | (size > len(data)) | (after > ends[has])
        is_plain[has[is_wrong]] = False
        content = at.copy()
        content[has] = np.where(is_wrong, begins[has], begin)
        at[has] = np.where(is_wrong, begins[has], after)
        places.append((content, at.copy()))
    is_plain &= at + len(NO_DDL) == ends
    for place, byte in enumerate(NO_DDL):
        is_plain &= data[at + place] == byte
    kind[kind > ROLLBACK] = OTHER
    return Canonical(is_plain, kind, start_ts, commit_ts, *places[1])


def _minimal(data: Bytes, at: Longs, is_plain: Mask) -> tuple[Longs, Longs]:
    """Varints without a byte too many and where they end; those that are not are no longer plain,
    and end where they began."""
    values, ends = uvarints(data, at)
    is_plain &= (ends > 0) & ((ends - at == 1) | (data[ends - 1] != 0))
    return values.view(np.int64), np.where(is_plain, ends, at)


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

    def at(self, which: Mask | Longs) -> Stretches:
        """Some of them, or all in another order."""
        return Stretches(self.of[which], self.begins[which], self.ends[which], self.kinds[which])


@dataclass(frozen=True, slots=True)
class ParsedMutations:
    """The rows of wanted tables, in the order of their lists; each mutation is one table's."""

    prewrites: RowSpans
    is_slow: Mask
    """Of each prewrite, whether it takes the slow path; mutations are of the others."""
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

    def rows_of(self, is_ours: Mask, commit_ts: Longs) -> TableRows:
        """The rows of some mutations, which are of one table and committed then."""
        local = np.cumsum(is_ours) - 1
        rows, is_row = self.rows, is_ours[self.rows.of]
        inserts, updates, deletes = (
            self.prewrites.within(rows.begins[each], rows.ends[each])
            for each in (is_row & (rows.kinds == kind) for kind in (INSERT, UPDATE, DELETE))
        )
        is_step = is_ours[self.of_step]
        return TableRows(
            inserts,
            updates,
            deletes,
            self.sequence[is_step],
            local[self.of_step[is_step]],
            commit_ts,
            self.schema_version[self.of_prewrite[is_ours]],
        )


def parse_mutations(prewrites: RowSpans, is_wanted: Callable[[int], bool]) -> ParsedMutations:
    """The rows of the tables of which it is said that they are wanted."""
    data = prewrites.data
    found = canonical(prewrites)
    is_slow, at, ends = ~found.is_plain, found.rows_at.copy(), found.rows_end
    version = np.zeros(len(at), np.int64)
    has_version = np.flatnonzero(~is_slow & (at < ends) & (data[at] == _VERSION))
    value, after = uvarints(data, at[has_version] + 1)
    version[has_version] = value.view(np.int64)
    is_slow[has_version] |= after < 0
    at[has_version] = after

    tables = _stretches(data, at, ends, is_slow, _KINDS_OF_TABLES)
    is_slow |= at != ends
    id_at = tables.begins
    ids, row_at = uvarints(data, id_at + 1)
    is_named = (data[id_at] == _TABLE_ID) & (row_at >= 0) & (row_at < tables.ends)
    is_slow[tables.of[~is_named]] = True
    every = np.unique(ids).view(np.int64)
    wanted = every[np.array([is_wanted(each) for each in every.tolist()], bool)]
    table_id = ids.view(np.int64)
    is_kept = np.isin(table_id, wanted) & ~is_slow[tables.of]
    of_prewrite, table_id = tables.of[is_kept], table_id[is_kept]

    is_wrong = np.zeros(len(table_id), bool)
    at, ends = row_at[is_kept], tables.ends[is_kept]
    rows = _stretches(data, at, ends, is_wrong, _KINDS_OF_ROWS)
    sequence, of_step = _sequences(data, at, ends, is_wrong)
    for kind in (INSERT, UPDATE, DELETE):
        in_list = np.bincount(rows.of[rows.kinds == kind], minlength=len(at))
        is_wrong |= in_list != np.bincount(of_step[sequence == kind], minlength=len(at))
    is_wrong |= np.bincount(rows.of, minlength=len(at)) != np.bincount(of_step, minlength=len(at))
    is_slow[of_prewrite[is_wrong]] = True
    kept = ~is_slow[of_prewrite]
    number = np.cumsum(kept) - 1
    has_row, has_step = kept[rows.of], kept[of_step]
    return ParsedMutations(
        prewrites,
        is_slow,
        version,
        of_prewrite[kept],
        table_id[kept],
        rows.at(has_row)._replace(of=number[rows.of[has_row]]),
        sequence[has_step],
        number[of_step[has_step]],
    )


def _stretches(
    data: Bytes, at: Longs, ends: Longs, is_slow: Mask, kinds_of: npt.NDArray[np.uint8]
) -> Stretches:
    """The fields with a length from `at` on, up to one of another tag or the end.

    `at` is moved to there. What is cut, or takes too many steps, is slow.
    """
    live = np.flatnonzero(~is_slow & (at < ends))
    found: list[Stretches] = []
    steps = 0
    while live.size:
        kinds = kinds_of[data[at[live]]]
        live, kinds = live[kinds != _NO_KIND], kinds[kinds != _NO_KIND]
        size, begins = uvarints(data, at[live] + 1)
        after = begins + size.view(np.int64)
        is_cut = (begins < 0) | (size > len(data)) | (after > ends[live])
        if is_cut.any():
            is_slow[live[is_cut]] = True
            live, kinds = live[~is_cut], kinds[~is_cut]
            begins, after = begins[~is_cut], after[~is_cut]
        found.append(Stretches(live, begins, after, kinds))
        at[live] = after
        live = live[after < ends[live]]
        steps += 1
        if steps > _STEPS_MAX and len(live) <= _FEW:
            is_slow[live] = True
            break
    if not found:
        nothing = np.zeros(0, np.int64)
        return Stretches(nothing, nothing, nothing, np.zeros(0, np.uint8))
    every = Stretches(*map(np.concatenate, zip(*found, strict=True)))
    return every.at(np.argsort(every.of, kind="stable"))


def _sequences(
    data: Bytes, at: Longs, ends: Longs, is_slow: Mask
) -> tuple[npt.NDArray[np.uint8], Longs]:
    """The kinds that a run of tags and kinds up to each end tells, and of which each is."""
    is_slow |= (ends - at) % 2 != 0
    counts = np.where(is_slow, 0, (ends - at) // 2)
    of = np.repeat(np.arange(len(at)), counts)
    begins = np.cumsum(counts) - counts
    places = at[of] + 2 * (np.arange(len(of)) - begins[of])
    is_slow[of[data[places] != _SEQUENCE]] = True
    return data[places + 1], of
