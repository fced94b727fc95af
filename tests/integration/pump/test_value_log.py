"""The value log on real files: rotation, reopening, damage, limits; and the Go Pump's own files."""

from __future__ import annotations

import resource
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.errors import ConfigError, CorruptRecord, LogFailed
from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.log.index_file import FILES, Segment
from binlogd.log.pointer import FIRST, FileId, Place, ValuePointer
from binlogd.pump.caretaker import confirm
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.tail import Acknowledged
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.peek import peek
from tests.support.appending import NOTHING_KNOWN, appended, recovered_log
from tests.support.artefacts import ARTEFACTS
from tests.support.pump_world import ROOMY, at, commit, posix_world, prewrite, pulled, written

GOLDEN = ARTEFACTS / "pump_value_ddl.tar.gz"


@pytest.fixture
async def disk() -> AsyncIterator[PosixDisk]:
    posix = PosixDisk(threads=2)
    yield posix
    posix.close()


@asynccontextmanager
async def log_in(
    directory: Path,
    disk: PosixDisk,
    limits: LogLimits | None = None,
    acknowledged: Acknowledged = NOTHING_KNOWN,
    known: Sequence[Segment] = (),
) -> AsyncIterator[tuple[ValueLog, list[tuple[ValuePointer, bytes]]]]:
    """An open log, and what its recovery found."""
    opened, found = await recovered_log(directory, disk, limits, acknowledged, known)
    try:
        yield opened, found
    finally:
        await opened.close()


def payload(ts: int, size: int = 100) -> bytes:
    return prewrite_binlog(Tso(ts), prewrite_value=b"v" * size)


async def write(value_log: ValueLog, timestamps: Sequence[int], size: int = 100) -> list[Place]:
    """One group for each, because a segment ends between groups only."""
    places = []
    for ts in timestamps:
        written = payload(ts, size)
        ((fid, offset),) = await appended(value_log, [written], [Tso(ts)])
        places.append(Place(fid, offset, len(written)))
    return places


def segment_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- the Go Pump's files -------------------------------------------------------------------


