"""The file sink on real files: each transaction once, whatever crashed, and never ahead."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.log import encode_record, log_files
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.messages.pb_write import ddl_binlog
from binlogd.drainer.pending import PendingLimits
from binlogd.drainer.txn import Ddl, Dml, Skip, TableChange, Txn
from binlogd.errors import ConfigError, CorruptRelay, DownstreamWentBack, LogFailed, RowMismatch
from binlogd.host.disk import PosixAppendFile, PosixDisk
from binlogd.tidb.encode import encode_insert
from binlogd.tidb.model import Column, FieldType, Table, TableAt, Tp, job_from_json
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.sim.disk import SimDisk
from tests.support.pb_reader import file_records, read_file_log

TABLE = Table(
    7, "t", (Column(1, "id", 0, FieldType(Tp.LONG)), Column(2, "v", 1, FieldType(Tp.BLOB)))
)
AT = TableAt("d", TABLE, 3, None, {}, may_lack_columns=False)


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


def dml(ts: int, *ids: int, size: int = 3) -> Dml:
    rows = [encode_insert(TABLE, {1: each, 2: b"v" * size}, handle=each) for each in ids or (ts,)]
    mutation = Mutation(TABLE.id, rows, [], [], bytes(len(rows)))
    return Dml(Tso(ts - 1), Tso(ts), 3, (TableChange(AT, mutation),))


def ddl(ts: int, *further: str, is_skipped: bool = False) -> Ddl:
    job = job_from_json(b'{"id":9,"type":3}')
    return Ddl(
        Tso(ts - 1), Tso(ts), 4, job, f"CREATE TABLE t{ts}", "d", f"t{ts}", is_skipped, further
    )


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


class Place:
    """Where a sink writes, through as many lives as a test wants."""

    def __init__(self, disk: PosixDisk, root: Path) -> None:
        self.disk, self.root = disk, root
        self.max_file_bytes = 1 << 30

    def sink(self) -> FileSink:
        return FileSink(
            self.root / "out",
            self.root / "savepoint",
            disk=self.disk,
            clock=StoppedClock(),
            options=FileSinkOptions(
                max_file_bytes=self.max_file_bytes,
                limits=PendingLimits(500, 200, queued_bytes=1000),
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[FileSink, Checkpoint | None]]:
        sink = self.sink()
        try:
            checkpoint = await sink.open()
            async with asyncio.TaskGroup() as group:
                group.create_task(sink.run())
                yield sink, checkpoint
                await sink.close()
        finally:
            await sink.close()

    async def write(self, txns: Sequence[Txn], *, save: int = 0) -> None:
        async with self.running() as (sink, _):
            await sink.submit(txns)
            await sink.flush()
            if save:
                await sink.save(Checkpoint(Tso(save)))

    def commit_tss(self) -> list[int]:
        return [transaction.commit_ts for transaction in read_file_log(self.root / "out")]

    def files(self) -> list[Path]:
        directory = self.root / "out"
        return [directory / each.name for each in log_files(os.listdir(directory))]


@pytest.fixture
def place(disk: PosixDisk, tmp_path: Path) -> Place:
    return Place(disk, tmp_path)


async def test_transactions_come_back_in_order_with_their_rows(place: Place) -> None:
    await place.write([dml(5, 1, 2), Skip(Tso(6)), ddl(7), dml(8, 3), ddl(9, is_skipped=True)])
    first, second, third = read_file_log(place.root / "out")
    assert [event.columns["id"].value for event in first.events] == [1, 2]
    assert first.events[0].columns["v"].value == b"vvv"
    assert (second.commit_ts, second.ddl) == (7, "use `d`; CREATE TABLE t7;")
    assert (third.commit_ts, third.events[0].table) == (8, "t")


async def test_progress_counts_what_leaves_no_record(place: Place) -> None:
    async with place.running() as (sink, checkpoint):
        assert checkpoint is None
        await sink.submit([dml(5), Skip(Tso(6)), ddl(7, is_skipped=True)])
        await sink.flush()
        assert sink.applied_ts() == 7
        await sink.submit([Skip(Tso(9))])
        await sink.flush()
        statistics = sink.statistics()
        assert (statistics.applied_ts, statistics.txns_applied, statistics.rows_applied) == (
            9,
            1,
            1,
        )
        await sink.save(Checkpoint(Tso(9), consistent=True, schema_version=4))
    async with place.running() as (sink, checkpoint):
        assert checkpoint == Checkpoint(Tso(9), consistent=True, schema_version=4)
        assert sink.applied_ts() == 9


async def test_files_rotate_behind_the_record_that_fills_them(place: Place) -> None:
    place.max_file_bytes = 200
    await place.write([dml(ts) for ts in range(1, 30)])
    assert len(place.files()) > 5
    assert all(path.stat().st_size >= 200 for path in place.files()[:-1])
    assert place.files()[1].name == "binlog-0000000000000001-20231114221320"
    await place.write([dml(ts) for ts in range(20, 40)])
    assert place.commit_tss() == list(range(1, 40))


async def test_a_large_transaction_passes_a_small_queue(place: Place) -> None:
    await place.write([dml(5, *range(1000)), dml(6, 1, size=50_000), dml(7)])
    first, second, _ = read_file_log(place.root / "out")
    assert [event.columns["id"].value for event in first.events] == list(range(1000))
    assert second.events[0].columns["v"].value == b"v" * 50_000


async def test_what_comes_again_is_written_once(place: Place) -> None:
    await place.write([dml(5), dml(6), dml(7)])  # no savepoint: all comes again
    await place.write([dml(5), dml(6), dml(7), dml(8)], save=6)
    await place.write([dml(7), dml(8), dml(9)], save=9)
    await place.write([dml(10)])
    assert place.commit_tss() == [5, 6, 7, 8, 9, 10]


async def test_a_tail_torn_at_any_byte_is_cut_and_comes_again(place: Place) -> None:
    await place.write([dml(5), dml(6)], save=5)
    (path,) = place.files()
    whole = path.stat().st_size
    await place.write([dml(7, 1, 2)])
    torn = path.read_bytes()
    for cut in range(whole, len(torn)):
        path.write_bytes(torn[:cut])
        assert place.commit_tss() == [5, 6]
        await place.write([dml(6), dml(7, 1, 2), dml(8)])
        assert place.commit_tss() == [5, 6, 7, 8]
        assert path.read_bytes().startswith(torn)


async def test_transactions_of_one_commit_ts_are_there_together_or_not_at_all(
    place: Place,
) -> None:
    same = [dml(6, 1), dml(6, 2)]
    await place.write([dml(5)], save=5)
    (path,) = place.files()
    whole = path.stat().st_size
    await place.write(same)
    good = path.read_bytes()
    for cut in range(whole, len(good), 9):
        path.write_bytes(good[:cut])
        await place.write(same)
        events = [each for found in read_file_log(place.root / "out") for each in found.events]
        assert [each.columns["id"].value for each in events] == [5, 1, 2]


@pytest.mark.parametrize(
    "lose",
    [
        lambda file: shutil.rmtree(file.parent),
        Path.unlink,
        lambda file: os.truncate(file, 1),
    ],
)
async def test_a_file_that_somebody_takes_away_under_the_sink_is_noticed_at_a_checkpoint(
    lose: Callable[[Path], None], place: Place
) -> None:
    async with place.running() as (sink, _):
        await sink.save(Checkpoint(Tso(0)))
        await sink.submit([dml(5)])
        await sink.flush()
        await sink.save(Checkpoint(Tso(5)))
        (file,) = place.files()
        lose(file)
        with pytest.raises(
            DownstreamWentBack, match=f"{file.name} went back.*(No such file|replaced or cut)"
        ):
            await sink.save(Checkpoint(Tso(5)))


async def test_a_damaged_tail_behind_the_savepoint_comes_again(place: Place) -> None:
    await place.write([dml(5), dml(6)], save=6)
    (path,) = place.files()
    whole = path.stat().st_size
    await place.write([dml(7), dml(8)])
    good = path.read_bytes()
    for index in range(whole, len(good)):
        path.write_bytes(good[:index] + bytes([good[index] ^ 0x40]) + good[index + 1 :])
        await place.write([dml(7), dml(8)])
        assert path.read_bytes() == good


async def test_the_first_records_of_all_may_be_lost_in_part_and_come_again(place: Place) -> None:
    await place.write([dml(5), dml(6)])  # the power fails in their sync, before any checkpoint
    (path,) = place.files()
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(bytes(cut) + whole[cut:])
        await place.write([dml(5), dml(6)])
        assert path.read_bytes() == whole


async def test_bytes_that_the_savepoint_covers_must_be_there(place: Place) -> None:
    await place.write([dml(5), dml(6)], save=6)
    (path,) = place.files()
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(
        CorruptRelay, match=rf"{path.name} at offset {len(good) - 1}.*durable up to"
    ):
        await place.write([])
    path.unlink()
    await place.write([dml(7)])  # files that were moved away are not missed
    assert [each.name[:23] for each in place.files()] == ["binlog-0000000000000001"]
    path.write_bytes(good)
    await place.write([], save=7)
    place.files()[-1].unlink()
    with pytest.raises(CorruptRelay, match="the newest file of the log is missing"):
        await place.write([])


async def test_a_flipped_byte_stops_the_reader_and_is_named(place: Place) -> None:
    place.max_file_bytes = 60
    await place.write([dml(5), dml(6), dml(7)])
    first = place.files()[0]
    good = first.read_bytes()
    for index in range(len(good)):
        first.write_bytes(good[:index] + bytes([good[index] ^ 0x40]) + good[index + 1 :])
        with pytest.raises(CorruptRelay, match=first.name):
            place.commit_tss()


async def test_a_log_of_the_original_is_written_on(place: Place) -> None:
    (place.root / "out").mkdir()
    path = place.root / "out" / "binlog-0000000000000000-20261121055054"
    path.write_bytes(
        encode_record(ddl_binlog(Tso(4), "a;")) + encode_record(ddl_binlog(Tso(5), "b;"))
    )
    (place.root / "savepoint").write_bytes(
        b"consistent = false\ncommitTS = 5\nschema-version = 3\n"
    )
    async with place.running() as (sink, checkpoint):
        assert checkpoint == Checkpoint(Tso(5), consistent=False, schema_version=3)
        await sink.submit([ddl(5), dml(6)])
        await sink.flush()
    assert place.commit_tss() == [4, 5, 6]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CorruptRelay):
        await place.write([])


async def test_all_statements_of_a_ddl_survive_a_crash_between_them(place: Place) -> None:
    await place.write([dml(5)], save=5)
    await place.write([ddl(6, "CREATE TABLE u", "CREATE TABLE w"), dml(7)])
    (path,) = place.files()
    records = [record for _, record in file_records(place.root / "out")]
    assert [record.end for record in records][-1] == path.stat().st_size
    for survivors in range(1, 5):
        path.write_bytes(path.read_bytes()[: records[survivors - 1].end])
        await place.write([ddl(6, "CREATE TABLE u", "CREATE TABLE w"), dml(7)])
        assert place.commit_tss() == [5, 6, 6, 6, 7]
        assert [record.payload for _, record in file_records(place.root / "out")] == [
            record.payload for record in records
        ]


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_sink_says_is_applied_outlives_the_power(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    for life in range(1, 4):
        sink = FileSink(Path("/out"), Path("/savepoint"), disk=disk, clock=StoppedClock())
        assert await sink.open() is None
        assert sink.applied_ts() == 10 * (life - 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            await sink.submit([dml(10 * life)])
            await sink.flush()
            disk = disk.crash()
            await sink.close()


async def test_a_second_sink_on_the_directory_is_refused(place: Place) -> None:
    async with place.running():
        with pytest.raises(ConfigError, match="is in use by process"):
            await place.write([])


async def test_a_row_that_contradicts_its_table_is_named(place: Place) -> None:
    bad = TableChange(AT, Mutation(TABLE.id, [b"\x08\x02\x08\x04\x09\x01\x63"], [], [], b"\0"))
    async with place.running() as (sink, _):
        with pytest.raises(RowMismatch, match=r"a row of d\.t in transaction commit_ts 9"):
            await sink.submit([Dml(Tso(8), Tso(9), 3, (bad,))])
        await sink.submit([dml(9)])
        await sink.flush()
    assert place.commit_tss() == [9]


async def test_a_failed_write_ends_the_sink_and_nothing_moves(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    assert sink._file is not None
    await sink._file.close()  # the descriptor is gone: the next write fails with EBADF
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 (the group ends where run does)
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            await sink.submit([dml(5)])
            await sink.flush()
    assert raised.group_contains(LogFailed, match="see that its disk works and has room")
    assert sink.applied_ts() == 0
    await sink.close()
    await sink.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.host.disk import PosixAppendFile, PosixDisk
from tests.integration.drainer.test_file_sink import StoppedClock, dml

async def main(root):
    sink = FileSink(root / "out", root / "savepoint", disk=PosixDisk(threads=2),
                    clock=StoppedClock(), options=FileSinkOptions(max_file_bytes=5000))
    checkpoint = await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        ts = checkpoint.commit_ts if checkpoint else 0
        while True:
            count = 1 + ts % 9
            await sink.submit([dml(ts + n) for n in range(1, count + 1)])
            ts += count
            if ts % 4 == 0:
                await sink.flush()
            if ts % 5 == 0:
                await sink.save(Checkpoint(sink.applied_ts()))
                print(sink.applied_ts(), file=sys.stderr, flush=True)
            await asyncio.sleep(0)

asyncio.run(main(Path(sys.argv[1])))
"""


