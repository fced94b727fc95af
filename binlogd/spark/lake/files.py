"""Rows into new files of Parquet, which are nothing to a table before somebody names them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILE_BYTES = 128 << 20
"""About where a file ends."""


class FileWriter:
    """Files of one table; `create` opens one of a name, and says how it is called there."""

    def __init__(self, create: Callable[[str], tuple[str, Any]], schema: pa.Schema) -> None:
        self._create, self._schema = create, schema
        self._paths: list[str] = []
        self._open: tuple[pq.ParquetWriter, Any] | None = None
        self._size = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """More rows, with these columns."""
        if not rows.num_rows:
            return
        if self._open is None:
            # never a name that an attempt had which was killed
            name = f"{uuid.uuid4()}.zstd.parquet"  # noqa: TID251 - see above
            path, stream = self._create(name)
            self._paths.append(path)
            self._open = pq.ParquetWriter(stream, self._schema, compression="zstd"), stream
        self._open[0].write_batch(pa.RecordBatch.from_arrays(rows.columns, schema=self._schema))
        self._size += rows.nbytes
        if self._size >= FILE_BYTES:
            self.close()

    def close(self) -> list[str]:
        """All files so far."""
        if self._open is not None:
            writer, stream = self._open
            writer.close()
            stream.close()
        self._open, self._size = None, 0
        return self._paths