@pytest.fixture
def go_values(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize(("pump", "records"), [("pump0", 1029), ("pump1", 1027)])
async def test_a_go_pumps_segment_is_read_and_written_again_byte_for_byte(
    go_values: Path, disk: PosixDisk, pump: str, records: int
) -> None:
    source = go_values / pump / "value"
    original = (source / "000000.vlog").read_bytes()
    async with log_in(source, disk) as (value_log, found):
        assert len(found) == records
        assert next(iter(value_log.segments)).is_sealed
        assert segment_files(source) == ["000000.vlog", "000001.vlog"]
        places = [Place(*pointer, len(each)) for pointer, each in found]
        assert await value_log.segments.read(places) == [each for _, each in found]
    index_ts = []
    for _, each in found:
        tp, start_ts, commit_ts, _ = peek(each)
        index_ts.append(Tso(start_ts if tp == BinlogType.PREWRITE else commit_ts))
    copy = go_values / "copy"
    async with log_in(copy, disk) as (value_log, _):
        for begin in range(0, records, 100):
            batch = slice(begin, begin + 100)
            await appended(value_log, [each for _, each in found][batch], index_ts[batch])
    assert (copy / "000000.vlog").read_bytes() == original


async def test_a_go_pumps_segment_has_no_byte_that_may_flip(
    go_values: Path, disk: PosixDisk
) -> None:
    source = go_values / "pump0" / "value"
    path = source / "000000.vlog"
    original = path.read_bytes()
    for position in [*range(0, len(original), 997), len(original) - 12, len(original) - 1]:
        damaged = bytearray(original)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        # Bits of max_ts are protected by what is remembered of the segment, not by themselves.
        known = [Segment(FileId(0), True, len(original))]
        upto = ValuePointer(FileId(0), len(original))
        opened = await Segments.open(source, disk=disk, known=known)
        acknowledged = Acknowledged(upto=upto, same_boot=False)
        records = opened.recover(FIRST, acknowledged, LogLimits().flush_bytes_max)
        if len(original) - 12 <= position < len(original) - 4:
            assert len([each async for _, batch in records for each in batch]) == 1029
        else:
            with pytest.raises(CorruptRecord, match=r"000000\.vlog at offset \d+"):
                async for _ in records:
                    pass


# --- rotation and reopening ----------------------------------------------------------------


@pytest.mark.parametrize(("batch", "segment_bytes"), [(1, 1 << 20), (128, 1 << 20), (1024, 3000)])
async def test_every_record_reads_back(
    tmp_path: Path, disk: PosixDisk, batch: int, segment_bytes: int
) -> None:
    limits = LogLimits(segment_bytes_max=segment_bytes, flush_bytes_max=2000)
    async with log_in(tmp_path, disk, limits) as (value_log, _):
        places = await write(value_log, range(1, batch + 1))
        expected = [payload(ts) for ts in range(1, batch + 1)]
        assert await value_log.segments.read(places) == expected
        middle = places[len(places) // 2]
        scan = value_log.segments.scan(ValuePointer(middle.fid, middle.offset))
        tail = [each async for _, batch in scan for _, each in batch]
        assert tail == expected[len(places) // 2 :]


async def test_records_survive_many_lives(tmp_path: Path, disk: PosixDisk) -> None:
    limits = LogLimits(segment_bytes_max=100)
    places: list[Place] = []
    for life in range(10):
        async with log_in(tmp_path, disk, limits) as (value_log, found):
            assert [pointer for pointer, _ in found] == [place[:2] for place in places]
            places += await write(value_log, [3 * life + 1, 3 * life + 2, 3 * life + 3])
    async with log_in(tmp_path, disk, limits) as (value_log, _):
        assert await value_log.segments.read(places) == [payload(ts) for ts in range(1, 31)]


async def test_a_segment_over_its_limit_is_sealed_with_its_largest_timestamp(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk, LogLimits(segment_bytes_max=300)) as (value_log, _):
        await write(value_log, [7, 9, 8, 1])
        sealed, growing = value_log.segments
        assert (sealed.is_sealed, sealed.max_ts, growing.is_sealed) == (True, 9, False)
        assert record.footer_ts((tmp_path / "000000.vlog").read_bytes()[-12:]) == 9
        assert sealed.size_bytes == (tmp_path / "000000.vlog").stat().st_size
        await value_log.segments.measure(FileId(0))
        path = value_log.segments.path(FileId(0))
        measured, _ = value_log.segments
        assert measured.checksum == await disk.checksum(path, sealed.size_bytes)


async def test_a_small_segment_is_left_open_and_a_large_one_sealed_at_close(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk) as (value_log, _):
        await write(value_log, [1])
    assert record.footer_ts((tmp_path / "000000.vlog").read_bytes()[-12:]) is None
    async with log_in(tmp_path, disk) as (value_log, found):
        assert len(found) == 1
        await write(value_log, [2], size=60_000)
    assert record.footer_ts((tmp_path / "000000.vlog").read_bytes()[-12:]) == 2
    async with log_in(tmp_path, disk):
        assert segment_files(tmp_path) == ["000000.vlog", "000001.vlog"]


async def test_foreign_files_are_left_alone_and_bad_names_refused(
    tmp_path: Path, disk: PosixDisk
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    async with log_in(tmp_path, disk):
        pass
    assert segment_files(tmp_path) == ["000000.vlog", "notes.txt"]
    (tmp_path / "xyz.vlog").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"parse file xyz\.vlog err"):
        async with log_in(tmp_path, disk):
            pass


# --- torn and damaged ----------------------------------------------------------------------


async def test_a_torn_record_is_cut_whatever_is_left_of_it(tmp_path: Path, disk: PosixDisk) -> None:
    async with log_in(tmp_path, disk) as (value_log, _):
        _, last = await write(value_log, [1, 2], size=20)
    path = tmp_path / "000000.vlog"
    whole = path.read_bytes()
    for size in range(last.offset + 1, len(whole)):
        path.write_bytes(whole[:size])
        async with log_in(tmp_path, disk) as (_, found):
            assert [each for _, each in found] == [payload(1, 20)]
        assert path.stat().st_size == last.offset


async def test_no_flipped_bit_of_an_acknowledged_log_goes_unseen(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk) as (value_log, _):
        await write(value_log, [1, 2, 3], size=20)
        end = value_log.segments.end
    path = tmp_path / "000000.vlog"
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in (0, 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            for same_boot in (True, False):
                with pytest.raises(CorruptRecord, match="unreadable") as caught:
                    async with log_in(
                        tmp_path, disk, acknowledged=Acknowledged(upto=end, same_boot=same_boot)
                    ):
                        pass
                assert caught.value.offset <= position < caught.value.offset + len(whole) // 3
            assert path.read_bytes() == damaged


async def test_a_torn_payload_may_hold_whole_records(tmp_path: Path, disk: PosixDisk) -> None:
    """Somebody keeps value logs in a column: what the torn record holds is not the log's."""
    async with log_in(tmp_path, disk) as (value_log, _):
        await write(value_log, [1], size=20)
        torn = value_log.segments.end.offset
        inner = record.encode(payload(7, 30)) + record.encode(payload(8, 30))
        holder = prewrite_binlog(Tso(2), prewrite_value=b"before " + inner + b" and behind")
        await appended(value_log, [holder], [Tso(2)])
    path = tmp_path / "000000.vlog"
    whole = path.read_bytes()
    exactly = {whole.index(inner) + len(inner) // 2, whole.index(inner) + len(inner)}
    for same_boot in (True, False):
        upto = Acknowledged(upto=ValuePointer(FileId(0), torn), same_boot=same_boot)
        for size in range(torn + 1, len(whole)):
            path.write_bytes(whole[:size])
            if size in exactly:  # whole records up to the very end: rather a damaged length
                with pytest.raises(CorruptRecord):
                    async with log_in(tmp_path, disk, acknowledged=upto):
                        pass
                continue
            async with log_in(tmp_path, disk, acknowledged=upto) as (_, found):
                assert [each for _, each in found] == [payload(1, 20)]
            assert path.stat().st_size == torn


async def test_what_is_stored_is_read_whatever_the_limit_is_now(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with posix_world(tmp_path) as world:
        async with world.pump() as pump:
            await written(pump, prewrite(1, 5_000), commit(1, 2))
        async with world.pump(replace(ROOMY, record_bytes_max=1_000)) as pump:
            assert len(await pulled(pump, upto=at(2))) == 1
        (tmp_path / "pump" / "shard-0" / FILES[0]).unlink()
        async with world.pump(replace(ROOMY, record_bytes_max=1_000)) as pump:
            assert len(await pulled(pump, upto=at(2))) == 1


async def test_damage_says_what_is_unreadable_and_where_it_goes_on(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk) as (value_log, _):
        _, second, third = await write(value_log, [1, 2, 3])
        damaged = bytearray((tmp_path / "000000.vlog").read_bytes())
        damaged[second.offset + 40] ^= 1
        (tmp_path / "000000.vlog").write_bytes(damaged)
        with pytest.raises(CorruptRecord) as caught:
            await value_log.segments.read([second])
        assert (caught.value.path, caught.value.offset) == (
            tmp_path / "000000.vlog",
            second.offset,
        )
        with pytest.raises(CorruptRecord) as caught:
            async for _ in value_log.segments.scan(FIRST):
                pass
    unreadable = third.offset - second.offset
    assert f"{unreadable} bytes are unreadable" in str(caught.value)
    assert f"whole records go on at offset {third.offset}" in str(caught.value)


async def test_after_a_power_cut_whole_records_behind_a_hole_are_torn_too(
    tmp_path: Path, disk: PosixDisk
) -> None:
    """The disk may have written the last append in any order; the process could not."""
    async with log_in(tmp_path, disk) as (value_log, _):
        await write(value_log, [1])
        end = value_log.segments.end
        await write(value_log, [2, 3, 4])
    path = tmp_path / "000000.vlog"
    holed = bytearray(path.read_bytes())
    holed[end.offset : end.offset + 30] = bytes(30)
    path.write_bytes(holed)
    with pytest.raises(CorruptRecord):
        async with log_in(tmp_path, disk, acknowledged=Acknowledged(upto=end, same_boot=True)):
            pass
    powered_off = Acknowledged(upto=end, same_boot=False)
    with pytest.raises(CorruptRecord):
        async with log_in(tmp_path, disk, LogLimits(flush_bytes_max=50), powered_off):
            pass
    async with log_in(tmp_path, disk, acknowledged=powered_off) as (_, found):
        assert [each for _, each in found] == [payload(1)]


async def test_no_power_cut_takes_more_than_the_last_append(
    tmp_path: Path, disk: PosixDisk
) -> None:
    """What goes beyond it was acknowledged: it is not cut away because nothing behind it reads."""
    limits = LogLimits(flush_bytes_max=300)
    async with log_in(tmp_path, disk, limits) as (value_log, _):
        await write(value_log, [1])
        marked = Acknowledged(upto=value_log.segments.end, same_boot=False)
        lost, last = await write(value_log, [2, 3])
        await write(value_log, [4], size=500)
    path = tmp_path / "000000.vlog"
    whole = path.read_bytes()

    path.write_bytes(whole[: lost.offset] + bytes(len(whole) - lost.offset))
    with pytest.raises(CorruptRecord, match="up to the end of the segment are unreadable"):
        async with log_in(tmp_path, disk, limits, marked):
            pass
    assert path.stat().st_size == len(whole)
    torn = last.offset + record.HEADER_BYTES + last.length  # a record longer than other appends
    for kept in (record.HEADER_BYTES, record.HEADER_BYTES + 200):
        path.write_bytes(whole[: torn + kept] + bytes(len(whole) - torn - kept))
        async with log_in(tmp_path, disk, limits, marked) as (_, found):
            assert [each for _, each in found] == [payload(1), payload(2), payload(3)]
        assert path.stat().st_size == torn


async def test_a_log_shorter_than_what_was_acknowledged_is_damaged(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk) as (value_log, _):
        await write(value_log, [1, 2])
        acknowledged = Acknowledged(upto=value_log.segments.end, same_boot=True)
    path = tmp_path / "000000.vlog"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecord, match="acknowledged up to offset"):
        async with log_in(tmp_path, disk, acknowledged=acknowledged):
            pass
    path.unlink()
    with pytest.raises(CorruptRecord, match="acknowledged up to offset"):
        async with log_in(tmp_path, disk, acknowledged=acknowledged):
            pass


async def test_a_sealed_segment_is_held_to_what_is_remembered(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk, LogLimits(segment_bytes_max=100)) as (value_log, _):
        await write(value_log, [1, 2])
        sealed, _ = value_log.segments
        await confirm(value_log.segments, [sealed])
        path = tmp_path / "000000.vlog"
        whole = path.read_bytes()
        for bit in range(64):  # of max_ts: too small, it would be deleted too early
            damaged = bytearray(whole)
            damaged[len(whole) - 12 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(CorruptRecord, match="not as remembered"):
                await confirm(value_log.segments, [sealed])
        path.write_bytes(whole[:-1] + b"x")
        with pytest.raises(CorruptRecord, match="not as remembered"):
            await confirm(value_log.segments, [sealed])
        path.write_bytes(whole)
    for bit in range(64):  # too large, time would go on from there
        damaged = bytearray(whole)
        damaged[len(whole) - 12 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptRecord, match="the footer says"):
            async with log_in(tmp_path, disk, known=[sealed]):
                pass
    path.write_bytes(whole)
    async with log_in(tmp_path, disk, known=[sealed]):
        pass
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CorruptRecord, match="sealed with"):
        async with log_in(tmp_path, disk, known=[sealed]):
            pass
    path.unlink()
    with pytest.raises(CorruptRecord, match="the file is missing"):
        async with log_in(tmp_path, disk, known=[sealed]):
            pass


async def test_deleted_segments_are_gone_and_left_overs_follow(
    tmp_path: Path, disk: PosixDisk
) -> None:
    async with log_in(tmp_path, disk, LogLimits(segment_bytes_max=100)) as (value_log, _):
        places = await write(value_log, [1, 2, 3])
        await value_log.segments.delete([FileId(0)])
        with pytest.raises(CorruptRecord, match="no such segment"):
            await value_log.segments.read(places)
        assert await value_log.segments.read(places[1:]) == [payload(2), payload(3)]
    opened = await Segments.open(tmp_path, disk=disk, first_fid=FileId(2))
    assert [segment.fid for segment in opened] == [2]
    assert "000001.vlog" not in segment_files(tmp_path)


# --- a disk that fails ---------------------------------------------------------------------


async def test_a_write_that_hits_a_limit_is_undone_and_the_log_goes_on(
    tmp_path: Path, disk: PosixDisk
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with log_in(tmp_path, disk) as (value_log, _):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, hard))
        try:
            places = []
            for ts in range(1, 20):
                places += await write(value_log, [ts], size=1_000)
            with pytest.raises(LogFailed, match="see that its disk works and has room"):
                await write(value_log, [20], size=1_000)
            # What got there of the record is cut at once: nothing unacknowledged is left behind.
            assert (tmp_path / "000000.vlog").stat().st_size == value_log.segments.end.offset
            with pytest.raises(LogFailed):
                await write(value_log, [50], size=30_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        places += await write(value_log, [60], size=1_000)
        assert places[-1].fid > 0  # the poisoned segment is left behind
        expected = [payload(ts, 1_000) for ts in [*range(1, 20), 60]]
        assert await value_log.segments.read(places) == expected
    async with log_in(tmp_path, disk) as (_, found):
        assert [each for _, each in found] == expected