def writing_child(root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


async def test_killed_at_any_moment_every_transaction_is_there_once(place: Place) -> None:
    rng = random.Random(11)
    saved = 0
    for _ in range(3):
        child = writing_child(place.root)
        assert child.stderr is not None
        for _ in range(rng.randrange(1, 40)):
            saved = int(child.stderr.readline())
        os.kill(child.pid, signal.SIGKILL)
        saved = max([saved, *map(int, child.stderr.read().split())])
        child.stderr.close()
        child.wait()
        found = place.commit_tss()
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= saved


class PausedDisk(PosixDisk):
    """Waits before it makes a file, from `pause` on until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.is_paused = False
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def open_append(self, path: Path, *, create: bool) -> PosixAppendFile:
        if create and self.is_paused:
            self.reached.set()
            await self.go_on.wait()
        return await super().open_append(path, create=create)


async def test_a_savepoint_during_a_rotation_tells_the_size_of_the_right_file(
    tmp_path: Path,
) -> None:
    disk = PausedDisk()
    place = Place(disk, tmp_path)
    place.max_file_bytes = 60
    sink = place.sink()
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await sink.submit([dml(10, 1, size=200)])
        await sink.flush()
        disk.is_paused = True
        await sink.submit([dml(20, 2)])
        await disk.reached.wait()
        saving = group.create_task(sink.save(Checkpoint(Tso(10))))
        await asyncio.sleep(0)
        disk.go_on.set()
        await saving
        await sink.flush()
        await sink.close()
    again = place.sink()
    assert await again.open() == Checkpoint(Tso(10))
    assert again.applied_ts() == 20
    await again.close()
    disk.close()
