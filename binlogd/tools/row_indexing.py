"""Makes the row index of a Pump's log (row_index.py), and reads it together with what is new.

Only what the shard's index has filed is written down: what lies behind may be cut away yet. What a
newer schema wrote than the history explains waits for the history.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from binlogd.binlog import BinlogType
from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.messages.pb_write import mysql_type
from binlogd.drainer.txn import TableChange
from binlogd.errors import CorruptPayload, CorruptRow
from binlogd.host.child import give, yield_to_others
from binlogd.log.directory import ShardDirectory, shards_below
from binlogd.log.drive import segment_batches
from binlogd.log.pointer import FileId, ValuePointer
from binlogd.log.record import end_of, without_footer
from binlogd.serving.answers import Indexing
from binlogd.tidb.columns import Value
from binlogd.tidb.kinds import SchemaState
from binlogd.tidb.model import ActionType, Job, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import RowDecoder
from binlogd.tools.pump_log import Joined, filed_to, joined
from binlogd.tools.raw import keys_of
from binlogd.tools.reading import Source, SourceKind, explained, known_jobs
from binlogd.tools.row_index import (
    ANY,
    UNKNOWN_KEYS,
    RowFrame,
    encode_frame,
    frames,
    key_of,
    rows_file,
    text_of,
)
from binlogd.tools.transaction import CommitWindow, FilePosition, Meter, Transaction
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire.joining import joined as joined_records
from binlogd.wire.peek import peek

FRAME_BYTES = 8 << 20
"""Of the log, about."""
FRAME_BYTES_MIN = 512 << 10
"""Less is not worth a frame while the segment grows."""
NEW_BYTES_MAX = 64 << 20
"""More that is not indexed is not worth it for one look-up."""
LARGE_BYTES = 16 << 20
"""A transaction of this size is not taken apart."""
_OF_INDEXES = frozenset({ActionType.ADD_INDEX, ActionType.DROP_INDEX, ActionType.RENAME_INDEX})
_OF_SEVERAL = frozenset({ActionType.RENAME_TABLES, ActionType.EXCHANGE_TABLE_PARTITION})


class Stretch(NamedTuple):
    """A part of a segment that no frame covers, from a record's beginning on."""

    fid: FileId
    begin: int
    end: int


def index_rows(data_dir: Path, *, bytes_max: int, new_bytes_min: int = FRAME_BYTES_MIN) -> int:
    """Writes what is missing of about so many bytes of the log; how many are still without.

    Raises Corrupt, OSError.
    """
    left = 0
    shards = shards_below(data_dir)
    source = Source(SourceKind.PUMP, data_dir, tuple(shards))
    jobs = known_jobs([source], None)
    for shard in shards:
        if not jobs or (filed := filed_to(shard)) is None:
            continue
        with _Files(shard) as files:
            for stretch in files.missing(filed):
                is_open = stretch.fid == filed.fid
                if is_open and stretch.end - stretch.begin < new_bytes_min:
                    continue
                after = files.fill(stretch, jobs, bytes_max)
                bytes_max -= after.begin - stretch.begin
                left += without_footer(after.end - after.begin)
    return left


def indexed(sources: Sequence[Source], jobs: Sequence[Job]) -> list[RowFrame] | None:
    """Frames of the whole log as it is now; None where too much of it is without an index.

    Raises Corrupt, OSError.
    """
    if any(source.kind is not SourceKind.PUMP for source in sources):
        return None
    found: list[RowFrame] = []
    missing: list[tuple[ShardDirectory, Stretch]] = []
    for shard in (each for source in sources for each in source.shards):
        if filed_to(shard) is None or shard.chosen:
            return None
        for fid, path in shard.segments().items():
            size, end = path.stat().st_size, 0
            for frame, _ in frames(_mapped(rows_file(shard.directory, fid))):
                if frame.head.end > size:
                    return None  # of another log
                found.append(frame)
                end = frame.head.end
            if without_footer(size - end):
                missing.append((shard, Stretch(fid, end, size)))
    if sum(each.end - each.begin for _, each in missing) > NEW_BYTES_MAX:
        return None
    for shard, stretch in missing:
        content, _ = _encoded(shard, stretch, jobs, newest_version=MAX_TS, at_most=NEW_BYTES_MAX)
        found += (frame for frame, _ in frames(memoryview(content), stretch.begin))
    return found


