"""Rows of the tables of a lake: what changes is new files, and a commit that names them.

    upsert = Upsert(files, schema, changes)  rows put go into new files, keys are kept
    touched(kind.files(head), low, high)     files that may hold some of the keys
    leave(writer, schema, keys, work)        what is left of them goes into new files too
    kind.replace(head, schema, gone, come)   one commit names what goes and comes (`kinds`)

A table of which much changes has each of these steps in several tasks, with one commit behind them;
any other one has all of them in one (`moving`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlogd.spark.lake.files import DataFile, FileWriter, LakeFiles
from binlogd.spark.lake.kinds import LakeFailed, LakeKind
from binlogd.spark.lake.manifest import WAY_PAST, LakeTable, PipelineStopped
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import KEY_COLUMN, KeyChanges
from binlogd.tidb.rewrite import Unconvertible

SMALL_BYTES, SMALL_MAX = 8 << 20, 16
"""When more files of a partition are smaller than that, the next batch puts them together."""
SHARE_BYTES = 64 << 20
"""Of files that are gone through: with more of a table, several tasks write what comes of them."""
KEYS = pa.schema([(KEY_COLUMN, pa.binary())])


@contextmanager
def failing_as(table: str, *more: type[Exception]) -> Iterator[None]:
    """What a method of `LakeContent` or of its kind may raise, pyarrow's errors among it, values
    that are not known, and `more`: as PipelineStopped, with the table."""
    fails: tuple[type[Exception], ...] = (LakeFailed, OSError, ValueError, Unconvertible, *more)
    try:
        yield
    except fails as error:
        way_past = f". {WAY_PAST}" if isinstance(error, Unconvertible) else ""
        raise PipelineStopped(f"{table}: {error}{way_past}") from error


@dataclass(frozen=True, slots=True)
class KeySet(Sequence[bytes]):
    """Keys in their order."""

    array: pa.Array

    @classmethod
    def of(cls, keys: Iterable[pa.ChunkedArray]) -> KeySet:
        """These, sorted."""
        chunks = [chunk for each in keys for chunk in each.chunks]
        whole = pa.chunked_array(chunks, pa.binary()).combine_chunks()
        return cls(whole.take(pc.sort_indices(whole)))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        return self.array[at].as_py()

    def bounds(self) -> tuple[bytes, bytes]:
        """The first and the last one; there are some."""
        return self[0], self[len(self) - 1]

    def within(self, low: bytes | None, high: bytes | None) -> KeySet:
        """Those between two bounds; None is no bound."""
        begin = 0 if low is None else bisect_left(self, low)
        end = len(self) if high is None else bisect_right(self, high)
        return KeySet(self.array.slice(begin, max(0, end - begin)))


class TouchedFiles(NamedTuple):
    """Files of a version that a batch has to look into: those that may hold keys of it, and those
    that are put together whatever they hold, as they are too many and small."""

    may: Sequence[DataFile]
    folded: Sequence[DataFile]

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(each.size_bytes for part in self for each in part)


def touched(files: Sequence[DataFile], low: bytes, high: bytes) -> TouchedFiles:
    """What keys between two bounds touch."""
    small = [each for each in files if each.size_bytes < SMALL_BYTES]
    many = Counter(each.room for each in small)
    folded = [each for each in small if many[each.room] > SMALL_MAX]
    may = [
        each
        for each in files
        if (each.size_bytes >= SMALL_BYTES or many[each.room] <= SMALL_MAX)
        and (each.low is None or each.low <= high)
        and (each.high is None or each.high >= low)
    ]
    return TouchedFiles(may, folded)


def dealt(work: TouchedFiles, many: int) -> list[TouchedFiles]:
    """Shares of about one size, at most so many; what is put together is in one."""
    shares = [TouchedFiles([], work.folded)] if work.folded else []
    for file in sorted(work.may, key=lambda each: -each.size_bytes):
        if len(shares) < many:
            shares.append(TouchedFiles([file], []))
        else:
            least = min(range(many), key=lambda at: shares[at].size_bytes)
            shares[least] = shares[least]._replace(may=[*shares[least].may, file])
    return shares


def left(
    files: LakeFiles, name: str, keys: KeySet, schema: pa.Schema, *, is_folded: bool
) -> Iterator[pa.RecordBatch] | None:
    """The rows of a file without those of the keys; None where it holds none of them and stays."""
    with files.opened(name) as held:
        wanted = keys.within(*_bounds(held))
    gone = pc.is_in(files.keys(name), value_set=wanted.array) if len(wanted) else None
    if gone is None or not pc.any(gone).as_py():
        return files.read(name, schema) if is_folded else None
    return _without(files.read(name, schema), pc.invert(gone).combine_chunks())


def _without(rows: Iterable[pa.RecordBatch], stays: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    at = 0
    for each in rows:
        yield each.filter(stays.slice(at, each.num_rows))
        at += each.num_rows


def _bounds(held: pq.ParquetFile) -> tuple[bytes | None, bytes | None]:
    """Of the keys of a file, by what it says of its parts."""
    at = held.schema_arrow.get_field_index(KEY_COLUMN)
    parts = [
        held.metadata.row_group(each).column(at).statistics
        for each in range(held.metadata.num_row_groups)
    ]
    if not all(each is not None and each.has_min_max for each in parts) or not parts:
        return None, None
    return min(each.min for each in parts), max(each.max for each in parts)


def leave(writer: FileWriter, schema: pa.Schema, keys: KeySet, work: TouchedFiles) -> list[str]:
    """Writes what is left of files without the keys; the names of those that go by it."""
    gone = []
    for is_folded, files in ((False, work.may), (True, work.folded)):
        for file in files:
            rows = left(writer.files, file.name, keys, schema, is_folded=is_folded)
            if rows is not None:
                gone.append(file.name)
                for each in rows:
                    writer.add(each)
    return gone


class Upsert:
    """What some keys of a table hold now: rows in new files, and the keys, which are in memory."""

    def __init__(self, files: LakeFiles, schema: pa.Schema, changes: Iterable[KeyChanges]) -> None:
        self.writer = FileWriter(files, schema)
        put, gone = list[pa.ChunkedArray](), list[pa.Array]()
        for each in changes:
            put.append(each.puts[KEY_COLUMN])
            gone.append(each.gone)
            for rows in each.puts.to_batches():
                self.writer.add(rows)
        self.gone = pa.chunked_array(gone, pa.binary())
        self.keys = KeySet.of([*put, self.gone])
        self.rows_put, self.rows_gone = sum(map(len, put)), len(self.gone)

    def gone_keys(self) -> list[str]:
        """Files of their own with the keys that hold no row."""
        keys = pa.Table.from_arrays([self.gone], schema=KEYS)
        return self.writer.files.written(KEYS, keys.to_batches())


class LakeContent:
    """Versions of tables by their rows. Raises what `failing_as` names."""

    def __init__(self, place: LakeLocation, kind: LakeKind) -> None:
        self._place, self.kind = place, kind

    def files(self, head: LakeTable) -> LakeFiles:
        """Those of a table."""
        return LakeFiles(self._place, head)

    def read(self, head: LakeTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with these columns of them."""
        files = self.files(head)
        for each in self.kind.files(head):
            yield from files.read(each.name, schema)

    def append(
        self, head: LakeTable, schema: pa.Schema, rows: Iterable[pa.RecordBatch], end: int
    ) -> LakeTable:
        """More rows, whose keys are new."""
        return self.kind.replace(head, schema, [], self.files(head).written(schema, rows), end)

    def merge(
        self, head: LakeTable, schema: pa.Schema, changes: Iterable[KeyChanges], end: int
    ) -> LakeTable:
        """Rows put and rows gone, by key."""
        upsert = Upsert(self.files(head), schema, changes)
        return self.finish(head, schema, upsert, self.touched(head, *upsert.keys.bounds()), end)

    def touched(self, head: LakeTable, low: bytes, high: bytes) -> TouchedFiles:
        """The files of a version that keys between two bounds touch."""
        return touched(self.kind.files(head), low, high)

    def finish(
        self, head: LakeTable, schema: pa.Schema, upsert: Upsert, work: TouchedFiles, end: int
    ) -> LakeTable:
        """One commit of an upsert and of what is left of the files that it touches."""
        gone = leave(upsert.writer, schema, upsert.keys, work)
        return self.kind.replace(head, schema, gone, upsert.writer.close(), end)
