"""File-sink logs: the framing and names of `binlog-*` files, and reading them back.

Invariant. A record that is yielded is a record that was written: its CRC-32C matched, and its
length was compared with the file before anything was read. Nothing is skipped: the original's
readers search for the next record behind a bad one, these raise.

A record is `magic u32 · length u64 · payload · CRC-32C of the payload u32`, little-endian. The
length itself is not under the checksum: `tail.judge` tells a damaged one from a torn record.
Reading here blocks: it is for tools, tests and child processes.
Source: tidb-binlog pkg/binlogfile/{encoder,decoder,file}.go; docs/FORMAT.md, "File sink".
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import SEEK_END
from pathlib import Path
from typing import NamedTuple, Protocol

import google_crc32c

from binlogd.drainer.messages.pb import PbReader, PbTransaction
from binlogd.errors import Corrupt, CorruptRelay
from binlogd.log.tail import Ending, Framing, judged_in
from binlogd.tso import NO_TS, Tso

MAGIC = 471532804
HEAD = struct.Struct("<IQ")
OVERHEAD_BYTES = HEAD.size + 4
LOCK_NAME = ".lock"

# number; optionally the time of creation; optionally the first commit_ts and an extension
_NAME = re.compile(r"(?!.*\.tmp$)binlog-(\d{1,20})(?:-(\d{14})(?:-(\d+)((?:\.\w+)+)?)?)?")
COMPRESSED_SUFFIX = ".tar.gz"
"""What the original calls its compressed files, which are gzip and no tar."""
_PAYLOAD_BYTES_MAX = 1 << 31
"""Of a compressed file, whose length nobody knows; TiDB sends less."""


FRAMING = Framing(
    magic=MAGIC.to_bytes(4, "little"),
    head_bytes=HEAD.size,
    trailer_bytes=4,
    payload_bytes_max=_PAYLOAD_BYTES_MAX,
)


class LogFile(NamedTuple):
    """A file of the log by its name; ordered by its number."""

    number: int
    name: str


class Record(NamedTuple):
    """A record of one file: its place, and where the next one begins."""

    offset: int
    end: int
    payload: bytes


class Stop(NamedTuple):
    """Why there is no further record at `offset`; `is_short` if the bytes end inside a record."""

    offset: int
    reason: str
    is_short: bool
    needed_bytes: int
    is_at_end: bool = False
    """No byte is left: nothing is wrong."""


class Readable(Protocol):
    """An open file."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, less only at the end."""
        ...


def file_name(number: int, created_ms: int) -> str:
    """The name of a file made at a wall time; the time in it is UTC and tells nobody anything."""
    created = datetime.fromtimestamp(created_ms / 1000, UTC)
    return f"binlog-{number:016d}-{created:%Y%m%d%H%M%S}"


def log_files(names: Sequence[str]) -> list[LogFile]:
    """The files of a log among the names of a directory, in order.

    A file that is just being compressed is there twice; then it is the one that is not compressed.
    Raises CorruptRelay when one is missing between the first and the last, or one is there twice.
    """
    found = sorted(
        LogFile(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))
    )
    plain = {file.number for file in found if not file.name.endswith(COMPRESSED_SUFFIX)}
    files = [
        file
        for file in found
        if file.number not in plain or not file.name.endswith(COMPRESSED_SUFFIX)
    ]
    for position, file in enumerate(files):
        if file.number != files[0].number + position:
            raise CorruptRelay(
                file.name, 0, f"the file before it should be number {file.number - 1}, and is not"
            )
    return files


def is_log_file(name: str) -> bool:
    """Whether a name is that of a file of such a log."""
    return _NAME.fullmatch(name) is not None


def first_ts_of(name: str) -> Tso | None:
    """The first commit_ts of a file, where its name tells it: that of a compressed one does."""
    match = _NAME.fullmatch(name)
    return Tso(int(match[3])) if match and match[3] else None


def compressed_name(name: str, first_ts: Tso) -> str:
    """The name of a file once it is compressed."""
    return f"{name}-{first_ts}{COMPRESSED_SUFFIX}"


def encode_record(payload: bytes) -> bytes:
    """A payload as it stands in a file; never empty."""
    checksum = google_crc32c.value(payload).to_bytes(4, "little")
    return b"".join((HEAD.pack(MAGIC, len(payload)), payload, checksum))