class _Files:
    """The files of one shard, for one writer. Raises BlockingIOError where there is another."""

    def __init__(self, shard: ShardDirectory) -> None:
        self._shard, self._segments = shard, shard.segments()
        self._directory = rows_file(shard.directory, FileId(0)).parent

    def __enter__(self) -> _Files:
        self._directory.mkdir(exist_ok=True)
        self._lock = os.open(self._directory, os.O_RDONLY)
        flock(self._lock, LOCK_EX | LOCK_NB)
        for path in self._directory.iterdir():
            if path.stem.isdigit() and int(path.stem) not in self._segments:
                path.unlink()  # its segment was deleted
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def missing(self, filed: ValuePointer) -> Iterator[Stretch]:
        """What is without a frame, in order; what is damaged in the files is cut off."""
        for fid, path in self._segments.items():
            size = path.stat().st_size if fid < filed.fid else filed.offset
            if fid > filed.fid:
                return
            file = rows_file(self._shard.directory, fid)
            begin = whole = 0
            for frame, after in frames(_mapped(file)):
                if frame.head.end > size:
                    break
                begin, whole = frame.head.end, after
            if file.exists() and file.stat().st_size != whole:
                os.truncate(file, whole)
            if without_footer(size - begin):
                yield Stretch(fid, begin, size)

    def fill(self, stretch: Stretch, jobs: Sequence[Job], bytes_max: int) -> Stretch:
        """Writes frames of about so many bytes; what is left of the stretch."""
        version = max(job.schema_version for job in jobs)
        stop = stretch.begin + bytes_max
        while without_footer(stretch.end - stretch.begin) and stretch.begin < stop:
            content, end = _encoded(
                self._shard, stretch, jobs, newest_version=version, at_most=FRAME_BYTES
            )
            if end == stretch.begin:
                break
            with rows_file(self._shard.directory, stretch.fid).open("ab") as file:
                file.write(content)
            stretch = stretch._replace(begin=end)
        return stretch


