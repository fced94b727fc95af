"""A large record in pieces: checked while it is read, checksummed while others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import google_crc32c

from binlogd.errors import CorruptRecord, LogFailed
from binlogd.log import record
from binlogd.log.pointer import Place
from binlogd.log.scan import mismatch
from binlogd.ports import Disk

_PIECE_BYTES = 4 << 20
LARGE_BYTES = 8 << 20
"""A payload above it would hold up the event loop while it is checksummed in one go."""


async def header(payload: bytes) -> bytes:
    """The header of a record that is large."""
    checksum, view = 0, memoryview(payload)
    for at in range(0, len(payload), _PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(view[at : at + _PIECE_BYTES]))
        await asyncio.sleep(0)
    return record.header_for(len(payload), checksum)


async def of_payload(disk: Disk, path: Path, place: Place) -> AsyncGenerator[bytes, None]:
    """The payload of the record at a place. Only when it has ended has the payload been checked.

    Raises CorruptRecord or LogFailed.
    """
    expected = record.expected_checksum(
        await _read(disk, path, place, 0, record.HEADER_BYTES), length=place.length
    )
    if isinstance(expected, str):
        raise CorruptRecord(path, place.offset, expected)
    found = 0
    for at in range(0, place.length, _PIECE_BYTES):
        want = min(_PIECE_BYTES, place.length - at)
        piece = await _read(disk, path, place, record.HEADER_BYTES + at, want)
        if len(piece) < want:
            reason = f"the file ends {place.length - at - len(piece)} bytes too early"
            raise CorruptRecord(path, place.offset, reason)
        found = google_crc32c.extend(found, piece)
        yield piece
        del piece
    if found != expected:
        raise CorruptRecord(path, place.offset, mismatch(found, expected))


async def _read(disk: Disk, path: Path, place: Place, begin: int, length: int) -> bytes:
    try:
        (stretch,) = await disk.read(path, [(place.offset + begin, length)])
    except FileNotFoundError as error:
        raise CorruptRecord(path, place.offset, "no such segment") from error
    except OSError as error:
        raise LogFailed(path, error) from error
    return stretch
