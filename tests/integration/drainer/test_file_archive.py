"""Finished files of the file sink are packed and removed; a restart never misses one."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.archive import ArchiveOptions, FileArchive
from binlogd.drainer.files.log import first_ts_of, log_files
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.txn import Txn
from binlogd.errors import CorruptRelay
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tso import Tso
from tests.support.file_logs import recorded_txns
from tests.support.pb_reader import file_records, read_file_log

DAY_S = 86_400


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def txns() -> list[Txn]:
    return list(recorded_txns("types"))[:400]


@asynccontextmanager
async def running(disk: PosixDisk, root: Path, archive: ArchiveOptions) -> AsyncIterator[FileSink]:
    options = FileSinkOptions(max_file_bytes=20_000, archive=archive)
    sink = FileSink(root / "out", root / "savepoint", disk=disk, clock=WallClock(), options=options)
    try:
        await sink.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            yield sink
            await sink.close()
    finally:
        await sink.close()


async def written(disk: PosixDisk, root: Path, txns: Sequence[Txn]) -> None:
    """Written and saved, without touching finished files."""
    async with running(disk, root, ArchiveOptions()) as sink:
        await sink.submit(txns)
        await sink.flush()
        await sink.save(Checkpoint(txns[-1].commit_ts))


async def tidied(disk: PosixDisk, root: Path, archive: ArchiveOptions) -> FileArchive:
    """What the sink does with finished files once a savepoint is durable."""
    tidying = FileArchive(root / "out", archive, disk=disk, clock=WallClock())
    tidying.saved(log_files(os.listdir(root / "out"))[-1])
    await tidying.tidy()
    return tidying


def records(root: Path) -> list[bytes]:
    return [record.payload for _, record in file_records(root / "out")]


async def test_finished_files_are_packed_and_read_as_before(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns)
    before, names = records(tmp_path), os.listdir(tmp_path / "out")
    contents = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    await tidied(disk, tmp_path, ArchiveOptions(compresses=True))
    assert records(tmp_path) == before
    after = log_files(os.listdir(tmp_path / "out"))
    assert len(after) > 4
    for file in after[:-1]:
        packed = (tmp_path / "out" / file.name).read_bytes()
        plain = next(name for name in names if file.name.startswith(name))
        assert gzip.decompress(packed) == contents[plain], "nothing but gzip"
        assert first_ts_of(file.name) is not None
    assert not after[-1].name.endswith(".tar.gz")
    first_tss = [first_ts_of(file.name) for file in after[:-1]]
    told = [each.commit_ts for each in read_file_log(tmp_path / "out")]
    assert set(first_tss) <= set(told)


async def test_the_sink_itself_packs_behind_its_savepoint_and_goes_on_after_a_restart(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    third = len(txns) // 3
    packs = ArchiveOptions(compresses=True)
    for part in (txns[:third], txns[third : 2 * third], txns[2 * third :]):
        async with running(disk, tmp_path, packs) as sink:
            await sink.submit(part)
            await sink.flush()
            newest = log_files(os.listdir(tmp_path / "out"))[-1]
            await sink.save(Checkpoint(part[-1].commit_ts))
            async with asyncio.timeout(120):
                while not all(  # noqa: ASYNC110 - what happens to a file has no event
                    file.name.endswith(".tar.gz")
                    for file in log_files(os.listdir(tmp_path / "out"))
                    if file.number < newest.number
                ):
                    await asyncio.sleep(0.01)
    await written(disk, tmp_path / "plain", txns)
    assert records(tmp_path) == records(tmp_path / "plain")


async def test_before_a_savepoint_names_a_later_file_none_is_touched(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns)
    before = sorted(os.listdir(tmp_path / "out"))
    tidying = FileArchive(
        tmp_path / "out",
        ArchiveOptions(compresses=True, keep_s=0.001),
        disk=disk,
        clock=WallClock(),
    )
    await tidying.tidy()
    assert sorted(os.listdir(tmp_path / "out")) == before


async def test_files_go_when_they_are_older_than_the_retention_oldest_first(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns)
    files = log_files(os.listdir(tmp_path / "out"))
    now = WallClock().wall_ms() / 1000
    for number, file in enumerate(files):  # the third is young: what follows it stays
        days = 1.0 if number == 2 else 9.0
        os.utime(tmp_path / "out" / file.name, (now - days * DAY_S, now - days * DAY_S))
    await tidied(disk, tmp_path, ArchiveOptions(compresses=True, keep_s=7 * DAY_S))
    left = log_files(os.listdir(tmp_path / "out"))
    assert [file.number for file in left] == [file.number for file in files[2:]]
    age_s = now - (tmp_path / "out" / left[0].name).stat().st_mtime
    assert 0.9 * DAY_S < age_s < 1.1 * DAY_S, "packing does not make a file younger"
    await tidied(disk, tmp_path, ArchiveOptions(keep_s=0.5 * DAY_S))
    assert log_files(os.listdir(tmp_path / "out")) == files[-1:], "the newest is never removed"
    async with running(disk, tmp_path, ArchiveOptions()) as sink:
        assert sink.applied_ts() == txns[-1].commit_ts


async def test_a_packing_that_a_crash_cut_short_is_done_again(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns)
    before = records(tmp_path)
    first = log_files(os.listdir(tmp_path / "out"))[0]
    packed = f"{first.name}-{txns[0].commit_ts}.tar.gz"
    (tmp_path / "out" / f"{packed}.tmp").write_bytes(b"half")
    assert records(tmp_path) == before
    # renamed, and then the power went: both are there
    await tidied(disk, tmp_path, ArchiveOptions(compresses=True))
    names = os.listdir(tmp_path / "out")
    assert not any(name.endswith(".tmp") for name in names)
    (whole,) = [name for name in names if name.startswith(first.name)]
    (tmp_path / "out" / first.name).write_bytes(
        gzip.decompress((tmp_path / "out" / whole).read_bytes())
    )
    assert records(tmp_path) == before
    await tidied(disk, tmp_path, ArchiveOptions(compresses=True))
    assert first.name not in os.listdir(tmp_path / "out")
    assert records(tmp_path) == before


async def test_damage_in_a_packed_file_is_found(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns)
    await tidied(disk, tmp_path, ArchiveOptions(compresses=True))
    path = tmp_path / "out" / log_files(os.listdir(tmp_path / "out"))[1].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(CorruptRelay, match=path.name):
        records(tmp_path)


async def test_a_log_that_was_copied_packed_is_gone_on_with_in_a_new_file(
    disk: PosixDisk, tmp_path: Path, txns: list[Txn]
) -> None:
    await written(disk, tmp_path, txns[:100])
    files = log_files(os.listdir(tmp_path / "out"))
    newest = tmp_path / "out" / files[-1].name
    newest.with_name(f"{newest.name}-{Tso(1)}.tar.gz").write_bytes(
        gzip.compress(newest.read_bytes())
    )
    newest.unlink()
    (tmp_path / "savepoint").write_text(f"commitTS = {txns[99].commit_ts}\n")
    await written(disk, tmp_path, txns[99:])
    assert len(records(tmp_path)) == len({*map(bytes, records(tmp_path))})
    await written(disk, tmp_path / "plain", txns)
    assert records(tmp_path) == records(tmp_path / "plain")
