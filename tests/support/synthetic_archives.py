"""Archives of any size, without a log: the indexes and the catalog, made directly with Arrow.

The segments themselves are not there, so what plans a read and finds places has all that it needs,
and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from binlogd.archive.catalog import ArchiveCatalog, put_catalog
from binlogd.archive.files import places_path
from binlogd.archive.places import PLACES, encode_table
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import PAGE_SEGMENTS
from binlogd.log.record import extend
from binlogd.log.segment_index import SYNC_BYTES, SegmentIndex, SyncPoint

BEGIN_TS = 1_000_000
STEP = 10
RECORD_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """So many segments of so many transactions, dealt to the shards in turn. Each overlaps the next
    of its shard by `overlap` transactions; the k-th has rows of table `k % tables`."""

    segments: int
    transactions: int
    shards: int = 4
    overlap: int = 0
    tables: int = 1
    page_segments: int = PAGE_SEGMENTS


def make(directory: Path, shape: Shape) -> ArchiveStore:
    """An archive of this shape, below a directory."""
    store = ArchiveStore.open(str(directory))
    segments = [_segment(store, shape, number) for number in range(shape.segments)]
    catalog = ArchiveCatalog(
        cluster_id=7,
        shards=shape.shards,
        resolved_ts=max(each.max_ts for each in segments),
        segments=tuple(sorted(segments, key=lambda each: (each.shard, each.fid))),
        history_crc32c=(extend(0, b"[]"),),
    )
    store.put("ddl_history.json", b"[]")
    put_catalog(store, catalog, shape.page_segments)
    return store


def _segment(store: ArchiveStore, shape: Shape, number: int) -> SegmentIndex:
    """Transaction i of a segment commits at a timestamp of its own, of all shards."""
    fid, shard = divmod(number, shape.shards)
    first = fid * (shape.transactions - shape.overlap)
    count = shape.transactions
    ts = BEGIN_TS + (np.arange(first, first + count) * shape.shards + shard) * STEP
    offsets = np.arange(count) * 2 * RECORD_BYTES
    same = np.full(count, RECORD_BYTES)
    columns = [ts, ts - 5, offsets + RECORD_BYTES, same, np.full(count, fid), offsets, same]
    table = pa.Table.from_arrays([pa.array(each) for each in columns], schema=PLACES)
    content, stretches = encode_table(table)
    store.put(places_path(shard, fid), content)
    size = count * 2 * RECORD_BYTES
    sync = tuple(
        SyncPoint(at, int(ts[at * count // size - 1]) if at else 0)
        for at in range(0, size, SYNC_BYTES)
    )
    return SegmentIndex(
        shard=shard,
        fid=fid,
        size_bytes=size,
        is_sealed=True,
        crc32c=0,
        transactions=count,
        min_ts=int(ts[0]),
        max_ts=int(ts[-1]),
        seen_ts=int(ts[-1]),
        resolved_ts=int(ts[-1]),
        ddl_jobs=(),
        tables={100 + number % shape.tables: count},
        sync=sync,
        open=(),
        places_crc32c=extend(0, content),
        carried=(),
        places=stretches,
    )


def whole_catalog(
    store: ArchiveStore, catalog: ArchiveCatalog, segments: list[SegmentIndex]
) -> None:
    """Writes it as one document, as it was before there were pages."""
    old = [msgspec.structs.replace(each, places=(), carried=None) for each in segments]
    plain = msgspec.structs.replace(catalog, format=1, pages=(), segments=tuple(old))
    store.put("catalog.json", msgspec.json.encode(plain))
