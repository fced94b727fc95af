"""Reading on behind bytes that are no record: what comes out, and what is said about the rest.

The first four are the original's own tests of its log files.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.log.drive import DiskReading
from binlogd.log.scan import Surveyed, Unreadable, resumes, survey
from binlogd.tso import Tso


@pytest.fixture
async def disk() -> AsyncIterator[PosixDisk]:
    posix = PosixDisk(threads=1)
    yield posix
    posix.close()


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def surveyed(
    disk: PosixDisk, path: Path, content: bytes
) -> tuple[list[tuple[int, bytes]], Surveyed]:
    put(path, content)
    reading = DiskReading(disk, path, survey(record.FRAMING, size=len(content)))
    return [each async for batch in reading.batches() for each in batch], reading.found


async def test_from_anywhere_the_next_record_is_found(tmp_path: Path, disk: PosixDisk) -> None:
    first, second = record.encode(b"first"), record.encode(b"second")
    content = first + bytes(100) + second
    (tmp_path / "x").write_bytes(content)
    for start in range(len(first), len(content)):
        steps = resumes(record.FRAMING, fault=start, size=len(content))
        found = await DiskReading(disk, tmp_path / "x", steps).ended()
        at = len(first) + 100
        assert found == (at if start < at else None)


@pytest.mark.parametrize("zeros", range(1, 10))
async def test_zero_bytes_hold_nothing(tmp_path: Path, disk: PosixDisk, zeros: int) -> None:
    found, told = await surveyed(disk, tmp_path / "x", bytes(zeros))
    assert found == []
    (lost,) = told.unreadable
    assert (lost.begin, lost.end) == (0, zeros)


async def test_a_record_cut_in_half_costs_itself_alone(tmp_path: Path, disk: PosixDisk) -> None:
    broken, good = record.encode(b"broken" * 10), record.encode(b"good")
    half = len(broken) // 2
    found, told = await surveyed(disk, tmp_path / "x", broken[:half] + good)
    assert found == [(half, b"good")]
    assert [(*lost[:2], lost.is_short) for lost in told.unreadable] == [(0, half, True)]


async def test_of_a_hundred_records_every_second_is_cut(tmp_path: Path, disk: PosixDisk) -> None:
    rng = random.Random(3)
    content, expected, lost = b"", [], []
    for number in range(100):
        encoded = record.encode(b"%d " % number + rng.randbytes(rng.randrange(1, 200)))
        if number % 2:
            expected.append((len(content), encoded[record.HEADER_BYTES :]))
        else:
            encoded = encoded[: -rng.randrange(1, len(encoded))]
            lost.append((len(content), len(content) + len(encoded)))
        content += encoded
    found, told = await surveyed(disk, tmp_path / "x", content)
    assert found == expected
    assert [(each.begin, each.end) for each in told.unreadable] == lost


async def test_every_flipped_bit_costs_one_record_and_is_named(
    tmp_path: Path, disk: PosixDisk
) -> None:
    """Sizes are such that a length with one flipped bit may point at the beginning of a record."""
    payloads = [b"%d" % number * 48 for number in range(5)]
    encoded = [record.encode(payload) for payload in payloads]
    whole = b"".join(encoded) + record.footer(Tso(9))
    for bit in range(8 * 5 * 64):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        found, told = await surveyed(disk, tmp_path / "x", bytes(damaged))
        hit = bit // 8 // 64
        assert found == [(64 * n, each) for n, each in enumerate(payloads) if n != hit]
        assert [lost[:2] for lost in told.unreadable] == [(64 * hit, 64 * hit + 64)]
        assert record.footer_ts(told.footer) == 9


async def test_records_inside_a_damaged_payload_are_not_the_logs(
    tmp_path: Path, disk: PosixDisk
) -> None:
    holder = record.encode(b"before" + record.encode(b"inner") + b"behind")
    damaged = bytearray(holder + record.encode(b"next"))
    damaged[len(holder) - 1] ^= 1
    found, told = await surveyed(disk, tmp_path / "x", bytes(damaged))
    assert found == [(len(holder), b"next")]
    assert isinstance(told.unreadable[0], Unreadable)
    assert told.unreadable[0][:2] == (0, len(holder))


async def test_a_stretch_across_the_borders_of_what_is_read_at_once(
    tmp_path: Path, disk: PosixDisk
) -> None:
    large = record.encode(bytes(9 << 20))
    small = record.encode(b"small")
    damaged = bytearray(large + small)
    damaged[5 << 20] ^= 1
    found, told = await surveyed(disk, tmp_path / "x", bytes(damaged))
    assert found == [(len(large), b"small")]
    assert told.unreadable[0][:2] == (0, len(large))
    # the same without a header to go by: the search crosses every border
    found, told = await surveyed(disk, tmp_path / "x", bytes((4 << 20) - 2) + small + small)
    assert [offset for offset, _ in found] == [(4 << 20) - 2, (4 << 20) - 2 + len(small)]
