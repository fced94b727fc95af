"""`binlog-*` files, those of a file sink (`pb_binlog`) and the original's relay log; and binlogd's
own relay log, read without its writer: every chain that is in the directory.

The first two have the same names and the same framing; what a record is, its payload tells.
Compressed files are read as they are. Files of our relay log are mapped and never loaded whole. A
log that is being written may be read; its last group is there once it is whole.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from binlogd.drainer.files.log import first_ts_of, records_of
from binlogd.drainer.files.tail import head_at
from binlogd.drainer.messages import secondary
from binlogd.drainer.messages.named import NamedTransaction
from binlogd.drainer.messages.pb import PbReader, head_of
from binlogd.errors import Corrupt, CorruptRelay
from binlogd.relay.frame import FrameKind, FramePlace, RelayEntry, Whole, suffix_of
from binlogd.relay.reader import entries_of, scan
from binlogd.tidb.model import Job, job_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.raw import RawReader
from binlogd.tools.transaction import CommitWindow, FilePosition, Meter, Transaction
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import peek


def named_transactions(
    files: Sequence[Path], window: CommitWindow, meter: Meter, *, newest: Path
) -> Iterator[Transaction]:
    """The transactions of files that are given in order. Raises CorruptRelay, OSError.

    `newest` is the last file of the log: only it may end inside a record.
    """
    reader = PbReader()
    # a transaction never spans files, but a DDL may: its statements are records of one commit_ts
    wanted = _from_first_needed(files, window.start, lambda file: _first_ts(file, newest))
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
                    found = decoded(record.payload, reader)
                    place, size = FilePosition(file, record.offset), len(record.payload)
                    yield Transaction(commit_ts, NO_TS, place, size, found.ddl, found.rows)
            except Corrupt as error:
                raise CorruptRelay(file, record.offset, str(error)) from error
        meter.read_bytes += size_bytes - at


def decoded(payload: bytes, reader: PbReader) -> NamedTransaction:
    """A record of either kind. Raises Corrupt."""
    if secondary.is_secondary(payload):
        return secondary.decode(payload)
    return reader.named(payload)


def _size(file: Path) -> int:
    """For the progress that is shown: a file that has just been compressed has none."""
    return file.stat().st_size if file.exists() else 0


def _from_first_needed(
    files: Sequence[Path], start: Tso, begin_of: Callable[[Path], Tso | None]
) -> Sequence[Path]:
    """From the last file that begins before `start`; one without a record begins nowhere."""
    if start <= NO_TS + 1:
        return files
    first = 0
    for number, following in enumerate(files[1:], 1):
        begins = begin_of(following)
        if begins is not None and begins >= start:
            break
        first = number if begins is not None else first
    return files[first:]


def _first_ts(file: Path, newest: Path) -> Tso | None:
    """The first commit_ts of a file; None for one without a record."""
    first_ts = first_ts_of(file.name)
    if first_ts is not None:
        return first_ts
    for record in records_of(file, is_last=file == newest):
        return head_at(file, record).commit_ts
    return None


def relay_transactions(
    files: Sequence[Path], window: CommitWindow, meter: Meter
) -> Iterator[Transaction]:
    """The transactions of relay files, which are given in order. Raises CorruptRelay, OSError."""
    wanted = _from_first_needed(files, window.start, lambda file: _head_ts(file, files[-1]))
    meter.total_bytes += sum(file.stat().st_size for file in wanted)
    reader: RawReader | None = None
    last_ts = NO_TS
    for file in wanted:
        for frame, body in relay_frames(file, is_last=file == files[-1]):
            meter.read_bytes += frame.end - frame.at
            if frame.kind is not FrameKind.GROUP:
                if frame.kind is FrameKind.START or reader is None:
                    reader = _reader(body, wanted[wanted.index(file) :], files[-1])
                elif frame.commit_ts != last_ts:
                    reason = f"it continues {frame.commit_ts}, the file before ended at {last_ts}"
                    raise CorruptRelay(file, 0, reason)
                last_ts = frame.commit_ts
                continue
            assert reader is not None, "a head comes first"
            for entry in entries_of(file, frame.at, body):
                if entry.commit_ts > window.stop:
                    return
                found = _read(reader, entry, FilePosition(file, frame.at), window.start)
                if found is not None:
                    yield found
            last_ts = frame.commit_ts


def _read(
    reader: RawReader, entry: RelayEntry, place: FilePosition, start: Tso
) -> Transaction | None:
    job = job_from_json(entry.job) if entry.job else None
    payload = bytes(entry.payload)
    if entry.commit_ts < start:
        reader.pass_over(payload, job)
        return None
    start_ts = Tso(peek(payload).start_ts)
    return reader.read(start_ts, entry.commit_ts, payload, job, place=place)


def _reader(snapshot: bytes, following: Sequence[Path], newest: Path) -> RawReader:
    """Begins with a snapshot; rows may need to know a DDL whose turn comes later in the chain."""
    schema = SchemaTracker.from_snapshot(snapshot)
    schema.load(_jobs(following, newest))
    return RawReader(schema)


def _jobs(files: Sequence[Path], newest: Path) -> Iterator[Job]:
    for number, file in enumerate(files):
        for frame, body in relay_frames(file, is_last=file == newest):
            if frame.kind is FrameKind.START and number:
                return
            if frame.kind is FrameKind.GROUP:
                for entry in entries_of(file, frame.at, body):
                    if entry.job:
                        yield job_from_json(entry.job)


def _head_ts(file: Path, newest: Path) -> Tso | None:
    """What the head of a relay file says; None where it has none yet."""
    frames = relay_frames(file, is_last=file == newest)
    return next((frame.commit_ts for frame, _ in frames), None)


def relay_frames(file: Path, *, is_last: bool) -> Iterator[tuple[FramePlace, bytes]]:
    """The frames of one file with their bodies. Raises CorruptRelay, OSError."""
    suffix = suffix_of(file.name)
    if suffix is None:
        raise CorruptRelay(file, 0, "the name is not that of a relay file")
    with _mapped(file) as data:
        for frame in scan(file, data, suffix, is_last=is_last):
            yield frame, data[frame.begin : frame.end]


@contextmanager
def _mapped(file: Path) -> Iterator[Whole]:
    with file.open("rb") as stream:
        if file.stat().st_size == 0:  # what cannot be mapped
            yield b""
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
