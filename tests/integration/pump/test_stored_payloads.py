"""A large record that is left in its segment is read as it was checked, or not at all."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import google_crc32c
import pytest

from binlogd.errors import CorruptRecord, LogFailed
from binlogd.log import record
from binlogd.log.pointer import FileId, Place
from binlogd.log.stored import PIECE_BYTES, StoredRecord
from binlogd.pump.log import pieces
from tests.sim.disk import SimDisk

RNG = random.Random(5)
PATH = Path("/log/000000.vlog")
BEFORE = record.encode(b"another")
PAYLOAD = RNG.randbytes(3 * PIECE_BYTES + 1000)
PLACE = Place(FileId(0), len(BEFORE), len(PAYLOAD))


async def disk_with(content: bytes) -> SimDisk:
    disk = SimDisk(random.Random(1))
    await disk.make_directory(PATH.parent)
    await disk.write_whole(PATH, content)
    return disk


@pytest.mark.parametrize(("head", "begin"), [(b"", 0), (b"longer than that", 3), (b"x", 40)])
async def test_any_part_of_it_is_as_if_it_was_in_memory(head: bytes, begin: int) -> None:
    disk = await disk_with(BEFORE + record.encode(PAYLOAD) + record.encode(b"behind"))
    stored = (await pieces.stored(disk, PATH, PLACE)).with_head(head, begin)
    whole = head + PAYLOAD[begin:]
    assert (len(stored), bytes(stored), b"".join(stored.pieces())) == (len(whole), whole, whole)
    borders = [0, 1, len(head), PIECE_BYTES, 2 * PIECE_BYTES, len(whole)]
    for _ in range(300):
        first = max(0, RNG.choice(borders) + RNG.randint(-3, 3))
        end = max(0, RNG.choice(borders) + RNG.randint(-3, 3))
        assert stored.cut(first, end) == whole[first:end], (first, end)


async def test_it_is_checked_before_it_is_handed_out() -> None:
    whole = BEFORE + record.encode(PAYLOAD)
    disk = await disk_with(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptRecord, match="checksum mismatch"):
        await pieces.stored(disk, PATH, PLACE)
    for place, words in (
        (PLACE._replace(offset=1), "wrong magic"),
        (PLACE._replace(length=5), "the index 5"),
    ):
        with pytest.raises(CorruptRecord, match=words):
            await pieces.stored(disk, PATH, place)
    with pytest.raises(CorruptRecord, match="ends 7 bytes too early"):
        await pieces.stored(await disk_with(whole[:-7]), PATH, PLACE)
    with pytest.raises(CorruptRecord, match="no such segment"):
        await pieces.stored(disk, PATH.with_name("000001.vlog"), PLACE)


async def test_what_changes_after_it_was_checked_is_not_handed_out() -> None:
    disk = await disk_with(BEFORE + record.encode(PAYLOAD))
    stored = await pieces.stored(disk, PATH, PLACE)
    content = disk.files[PATH].content
    content[len(BEFORE) + record.HEADER_BYTES + PIECE_BYTES] ^= 4
    assert stored.cut(0, PIECE_BYTES) == PAYLOAD[:PIECE_BYTES]
    with pytest.raises(CorruptRecord, match="has changed behind byte 262144"):
        stored.cut(PIECE_BYTES - 1, PIECE_BYTES + 1)
    del content[-5:]
    with pytest.raises(CorruptRecord, match="has changed behind byte 786432"):
        bytes(stored.cut(3 * PIECE_BYTES, len(stored)))


class Unreadable:
    def read(self, begin: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")


def test_a_disk_that_does_not_read_is_named() -> None:
    checksums = array("I", [google_crc32c.value(b"abc")])
    stored = StoredRecord(Unreadable(), PATH, Place(FileId(0), 0, 3), checksums)
    with pytest.raises(LogFailed, match=r"000000\.vlog"):
        bytes(stored)
