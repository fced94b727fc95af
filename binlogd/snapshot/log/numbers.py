"""Columns of numbers that change little from one to the next, in few bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from binlogd.snapshot.log.vectors import Longs


def packed(*columns: Longs) -> bytes:
    """Columns of one length: their differences, compressed."""
    arrays = [pa.array(np.diff(each, prepend=0)) for each in columns]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(each) for each in range(len(arrays))])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> list[Longs]:
    """The columns."""
    with pa.ipc.open_stream(data) as stream:
        return [np.cumsum(each.to_numpy()) for each in stream.read_next_batch().columns]
