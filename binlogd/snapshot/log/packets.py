"""Changes on their way through a shuffle: in packets, to partitions that their keys tell.

Changes go through Spark's shuffle in packets, an Arrow stream of some thousand each, instead of one
by one: what Spark does for a row costs more than all that is done with it here. A packet holds
changes of one partition, told by table and key. Where a partition would be too much for memory, a
packet holds one table's and a piece of its keys only, and pieces are folded one after the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlogd.snapshot.log.keys import KEY_BYTES, is_first, key_lengths, key_numbers, longs

PACKETS = pa.schema(
    [
        ("partition", pa.int32()),
        ("table_id", pa.int64()),
        ("piece", pa.int32()),
        ("changes", pa.binary()),
    ]
)
"""`table_id` is that of all changes, or 0 where they are of any table."""

PIECE_BYTES = 64 << 20
"""Of the log, whose changes are folded in memory at a time."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


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
        hashes = _hashes(changes)
        partition = (hashes % np.uint64(self.partitions)).astype(np.int32)
        tables = np.zeros(len(hashes), np.int64)
        piece = np.zeros(len(hashes), np.int32)
        if self.pieces > 1:
            tables = longs(changes, "table_id")
            piece = (hashes // np.uint64(self.partitions) % np.uint64(self.pieces)).astype(np.int32)
        order = np.lexsort((piece, tables, partition))
        places = tuple(each[order] for each in (partition, tables, piece))
        begins = np.flatnonzero(is_first(*places))
        in_order = changes.take(pa.array(order))
        ends = np.append(begins[1:], len(order))
        blobs = [
            _stream(in_order.slice(begin, end - begin))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        columns = [*(each[begins] for each in places), pa.array(blobs, pa.binary())]
        return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=PACKETS)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The changes of packets that come by table and piece: all of a piece at once."""
    waiting: list[pa.RecordBatch] = []
    of: tuple[int, int] | None = None
    for batch in batches:
        columns = (batch.column(name) for name in ("table_id", "piece", "changes"))
        for table_id, piece, changes in zip(*columns, strict=True):
            now = table_id.as_py(), piece.as_py()
            if now != of and waiting:
                yield pa.concat_batches(waiting)
                waiting.clear()
            of = now
            with pa.ipc.open_stream(changes.as_buffer()) as stream:
                waiting.append(stream.read_next_batch())
    if waiting:
        yield pa.concat_batches(waiting)


def _hashes(changes: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """A number for each table and key, equal in every task and every run."""
    keys = changes.column("key")
    is_number = key_lengths(keys) == KEY_BYTES
    if is_number.all():
        of_key = key_numbers(keys)
    else:
        of_key = np.fromiter(map(zlib.crc32, keys.to_pylist()), np.uint64, len(keys))
        of_key[is_number] = key_numbers(keys.filter(pa.array(is_number)))
    mixed = (of_key ^ longs(changes, "table_id").view(np.uint64) * _MIX) * _MIX
    return mixed >> np.uint64(32)


def _stream(changes: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema) as stream:
        stream.write_batch(changes)
    found: bytes = sink.getvalue().to_pybytes()
    return found
