"""Changes on their way through a shuffle: in packets, to partitions that their keys tell.

Changes go through Spark's shuffle in packets, an Arrow stream of some thousand each, instead of one
by one: what Spark does for a row costs more than all that is done with it here. A packet holds
changes of one partition, told by table and key. Where a partition would be too much for memory, a
packet holds one table's and a piece of its keys only, and pieces are folded one after the other.

What is folded are raw rows, Arrow in, Arrow out: which change of a key wins needs its key and its
timestamps only, so rows are decoded after this, and only those that won.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlogd.errors import GaveUp
from binlogd.snapshot.log.datums import (
    Longs,
    arrow_stream,
    is_first,
    key_lengths,
    key_numbers,
    longs,
    ranks,
)
from binlogd.snapshot.log.rowkey import NUMBER_BYTES, Op


def winners_of(
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


def net_changes(changes: pa.RecordBatch) -> pa.RecordBatch:
    """What each key came to, by table and time: its row at the end, and the one it had before.

    A row that came and went is no change; one that went and came back is an UPDATE, like one that
    was updated. Of `events.CHANGES`.
    """
    found = newest(changes)
    op, first_op = (found.column(name).to_numpy() for name in ("op", "first_op"))
    is_new, is_gone = first_op == Op.PUT, op == Op.DELETE
    is_kept_as = is_new | (op == Op.UNKNOWN_TABLE)
    net_op = np.where(
        is_gone, Op.DELETE.value, np.where(is_kept_as, first_op, Op.UPDATE.value)
    ).astype(np.int8)
    place = found.schema.get_field_index("op")
    found = found.set_column(place, "op", pa.array(net_op))
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


PACKETS = pa.schema(
    [
        ("partition", pa.int32()),
        ("table_id", pa.int64()),
        ("piece", pa.int32()),
        ("count", pa.int64()),
        ("changes", pa.binary()),
    ]
)
"""`count` changes as an Arrow stream; `table_id` is that of all of them, or 0 where they are of any
table."""

PIECE_BYTES = 64 << 20
"""Of the log, whose changes are folded in memory at a time."""
FOLD_BYTES = 256 << 20
"""Of changes, above which those that count no more are let go before others come."""
BYTES_MAX = (1 << 31) - (1 << 20)
"""Of the changes of a piece that count. A column of Arrow's `binary` holds 2 GiB, less its last."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
Numbers = npt.NDArray[np.int32]


class TooLargePiece(GaveUp):
    """Rows of keys that are folded together are more than what can be held together."""

    def __init__(self, table: str, changes: int, size: int, size_max: int) -> None:
        super().__init__(
            f"{table}: {changes:,} changes of its rows, with others {size:,} bytes, are to be"
            f" folded together, and {size_max:,} bytes can be",
            todo="take less at a time: of an export an earlier moment first (--as-of, --to), and"
            " then from there on (--base, --from); a pipeline begins anew with smaller batches, by"
            " --batch, another --checkpoint and --take-over",
        )


class TornPacket(GaveUp):
    """A shuffle gave back something else than it was given."""

    def __init__(self, table: str, sent: int, came: int) -> None:
        super().__init__(
            f"{table}: a packet of {sent:,} changes came with {came:,}",
            todo="run it again; if it says the same, look after disks and memory of the workers",
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How changes are spread over partitions, and over pieces within each; the same in each run."""

    partitions: int
    pieces: int

    @classmethod
    def of(cls, partitions: int, log_bytes: int) -> Spread:
        """For a log of this size."""
        return cls(partitions, 1 + log_bytes // (partitions * PIECE_BYTES))

    def packets(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """`PACKETS` of some changes."""
        hashes = key_hashes(changes)
        partition = (hashes % np.uint64(self.partitions)).astype(np.int32)
        tables = np.zeros(len(hashes), np.int64)
        piece = np.zeros(len(hashes), np.int32)
        if self.pieces > 1:
            tables = longs(changes, "table_id")
            piece = (hashes // np.uint64(self.partitions) % np.uint64(self.pieces)).astype(np.int32)
        return packed(changes, partition, tables, piece)


def packed(
    changes: pa.RecordBatch, partition: Numbers, tables: Longs, piece: Numbers
) -> pa.RecordBatch:
    """`PACKETS` of some changes, by where each is to go."""
    order = np.lexsort((piece, tables, partition))
    places = tuple(each[order] for each in (partition, tables, piece))
    begins = np.flatnonzero(is_first(*places))
    in_order = changes.take(pa.array(order))
    counts = np.diff(begins, append=len(order))
    blobs = [
        arrow_stream(in_order.slice(begin, count))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)
    ]
    columns = [*(each[begins] for each in places), counts, pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=PACKETS)


def unpacked(
    batches: Iterable[pa.RecordBatch], name_of: Callable[[int], str]
) -> Iterator[pa.RecordBatch]:
    """The changes of packets that come by table and piece: all of a piece at once, that count.

    However often a key was written, of its changes few stay in memory. Raises TooLargePiece and
    TornPacket, with the name of a table.
    """
    piece = _Piece(name_of)
    of: tuple[int, int] | None = None
    for batch in batches:
        columns = (batch.column(name) for name in ("table_id", "piece", "count", "changes"))
        for table_id, number, count, changes in zip(*columns, strict=True):
            now = table_id.as_py(), number.as_py()
            if now != of:
                yield from piece.take()
            of = now
            with pa.ipc.open_stream(changes.as_buffer()) as stream:
                found = stream.read_next_batch()
            if len(found) != count.as_py():
                raise TornPacket(name_of(table_id.as_py()), count.as_py(), len(found))
            piece.add(found)
    yield from piece.take()


class _Piece:
    """Changes of one piece, as they come."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._waiting: list[pa.RecordBatch] = []
        self._size, self._fold_at = 0, FOLD_BYTES

    def add(self, changes: pa.RecordBatch) -> None:
        """Takes some more. Raises TooLargePiece."""
        if self._size + changes.nbytes > min(self._fold_at, BYTES_MAX):
            self._fold()
        self._waiting.append(changes)
        self._size += changes.nbytes
        if self._size > BYTES_MAX:
            raise self._too_large()

    def take(self) -> Iterator[pa.RecordBatch]:
        """All of them, if there are some; the next piece begins."""
        if self._waiting:
            found = pa.concat_batches(self._waiting)
            self._waiting.clear()
            self._size, self._fold_at = 0, FOLD_BYTES
            yield found

    def _fold(self) -> None:
        if self._waiting:
            self._waiting = [folded(pa.concat_batches(self._waiting))]
            self._size = self._waiting[0].nbytes
            self._fold_at = max(FOLD_BYTES, 2 * self._size)  # so that each byte is folded few times

    def _too_large(self) -> TooLargePiece:
        table_id: Counter[int] = Counter()
        for batch in self._waiting:
            table_id.update(batch.column("table_id").to_pylist())
        (largest, rows), *_ = table_id.most_common(1)
        return TooLargePiece(self._name_of(largest), rows, self._size, BYTES_MAX)


def key_hashes(changes: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """A number for each table and key, equal in every task and every run."""
    keys = changes.column("key")
    is_number = key_lengths(keys) == NUMBER_BYTES
    if is_number.all():
        of_key = key_numbers(keys)
    else:
        of_key = np.fromiter(map(zlib.crc32, keys.to_pylist()), np.uint64, len(keys))
        of_key[is_number] = key_numbers(keys.filter(pa.array(is_number)))
    mixed = (of_key ^ longs(changes, "table_id").view(np.uint64) * _MIX) * _MIX
    return mixed >> np.uint64(32)
