"""The heads of a log, put down for whoever goes on with an export that was killed.

A file is taken for what it is by the slices that it was read of, and by the checksums of its pages;
any other is read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.host.disk import put_in_place
from binlogd.snapshot.log.heads import PACKED
from binlogd.snapshot.log.reader import Slice

_OF = b"binlogd.slices"


def keep_heads(path: Path, parts: Sequence[Slice], found: pa.Table) -> None:
    """Puts them down, whole and synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".new")
    told = found.replace_schema_metadata({_OF: _digest(parts)})
    pq.write_table(told, making, compression="none", write_page_checksum=True)
    put_in_place(making, path)


def kept_heads(path: Path, parts: Sequence[Slice]) -> pa.Table | None:
    """What was put down of just these slices; None where that is not there."""
    try:
        found = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    if (found.schema.metadata or {}).get(_OF) != _digest(parts) or len(found) != len(parts):
        return None
    return found.select(PACKED.names)


def _digest(parts: Sequence[Slice]) -> bytes:
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest().encode()
