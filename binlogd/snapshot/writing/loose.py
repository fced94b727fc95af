"""Rows that no key is known of, held against changes that tell what rows they changed: a multiset.

A table without a key of its own has a hidden row id, which is in the log but in no dump. A row of a
base without it is told by its values: of each key that changed behind the base, the row that its
first change found there is one row less. What is found nowhere makes the base wrong.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.errors import Refused
from binlogd.host.disk import put_in_place
from binlogd.snapshot.writing.changed import keys_as
from binlogd.snapshot.writing.files import KEY_COLUMN

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


class GoneRows:
    """What the changes of one partition found in the base: keys, and digests of the rows."""

    def __init__(self, directory: str, table_id: int, part: str) -> None:
        self._path = Path(directory, str(table_id), f"{part}.parquet")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._making = self._path.with_suffix(".new")
        self._file = pq.ParquetWriter(self._making, _SCHEMA)

    def add(self, keys: list[bytes], rows: pa.RecordBatch, *, was_there: list[bool]) -> None:
        """Keys that changed, with the rows that they held before, where they held one."""
        found = [
            digest if there else None
            for digest, there in zip(digests(rows), was_there, strict=True)
        ]
        self._file.write_table(
            pa.table([keys_as(keys, pa.int64()), pa.array(found, pa.binary())], schema=_SCHEMA)
        )

    def close(self) -> None:
        """Finishes the file; one that is not whole is not seen. A mark may follow: it is synced."""
        self._file.close()
        put_in_place(self._making, self._path)


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
        self._left: Counter[bytes] | None = None

    def keep_keys(self, keys: pa.Array) -> pa.Array:
        """Which of these rows, that tell their keys, have not changed. Before `keep_rows`."""
        kept = np.ones(len(keys), dtype=bool)
        for place, key in enumerate(keys.to_pylist()):
            if self._gone.pop(key, None) is not None:
                kept[place] = False
        return pa.array(kept)

    def keep_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Which of these rows have not changed, as far as values tell."""
        left = self._lefts()
        kept = np.ones(rows.num_rows, dtype=bool)
        if left:
            for place, digest in enumerate(digests(rows)):
                if left.get(digest):
                    left[digest] -= 1
                    kept[place] = False
        return pa.array(kept)

    def missing(self) -> int:
        """How many rows that changed were nowhere in the base."""
        return sum(self._lefts().values())

    def _lefts(self) -> Counter[bytes]:
        if self._left is None:
            self._left = Counter(self._gone.values())
        return self._left