def _mapped(path: Path) -> memoryview:
    """The content of a file, b"" where there is none."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return memoryview(b"")


def _encoded(
    shard: ShardDirectory,
    stretch: Stretch,
    jobs: Sequence[Job],
    *,
    newest_version: int,
    at_most: int,
) -> tuple[bytes, int]:
    """A frame of the beginning of a stretch, and where that ends; nothing where a row is of a newer
    schema than `newest_version`. Raises Corrupt, OSError."""
    found, end = _joined(shard, stretch, at_most)
    commits = [each.commit_ts for each in found]
    window = CommitWindow(min(commits, default=NO_TS), max(commits, default=NO_TS))
    keys = _Keys(job for job in jobs if _is_open(job, window))
    entries: list[tuple[str, Tso]] = []
    for each in explained(found, jobs, is_whole=False):
        if each.raw is not None and each.raw.schema_version > newest_version:
            return b"", stretch.begin
        entries += ((key, each.commit_ts) for key in keys.of(each))
    content = encode_frame(stretch.begin, end, commits, keys.tables(), keys.ddls, entries)
    return content, end


def _joined(shard: ShardDirectory, stretch: Stretch, at_most: int) -> tuple[list[Joined], int]:
    """The transactions with a Commit in some megabytes of a log, in commit order, and where these
    end. Prewrites that stand before are looked up."""
    segments = shard.segments()
    path, is_last = segments[stretch.fid], stretch.fid == max(segments)
    found: list[Joined] = []
    before: list[Tso] = []
    prewrites: dict[int, tuple[bytes, FilePosition]] = {}
    end = stretch.begin
    for offset, payload in chain.from_iterable(
        segment_batches(path, start=stretch.begin, is_last=is_last)
    ):
        if offset >= stretch.end or end - stretch.begin >= at_most:
            break
        head, place = peek(payload), FilePosition(path, offset)
        if head.tp == BinlogType.PREWRITE:
            prewrites[head.start_ts] = payload, place
        elif head.tp == BinlogType.COMMIT and head.commit_ts:
            start_ts, commit_ts = Tso(head.start_ts), Tso(head.commit_ts)
            prewrite, at = prewrites.pop(start_ts, (None, None))
            if prewrite is None:
                before.append(commit_ts)
            else:
                whole = joined_records(start_ts, commit_ts, payload, prewrite, where=str(path))
                found.append(Joined(commit_ts, start_ts, whole, place, at))
        end = end_of(offset, payload)
    if before:
        window = CommitWindow(min(before), max(before))
        found += joined(shard, window, Meter(), only=sorted(set(before)))
    return sorted(found, key=lambda each: (each.commit_ts, each.start_ts)), end


# --- keys ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Indexed:
    """A table whose key columns are decoded, by id: name and type."""

    columns: Mapping[int, tuple[str, str]]
    decoder: RowDecoder


class _Keys:
    """The keys of transactions, and of which columns each table has them in all of them."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """`jobs` were open meanwhile."""
        self.ddls: list[Tso] = []
        self._jobs = [job for job in jobs if job.type not in _OF_INDEXES]
        self._indexed = PerTable(_indexed)
        self._columns: dict[tuple[str, str], set[str]] = {}
        self._of_ddls: set[tuple[str, str]] = set()

    def tables(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """As `FrameHead` has them."""
        for database, table in sorted(self._of_ddls | self._columns.keys()):
            yield database, table, tuple(sorted(self._columns.get((database, table), ())))

    def of(self, transaction: Transaction) -> set[str]:
        """The keys of one."""
        raw = transaction.raw
        assert raw is not None, "a Pump's log has the bytes"
        if transaction.ddl is not None:
            self.ddls.append(transaction.commit_ts)
            about = name_of(transaction.ddl)
            self._of_ddls.add(about)
            return {key_of(*about), *([ANY] if raw.job is None else [])}
        found, is_large = {ANY} if raw.unexplained else set(), transaction.size_bytes > LARGE_BYTES
        at = CommitWindow(transaction.commit_ts, transaction.commit_ts)
        changing = {
            0 if job.type in _OF_SEVERAL else job.table_id
            for job in self._jobs
            if _is_open(job, at)
        }
        if changing and not changing.isdisjoint({0, *(each.table.info.id for each in raw.tables)}):
            found.add(ANY)
        for change in raw.tables:
            name = change.table.database, change.table.info.name
            of_table = self._indexed.of(change.table)
            names = {column for column, _ in of_table.columns.values()}
            self._columns[name] = self._columns.get(name, names) & names
            found.add(key_of(*name))
            try:
                for values in _rows(change, of_table.decoder) if names and not is_large else ():
                    found |= {
                        key_of(*name, column, text_of(values[each], type_))
                        for each, (column, type_) in of_table.columns.items()
                        if each in values
                    }
            except (CorruptRow, CorruptPayload):
                found.add(ANY)
            if is_large:
                found.add(key_of(*name, UNKNOWN_KEYS))
        return found


def _indexed(table: TableAt) -> _Indexed:
    keys = {name for key in keys_of(table.info) for name in key}
    columns = {
        each.id: (each.name.lower(), mysql_type(each))
        for each in table.info.columns
        if each.name in keys and each.is_public and not each.is_virtual
    }
    only = tuple(
        each if each.id in columns else replace(each, state=SchemaState.NONE)
        for each in table.info.columns
    )
    narrow = replace(table, info=replace(table.info, columns=only))
    return _Indexed(columns, RowDecoder(narrow))


def _is_open(job: Job, window: CommitWindow) -> bool:
    """Whether its binlog may stand before or behind these: what rows look like then says the binlog
    alone, which may be in another log."""
    return job.start_ts <= window.stop and window.start <= job.finished_ts


def _rows(change: TableChange, decoder: RowDecoder) -> Iterator[Mapping[int, Value]]:
    """The key values of each row, before and after. Raises CorruptRow."""
    for row in change.mutation.inserted:
        yield decoder.insert(row)
    for row in change.mutation.updated:
        yield from decoder.update(row)
    for row in change.mutation.deleted:
        yield decoder.delete(row)


def main() -> int:
    """One round; CANNOT and a sentence on standard error when it cannot."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Indexing)
    yield_to_others(asked.memory_bytes_max)
    os.nice(19)
    directory, bytes_max = Path(asked.data_dir), asked.bytes_max
    return give(lambda: msgspec.json.encode(index_rows(directory, bytes_max=bytes_max)))


if __name__ == "__main__":
    sys.exit(main())
