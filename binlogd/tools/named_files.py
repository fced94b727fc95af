"""`binlog-*` files: those of a file sink (`pb_binlog`), and the original's relay log.

Both have the same names and the same framing; what a record is, its payload tells. Compressed files
are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from binlogd.drainer.files.log import Record, first_ts_of, records_of
from binlogd.drainer.messages import secondary
from binlogd.drainer.messages.named import NamedTransaction
from binlogd.drainer.messages.pb import PbReader, head_of
from binlogd.errors import Corrupt, CorruptRelay
from binlogd.tools.transaction import CommitWindow, FilePosition, Meter, Transaction
from binlogd.tso import NO_TS, Tso


def named_transactions(
    files: Sequence[Path], window: CommitWindow, meter: Meter, *, newest: Path
) -> Iterator[Transaction]:
    """The transactions of files that are given in order. Raises CorruptRelay, OSError.

    `newest` is the last file of the log: only it may end inside a record.
    """
    reader = PbReader()
    wanted = _needed(files, window, newest)
    meter.total_bytes += sum(map(_size, wanted))
    for file in wanted:
        size_bytes, at = _size(file), 0
        for record in records_of(file, is_last=file == newest):
            progress = min(record.end, size_bytes)
            meter.read_bytes += progress - at
            at = progress
            try:
                commit_ts = head_of(record.payload).commit_ts
                if commit_ts > window.stop:
                    return
                if commit_ts >= window.start:
                    yield _transaction(file, record, decoded(record.payload, reader))
            except Corrupt as error:
                raise CorruptRelay(file, record.offset, str(error)) from error
        meter.read_bytes += size_bytes - at


def decoded(payload: bytes, reader: PbReader) -> NamedTransaction:
    """A record of either kind. Raises Corrupt."""
    if secondary.is_secondary(payload):
        return secondary.decode(payload)
    return reader.named(payload)


def _transaction(file: Path, record: Record, found: NamedTransaction) -> Transaction:
    return Transaction(
        found.commit_ts,
        NO_TS,
        FilePosition(file, record.offset),
        len(record.payload),
        found.ddl,
        found.rows,
    )


def _size(file: Path) -> int:
    """For the progress that is shown: a file that has just been compressed has none."""
    return file.stat().st_size if file.exists() else 0


def _needed(files: Sequence[Path], window: CommitWindow, newest: Path) -> Sequence[Path]:
    """From the last file that begins at or before the start, up to one that begins behind the end.

    A transaction never spans files, but a DDL may: its statements are records of one commit_ts.
    """
    if window.start <= NO_TS + 1:
        return files
    first = 0
    for number, (_, following) in enumerate(pairwise(files)):
        begins = _first_ts(following, newest)
        if begins is not None and begins >= window.start:
            break
        first = number + 1 if begins is not None else first
    return files[first:]


def _first_ts(file: Path, newest: Path) -> Tso | None:
    """The first commit_ts of a file; None for one without a record."""
    told = first_ts_of(file.name)
    if told is not None:
        return told
    for record in records_of(file, is_last=file == newest):
        return head_of(record.payload).commit_ts
    return None
