"""A large record in pieces: checked and checksummed while others have their turn."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import google_crc32c

from binlogd.errors import CorruptRecord, LogFailed
from binlogd.log import record
from binlogd.log.pointer import Place
from binlogd.log.scan import mismatch
from binlogd.log.stored import PIECE_BYTES, StoredRecord
from binlogd.ports import Disk

_STEP_BYTES = 16 * PIECE_BYTES
LARGE_BYTES = 8 << 20
"""A payload above it would hold up the event loop while it is checksummed in one go."""


async def header(payload: bytes) -> bytes:
    """The header of a record that is large."""
    checksum, view = 0, memoryview(payload)
    for at in range(0, len(payload), _STEP_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(view[at : at + _STEP_BYTES]))
        await asyncio.sleep(0)
    return record.header_for(len(payload), checksum)


async def stored(disk: Disk, path: Path, place: Place) -> StoredRecord:
    """The record at a place, read once to check it. Raises CorruptRecord or LogFailed."""
    try:
        file = await disk.open_read(path)
        head = await _read(disk, path, place, 0, record.HEADER_BYTES)
        expected = record.expected_checksum(head, length=place.length)
        if isinstance(expected, str):
            raise CorruptRecord(path, place.offset, expected)
        found, checksums = 0, array("I")
        for at in range(0, place.length, _STEP_BYTES):
            want = min(_STEP_BYTES, place.length - at)
            step = await _read(disk, path, place, record.HEADER_BYTES + at, want)
            if len(step) < want:
                reason = f"the file ends {place.length - at - len(step)} bytes too early"
                raise CorruptRecord(path, place.offset, reason)
            for begin in range(0, want, PIECE_BYTES):
                piece = step[begin : begin + PIECE_BYTES]
                found = google_crc32c.extend(found, piece)
                checksums.append(google_crc32c.value(piece))
    except FileNotFoundError as error:
        raise CorruptRecord(path, place.offset, "no such segment") from error
    except OSError as error:
        raise LogFailed(path, error) from error
    if found != expected:
        raise CorruptRecord(path, place.offset, mismatch(found, expected))
    return StoredRecord(file, path, place, checksums)


async def _read(disk: Disk, path: Path, place: Place, begin: int, length: int) -> bytes:
    (stretch,) = await disk.read(path, [(place.offset + begin, length)])
    return stretch