def next_record(data: bytes, at: int) -> Record | Stop:
    """The record at an offset of some bytes of a file."""
    left = len(data) - at
    if left < HEAD.size:
        reason = "the file ends inside the head of a record"
        return Stop(at, reason, True, OVERHEAD_BYTES, is_at_end=left == 0)
    magic, size = HEAD.unpack_from(data, at)
    if magic != MAGIC:
        return Stop(at, f"a record begins with {magic:#010x} and not {MAGIC:#010x}", False, 0)
    if left < size + OVERHEAD_BYTES:
        missing = size + OVERHEAD_BYTES - left
        return Stop(
            at, f"the file ends {missing} bytes before a record does", True, size + OVERHEAD_BYTES
        )
    begin = at + HEAD.size
    payload = data[begin : begin + size]
    (expected,) = _CHECKSUM.unpack_from(data, begin + size)
    found = google_crc32c.value(payload)
    if expected != found:
        return Stop(at, f"expected crc32 {expected} but got {found}", False, 0)
    return Record(at, begin + size + 4, payload)


_CHECKSUM = struct.Struct("<I")


def read_file_log(directory: Path, *, after: Tso = NO_TS) -> Iterator[PbTransaction]:
    """The transactions of a log above a commit_ts, in commit order.

    Ends at the last whole record of the last file: a record that is still being written, or was cut
    by a crash, is not there yet. Raises CorruptRelay for everything else that does not verify.
    """
    reader = PbReader()
    for path, record in file_records(directory):
        try:
            transaction = reader.decode(record.payload)
        except Corrupt as error:
            raise CorruptRelay(path, record.offset, str(error)) from error
        if transaction.commit_ts > after:
            yield transaction


def file_records(directory: Path) -> Iterator[tuple[Path, Record]]:
    """Every record of a log with the file it stands in; ends and raises as `read_file_log`."""
    files = log_files([entry.name for entry in directory.iterdir()])
    for file in files:
        path = directory / file.name
        for record in records_of(path, is_last=file is files[-1]):
            yield path, record


def records_of(path: Path, *, is_last: bool) -> Iterator[Record]:
    """The records of one file, compressed or not, one at a time; ends and raises as
    `read_file_log`. Offsets in a compressed file are those of its content.

    A file that was compressed since its directory was read is found under its new name; one that
    was removed raises FileNotFoundError."""
    if path.name.endswith(COMPRESSED_SUFFIX):
        yield from _compressed_records(path)
        return
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        compressed = _compressed(path)
        if compressed is None:
            raise
        yield from _compressed_records(compressed)
        return
    with stream:
        size_bytes, at = stream.seek(0, SEEK_END), 0
        stream.seek(0)
        while at < size_bytes:
            answer = _record_from(stream, at, size_bytes)
            if isinstance(answer, Stop):
                judged = judged_in(stream, FRAMING, at=at, size=size_bytes)
                if is_last and judged.ending is Ending.TORN:
                    return
                raise CorruptRelay(path, at, judged.reason if answer.is_short else answer.reason)
            yield answer
            at = answer.end


def _compressed(path: Path) -> Path | None:
    begin = path.name + "-"
    names = (entry.name for entry in path.parent.iterdir())
    found = (each for each in names if each.startswith(begin) and is_log_file(each))
    return next((path.parent / each for each in found if each.endswith(COMPRESSED_SUFFIX)), None)


def _compressed_records(path: Path) -> Iterator[Record]:
    """A file is compressed when it is whole: nothing in it may be unfinished."""
    at = 0
    with gzip.open(path, "rb") as stream:
        while True:  # ends with the file, or with damage
            try:
                answer = _record_from(stream, at, at + _PAYLOAD_BYTES_MAX)
            except (OSError, EOFError, zlib.error) as error:
                raise CorruptRelay(path, at, f"the file does not decompress: {error}") from error
            if isinstance(answer, Stop):
                if answer.is_at_end:
                    return
                raise CorruptRelay(path, at, answer.reason)
            yield answer
            at = answer.end


def _record_from(stream: Readable, at: int, size_bytes: int) -> Record | Stop:
    head = stream.read(HEAD.size)
    answer = next_record(head, 0)
    if isinstance(answer, Record) or not answer.is_short or len(head) < HEAD.size:
        return answer
    if at + answer.needed_bytes > size_bytes:
        missing = at + answer.needed_bytes - size_bytes
        return Stop(at, f"the file ends {missing} bytes before a record does", True, 0)
    answer = next_record(head + stream.read(answer.needed_bytes - HEAD.size), 0)
    if isinstance(answer, Record):
        return Record(at, at + answer.end, answer.payload)
    return answer
