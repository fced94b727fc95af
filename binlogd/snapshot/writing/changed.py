"""Which rows of a base have changed since: their keys, put down by one stage, read by the next.

Keys are kept as 64-bit numbers where the row handle is one, as bytes otherwise. A set of them is
looked up in pieces, so that memory has a limit however many there are.

A table without a key of its own has a hidden row id, which is in the log but in no dump. A row of a
base without it is told by its values: of each key that changed behind the base, the row that its
first change found there is one row less. What is found nowhere makes the base wrong.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlogd.errors import Refused
from binlogd.host.disk import put_in_place
from binlogd.snapshot.log.datums import key_numbers
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.files import KEY_COLUMN

PIECE_KEYS = 1 << 20
"""Keys that are looked up at a time."""
_CHUNK_KEYS = 1 << 16


def type_of_keys(plan: TablePlan) -> pa.DataType:
    """How the keys of a table are kept."""
    is_text = plan.handle.kind in (HandleKind.COMMON, HandleKind.PLACED)
    return pa.binary() if is_text else pa.int64()


def keys_of_changes(keys: pa.Array, type_: pa.DataType) -> pa.Array:
    """Keys of `rowkey`, as a table keeps them."""
    return keys if type_ != pa.int64() else pa.array(key_numbers(keys).view(np.int64))


def keys_of(column: pa.Array) -> pa.Array:
    """The keys that the handle column of a table tells, as numbers modulo 2^64."""
    if pa.types.is_decimal(column.type):
        return column.cast(pa.uint64()).view(pa.int64())
    return column.cast(pa.int64())


class _PutDown:
    """A file of one table and partition."""

    def __init__(self, directory: str, table_id: int, part: str, schema: pa.Schema) -> None:
        self._path = Path(directory, str(table_id), f"{part}.parquet")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._making = self._path.with_suffix(".new")
        self._file = pq.ParquetWriter(self._making, schema)

    def close(self) -> None:
        """Finishes the file; one that is not whole is not seen. A mark may follow: it is synced."""
        self._file.close()
        put_in_place(self._making, self._path)


class ChangedKeys(_PutDown):
    """The keys of one table that changed, as one partition meets them."""

    def __init__(self, directory: str, plan: TablePlan, part: str) -> None:
        self._type = type_of_keys(plan)
        super().__init__(directory, plan.info.id, part, pa.schema([(KEY_COLUMN, self._type)]))
        self._keys: list[pa.Array] = []

    def add(self, keys: pa.Array) -> None:
        """More of them; each key comes once."""
        self._keys.append(keys_of_changes(keys, self._type))
        if sum(map(len, self._keys)) >= _CHUNK_KEYS:
            self._flush()

    def close(self) -> None:
        """As of any such file."""
        if self._keys:
            self._flush()
        super().close()

    def _flush(self) -> None:
        keys = pa.chunked_array(self._keys, self._type)
        self._file.write_table(pa.table({KEY_COLUMN: keys}))
        self._keys.clear()


def changed_keys(directory: str, table_id: int) -> Iterator[pa.Array]:
    """The keys of a table that changed, piece by piece."""
    for path in sorted(Path(directory, str(table_id)).glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(PIECE_KEYS):
            yield batch.column(0)


def is_kept(keys: pa.Array, changed: Iterator[pa.Array]) -> pa.Array:
    """True for each key that is in no piece."""
    found = pa.array(np.zeros(len(keys), dtype=bool))
    for piece in changed:
        found = pc.or_(found, pc.is_in(keys, value_set=piece))
    return pc.invert(found)


# --- rows that no key tells -----------------------------------------------------------------------

GONE_ROWS_MAX = 20_000_000
"""Changed rows of one table that are held in memory while its base is read."""
_DIGEST_BYTES = 16
_SCHEMA = pa.schema([(KEY_COLUMN, pa.int64()), ("digest", pa.binary())])


def digests(rows: pa.RecordBatch) -> list[bytes]:
    """What tells rows of the same columns apart by their values."""
    columns = [column.to_pylist() for column in rows.columns]
    return [
        hashlib.blake2b(repr(row).encode(), digest_size=_DIGEST_BYTES).digest()
        for row in zip(*columns, strict=True)
    ]


class GoneRows(_PutDown):
    """What the changes of one partition found in the base: keys, and digests of the rows."""

    def __init__(self, directory: str, table_id: int, part: str) -> None:
        super().__init__(directory, table_id, part, _SCHEMA)

    def add(self, keys: pa.Array, rows: pa.RecordBatch, *, was_there: pa.Array) -> None:
        """Keys that changed, with the rows that they held before, where they held one."""
        found = pc.if_else(was_there, pa.array(digests(rows), pa.binary()), None)
        columns = [keys_of_changes(keys, pa.int64()), found]
        self._file.write_table(pa.table(columns, schema=_SCHEMA))


class LooseRows:
    """The rows of a base that are still there."""

    def __init__(self, directory: str, table_id: int) -> None:
        self._gone: dict[int, bytes] = {}
        for path in sorted(Path(directory, str(table_id)).glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches():
                pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                self._gone.update({key: digest for key, digest in pairs if digest is not None})
            if len(self._gone) > GONE_ROWS_MAX:
                raise Refused(
                    f"table id {table_id} has no key, and more than {GONE_ROWS_MAX} of its rows"
                    " changed behind the base: take a newer dump"
                )

    def keep_keys(self, keys: pa.Array) -> pa.Array:
        """Which of these rows, that tell their keys, have not changed. Before `keep_rows`."""
        kept = np.ones(len(keys), dtype=bool)
        for place, key in enumerate(keys.to_pylist()):
            if self._gone.pop(key, None) is not None:
                kept[place] = False
        return pa.array(kept)

    def keep_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Which of these rows have not changed, as far as values tell."""
        left = self._left
        kept = np.ones(rows.num_rows, dtype=bool)
        if left:
            for place, digest in enumerate(digests(rows)):
                if left.get(digest):
                    left[digest] -= 1
                    kept[place] = False
        return pa.array(kept)

    def missing(self) -> int:
        """How many rows that changed were nowhere in the base."""
        return sum(self._left.values())

    @cached_property
    def _left(self) -> Counter[bytes]:
        return Counter(self._gone.values())
