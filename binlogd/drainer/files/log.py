"""File-sink logs: the framing and names of `binlog-*` files, and reading them back.

Invariant. A record that is yielded is a record that was written: its CRC-32C matched, and its
length was compared with the file before anything was read. Nothing is skipped: the original's
readers search for the next record behind a bad one, these raise.

The length of a record is under no checksum: `log.scan` tells a damaged one from a torn record.
Reading here blocks: it is for tools, tests and child processes.
Source: tidb-binlog pkg/binlogfile/{encoder,decoder,file}.go; docs/FORMAT.md, "File sink".
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import SEEK_END
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from binlogd.errors import CorruptRelay
from binlogd.log.drive import Reading, of_forward, of_stream
from binlogd.log.scan import Batch, Ending, Framing, scan
from binlogd.tso import Tso

MAGIC = 471532804
HEAD = struct.Struct("<IQ")
OVERHEAD_BYTES = HEAD.size + 4
LOCK_NAME = ".lock"

# number; optionally the time of creation; optionally the first commit_ts and an extension
_NAME = re.compile(r"(?!.*\.tmp$)binlog-(\d{1,20})(?:-(\d{14})(?:-(\d+)((?:\.\w+)+)?)?)?")
COMPRESSED_SUFFIX = ".tar.gz"
"""What the original calls its compressed files, which are gzip and no tar."""
CHUNK_BYTES = 256 << 10
"""Read at once: often only the first record is wanted."""
_PAYLOAD_BYTES_MAX = 1 << 31
"""TiDB sends less."""


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


def records_of(path: Path, *, is_last: bool) -> Iterator[Record]:
    """The records of one file, compressed or not, one at a time. Offsets in a compressed file are
    those of its content.

    Ends at the last whole record of the last file: a record that is still being written, or was cut
    by a crash, is not there yet. Raises CorruptRelay for everything else that does not verify.
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
        steps = scan(FRAMING, size=stream.seek(0, SEEK_END), chunk_bytes=CHUNK_BYTES)
        reading = Reading(steps, of_stream(stream))
        yield from records_in(reading.batches())
    if not reading.found.ends_well(is_last=is_last):
        raise CorruptRelay(path, reading.found.offset, reading.found.reason)


def records_in(batches: Iterable[Batch]) -> Iterator[Record]:
    """The records of some batches."""
    for batch in batches:
        for offset, payload in batch:
            yield Record(offset, offset + OVERHEAD_BYTES + len(payload), payload)


def _compressed(path: Path) -> Path | None:
    begin = path.name + "-"
    names = (entry.name for entry in path.parent.iterdir())
    found = (each for each in names if each.startswith(begin) and is_log_file(each))
    return next((path.parent / each for each in found if each.endswith(COMPRESSED_SUFFIX)), None)


def _compressed_records(path: Path) -> Iterator[Record]:
    """A file is compressed when it is whole: nothing in it may be unfinished."""
    at = 0
    if not path.stat().st_size:  # gzip takes it for the end of the one before
        raise CorruptRelay(path, 0, "the compressed file is empty")
    with gzip.open(path, "rb") as stream:
        steps = scan(FRAMING, size=None, chunk_bytes=CHUNK_BYTES)
        reading = Reading(steps, of_forward(stream.read))
        try:
            for record in records_in(reading.batches()):
                yield record
                at = record.end
        except (OSError, EOFError, zlib.error) as error:
            raise CorruptRelay(path, at, f"the file does not decompress: {error}") from error
    if reading.found.ending is not Ending.WHOLE:
        raise CorruptRelay(path, reading.found.offset, reading.found.reason)
