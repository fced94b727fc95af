"""A relay log on real files: what was acknowledged is read back, whatever happened in between."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from binlogd.errors import ConfigError, CorruptRecord, CorruptRelay, LogFailed
from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.group import GROUP_BYTES_MAX, in_groups
from binlogd.relay.log import RelayWriter
from binlogd.relay.reader import read_relay
from binlogd.tso import Tso
from tests.sim.disk import SimDisk
from tests.support.stored import OfBytes

Opener = Callable[..., "AsyncIterator[RelayWriter]"]


@pytest.fixture
def disk() -> object:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


def entry(ts: int, size: int = 30) -> RelayEntry:
    job = b'{"id":%d}' % ts if ts % 10 == 0 else b""
    return RelayEntry(Tso(ts), (b"payload %d " % ts).ljust(size, b".") + b"\x38\x00\x40\x05", job)


async def test_what_a_killed_process_had_not_synced_is_synced_before_it_is_built_on() -> None:
    disk, directory = SimDisk(random.Random(1)), Path("/relay")
    writer = RelayWriter(directory, disk, max_file_bytes=1 << 20)
    await writer.open(after=Tso(1), snapshot=lambda: b"schema")
    await writer.append([entry(2)])
    (file,) = [each for path, each in disk.files.items() if path.suffix == ".log"]
    file.synced -= 10  # killed between write and sync
    later = RelayWriter(directory, disk.kill(), max_file_bytes=1 << 20)
    await later.open(after=Tso(1), snapshot=lambda: b"schema")
    assert later.statistics().last_ts == 2
    assert file.synced == len(file.content)


async def test_a_payload_on_the_disk_makes_the_same_file_and_is_read_in_pieces() -> None:
    large = entry(20, 900_000)
    files = []
    for payload in (large.payload, OfBytes(bytes(large.payload))):
        disk, directory = SimDisk(random.Random(1)), Path("/relay")
        writer = RelayWriter(directory, disk, max_file_bytes=1 << 20)
        await writer.open(after=Tso(1), snapshot=lambda: b"schema")
        found = RelayEntry(large.commit_ts, payload, large.job)
        assert await writer.append([entry(2), found, entry(30)]) == 900_004 + 2 * 34
        (file,) = [each for path, each in disk.files.items() if path.suffix == ".log"]
        assert file.synced == len(file.content)
        files.append(bytes(file.content))
    assert files[0] == files[1]


class Gone(OfBytes):
    """Cannot be read again once it was checksummed."""

    def cut(self, begin: int, end: int) -> bytes:
        if self.read >= len(self):
            raise CorruptRecord(Path("x.vlog"), 0, "changed")
        return super().cut(begin, end)


async def test_a_payload_that_changes_while_it_is_written_leaves_nothing_behind() -> None:
    disk, directory = SimDisk(random.Random(1)), Path("/relay")
    writer = RelayWriter(directory, disk, max_file_bytes=1 << 20)
    await writer.open(after=Tso(1), snapshot=lambda: b"schema")
    await writer.append([entry(2)])
    (file,) = [each for path, each in disk.files.items() if path.suffix == ".log"]
    before = bytes(file.content)
    with pytest.raises(CorruptRecord):
        await writer.append([RelayEntry(Tso(3), Gone(bytes(entry(3, 900_000).payload)), b"")])
    assert bytes(file.content) == before
    with pytest.raises(LogFailed):
        await writer.append([entry(4)])


async def test_after_a_failed_sync_the_page_cache_is_not_believed() -> None:
    disk, directory = SimDisk(random.Random(1)), Path("/relay")
    writer = RelayWriter(directory, disk, max_file_bytes=1 << 20)
    await writer.open(after=Tso(1), snapshot=lambda: b"schema")
    await writer.append([entry(2)])
    disk.fail_syncs = 1
    with pytest.raises(LogFailed):
        await writer.append([entry(3)])
    await writer.close()
    await writer.open(after=Tso(1), snapshot=lambda: b"schema")
    assert writer.statistics().last_ts == 2
    await writer.append([entry(2), entry(3)])
    relay = await read_relay(disk.crash(), directory, Tso(1))
    assert [each.commit_ts async for batch in relay.batches for each in batch] == [2, 3]


class Log:
    """A relay directory that is written through as many lives as a test wants."""

    def __init__(self, disk: PosixDisk, directory: Path, max_file_bytes: int = 400) -> None:
        self.disk, self.directory, self.max_file_bytes = disk, directory, max_file_bytes
        self.seen = 0

    async def writer(self, after: int = 0) -> RelayWriter:
        writer = RelayWriter(self.directory, self.disk, max_file_bytes=self.max_file_bytes)
        await writer.open(after=Tso(after), snapshot=lambda: b'{"seen":%d}' % self.seen)
        return writer

    async def write(self, *calls: list[int], after: int = 0) -> None:
        writer = await self.writer(after)
        for call in calls:
            await writer.append([entry(ts) for ts in call])
            self.seen = max(self.seen, *call)
        await writer.close()

    async def read(self, after: int = 0) -> tuple[bytes, list[RelayEntry]]:
        relay = await read_relay(self.disk, self.directory, Tso(after))
        return relay.snapshot, [each async for batch in relay.batches for each in batch]

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("relay-*.log"))


@pytest.fixture
def relay_log(disk: PosixDisk, tmp_path: Path) -> Log:
    return Log(disk, tmp_path / "relay")


async def test_entries_come_back_with_their_jobs_in_order(relay_log: Log) -> None:
    await relay_log.write([1, 2, 10], [11], [20, 21])
    snapshot, entries = await relay_log.read()
    assert snapshot == b'{"seen":0}'
    assert entries == [entry(ts) for ts in (1, 2, 10, 11, 20, 21)]


async def test_files_rotate_between_calls_and_begin_with_a_fresh_snapshot(relay_log: Log) -> None:
    calls = [[n * 10 + k for k in range(1, 6)] for n in range(12)]
    await relay_log.write(*calls)
    assert len(relay_log.files()) > 3
    everything = [ts for call in calls for ts in call]
    for after in everything:
        snapshot, entries = await relay_log.read(after)
        base = int(snapshot[8:-1])
        assert base <= after
        assert [each.commit_ts for each in entries] == [ts for ts in everything if ts > base]


async def test_what_comes_again_after_a_restart_is_passed_over(relay_log: Log) -> None:
    await relay_log.write([1, 2, 3], [4, 5])
    await relay_log.write([3, 4], [5, 6], [7], after=2)
    _, entries = await relay_log.read()
    assert [each.commit_ts for each in entries] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("checkpoint", [2, 4, 6])
async def test_what_comes_late_in_its_place_begins_a_chain_that_has_it(
    checkpoint: int, disk: PosixDisk, tmp_path: Path
) -> None:
    """The life before had written what follows it; nothing downstream had come so far."""
    entries = [entry(ts, 300_000 if ts == 6 else 30) for ts in range(1, 12)]
    late, seen_ts = entries[7], 0
    writer = RelayWriter(tmp_path, disk, max_file_bytes=200)

    def schema() -> bytes:
        return b"up to %d" % seen_ts

    await writer.open(after=Tso(0), snapshot=schema)
    for each in entries:
        if each is not late:
            await writer.append([each])
            seen_ts = each.commit_ts
    await writer.close()
    await writer.open(after=Tso(checkpoint), snapshot=schema)
    for begin in range(checkpoint, 11, 2):
        seen_ts = begin
        await writer.append(entries[begin : begin + 2])
    await writer.close()
    for after in range(checkpoint, 12):
        relay = await read_relay(disk, tmp_path, Tso(after))
        assert relay.snapshot == b"up to %d" % relay.base_ts
        found = [each async for batch in relay.batches for each in batch]
        assert found == entries[relay.base_ts :]


async def test_a_chain_begins_where_files_were_collected_since_the_start(
    disk: PosixDisk, tmp_path: Path
) -> None:
    entries = [entry(ts) for ts in range(1, 12)]
    late, writer = entries[7], RelayWriter(tmp_path, disk, max_file_bytes=1)
    await writer.open(after=Tso(0), snapshot=bytes)
    for each in entries:
        if each is not late:
            await writer.append([each])
    await writer.close()
    await writer.open(after=Tso(0), snapshot=bytes)
    await writer.append(entries[:6])
    await writer.collect(Tso(5))
    await writer.append(entries[6:])
    await writer.close()
    relay = await read_relay(disk, tmp_path, Tso(5))
    found = [each async for batch in relay.batches for each in batch]
    assert found == entries[relay.base_ts :]


async def test_a_start_reads_what_follows_its_begin_and_no_older_file(relay_log: Log) -> None:
    await relay_log.write(*([n] for n in range(1, 12)))
    oldest, *_, newest = relay_log.files()
    data = bytearray(oldest.read_bytes())
    data[-1] ^= 1
    oldest.write_bytes(data)
    with pytest.raises(CorruptRelay):
        await relay_log.write([1], after=0)
    await relay_log.write([12], after=11)
    assert relay_log.files()[-1] == newest
    assert (await relay_log.read(11))[1][-1] == entry(12)


async def test_no_file_begins_while_old_transactions_come_again(relay_log: Log) -> None:
    relay_log.max_file_bytes = 1
    await relay_log.write([1, 2, 3])
    relay_log.seen = 1
    await relay_log.write([2, 3, 4], after=1)
    assert len(relay_log.files()) == 1
    await relay_log.write([5], after=4)
    snapshot, _ = await relay_log.read(4)
    assert snapshot == b'{"seen":4}'


async def test_a_start_elsewhere_begins_a_chain_of_its_own(relay_log: Log) -> None:
    await relay_log.write([100, 101], after=90)
    await relay_log.write([60, 61], after=50)  # the checkpoint was set back
    assert [each.commit_ts for each in (await relay_log.read(55))[1]] == [60, 61]
    await relay_log.write([200], after=150)  # it moved on over transactions that never came here
    assert [each.commit_ts for each in (await relay_log.read(150))[1]] == [200]
    with pytest.raises(ConfigError, match="begins behind commit_ts 150, the checkpoint is 149"):
        await relay_log.read(149)


async def test_an_empty_directory_cannot_restore(relay_log: Log, tmp_path: Path) -> None:
    relay_log.directory.mkdir()
    with pytest.raises(ConfigError, match="is empty"):
        await relay_log.read()


async def test_a_tail_torn_at_any_byte_is_cut_and_written_on(relay_log: Log) -> None:
    relay_log.max_file_bytes = 10**6
    await relay_log.write([1, 2], [3])
    (path,) = relay_log.files()
    whole = path.read_bytes()
    await relay_log.write([4, 5], after=3)
    torn = path.read_bytes()
    for cut in range(len(whole) + 1, len(torn)):
        path.write_bytes(torn[:cut])
        assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2, 3]
        await relay_log.write([4, 6], after=3)
        assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2, 3, 4, 6]


async def test_a_file_whose_head_is_torn_is_begun_anew(relay_log: Log) -> None:
    relay_log.max_file_bytes = 1
    await relay_log.write([1], [2])
    first, second = relay_log.files()
    head = second.read_bytes()[:60]
    for cut in range(48):
        second.write_bytes(head[:cut])
        assert [each.commit_ts for each in (await relay_log.read())[1]] == [1]
        await relay_log.write([2], after=1)
        assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2]
    first.write_bytes(first.read_bytes()[:20])
    with pytest.raises(CorruptRelay, match=r"relay-0000000000000000\.log at offset 0"):
        await relay_log.read()


async def test_a_flipped_byte_anywhere_is_found_by_who_reads(relay_log: Log) -> None:
    relay_log.max_file_bytes = 150
    await relay_log.write([1], [2], [3], [4])
    assert len(relay_log.files()) == 2
    for path in relay_log.files():
        whole = path.read_bytes()
        for index in range(len(whole)):
            path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x20]) + whole[index + 1 :])
            with pytest.raises(CorruptRelay, match=path.name):
                await relay_log.read()
        path.write_bytes(whole)


async def test_who_goes_on_writing_cuts_a_last_frame_of_any_bytes_and_no_other(
    relay_log: Log,
) -> None:
    """After a loss of power any bytes may stand where nothing was synced: what they may have held
    comes again, while a restore has nobody to ask."""
    relay_log.max_file_bytes = 10**6
    await relay_log.write([1], [2], [3])
    (path,) = relay_log.files()
    synced = path.stat().st_size
    await relay_log.write([4], after=3)
    whole = path.read_bytes()
    for index in range(0, len(whole), 7):
        flipped = whole[:index] + bytes([whole[index] ^ 0x20]) + whole[index + 1 :]
        path.write_bytes(flipped)
        if index < synced:
            with pytest.raises(CorruptRelay, match="can be emptied"):
                await relay_log.writer(after=4)
            assert path.read_bytes() == flipped
        else:
            await relay_log.write([4, 5], after=3)
            assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2, 3, 4, 5]


async def test_a_head_of_any_bytes_that_nothing_stands_behind_is_begun_anew(relay_log: Log) -> None:
    relay_log.max_file_bytes = 1
    await relay_log.write([1], [2])
    _, second = relay_log.files()
    whole = second.read_bytes()
    head_bytes = 48 + len(b'{"seen":1}')
    for index in range(0, head_bytes, 7):
        flipped = whole[:index] + bytes([whole[index] ^ 0x20]) + whole[index + 1 :]
        second.write_bytes(flipped[:head_bytes])
        await relay_log.write([2], after=1)
        assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2]
        second.write_bytes(flipped)
        with pytest.raises(CorruptRelay, match="offset 0"):
            await relay_log.writer(after=2)
        second.write_bytes(whole)


async def test_a_torn_file_before_the_last_is_damage(relay_log: Log) -> None:
    relay_log.max_file_bytes = 1
    await relay_log.write([1], [2], [3])
    middle = relay_log.files()[1]
    middle.write_bytes(middle.read_bytes()[:-1])
    with pytest.raises(CorruptRelay, match=middle.name):
        await relay_log.read()
    middle.unlink()
    with pytest.raises(CorruptRelay, match="is missing"):
        await relay_log.read()


async def test_collecting_stays_behind_the_saved_checkpoint(relay_log: Log) -> None:
    relay_log.max_file_bytes = 1
    writer = await relay_log.writer()
    for ts in range(1, 30):
        await writer.append([entry(ts)])
        relay_log.seen = ts
        if ts > 5:
            await writer.collect(Tso(ts - 5))
            snapshot, entries = await relay_log.read(ts - 5)
            assert snapshot == b'{"seen":%d}' % (ts - 5)
            assert [each.commit_ts for each in entries] == list(range(ts - 4, ts + 1))
    statistics = writer.statistics()
    assert statistics.files == len(relay_log.files()) == 5
    assert statistics.last_ts == 29
    await writer.close()


async def test_a_log_that_was_removed_is_noticed_when_it_collects_and_begun_anew(
    relay_log: Log,
) -> None:
    writer = await relay_log.writer()
    await writer.append([entry(1)])
    await writer.collect(Tso(0))
    shutil.rmtree(relay_log.directory)
    with pytest.raises(LogFailed, match=rf"^{relay_log.directory}: No such file"):
        await writer.collect(Tso(1))
    with pytest.raises(LogFailed, match="No such file"):
        await writer.append([entry(2)])
    await writer.close()
    await relay_log.write([2], after=1)
    assert [each.commit_ts for each in (await relay_log.read(1))[1]] == [2]


async def test_a_second_writer_is_refused(relay_log: Log) -> None:
    writer = await relay_log.writer()
    with pytest.raises(ConfigError, match="is in use by process"):
        await relay_log.writer()
    await writer.close()
    await (await relay_log.writer()).close()


async def test_a_failed_write_poisons_the_writer_until_it_is_opened_again(relay_log: Log) -> None:
    writer = await relay_log.writer()
    await writer.append([entry(1)])
    (path,) = relay_log.files()
    assert writer._file is not None
    await writer._file.close()  # the descriptor is gone: the next write fails with EBADF
    for _ in range(2):
        with pytest.raises(LogFailed):
            await writer.append([entry(2)])
    await writer.close()
    await writer.open(after=Tso(1), snapshot=bytes)
    await writer.append([entry(2)])
    await writer.close()
    assert path in relay_log.files()
    assert [each.commit_ts for each in (await relay_log.read())[1]] == [1, 2]


async def test_a_large_call_is_several_groups_and_all_of_it_comes_back(relay_log: Log) -> None:
    large = [entry(ts, size=7 << 20) for ts in (1, 2, 3, 4, 5)]
    writer = await relay_log.writer()
    await writer.append(large)
    await writer.close()
    groups = (await read_relay(relay_log.disk, relay_log.directory, Tso(0))).batches
    assert [group async for group in groups] == [large[:3], large[3:]]


CHILD = """
import asyncio, sys
from pathlib import Path
from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayWriter
from binlogd.tso import Tso

async def main(directory, after):
    writer = RelayWriter(Path(directory), PosixDisk(threads=2), max_file_bytes=20_000)
    await writer.open(after=Tso(after), snapshot=lambda: b"{}")
    ts = after
    while True:
        payload = b"x" * (ts % 300) + b"!"
        group = [RelayEntry(Tso(ts + n), payload, b"") for n in range(1, 2 + ts % 7)]
        await writer.append(group)
        ts += len(group)
        print(ts, file=sys.stderr, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def appending_child(directory: Path, *, after: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, str(directory), str(after)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


async def test_killed_at_any_moment_nothing_acknowledged_is_lost(relay_log: Log) -> None:
    rng = random.Random(7)
    acknowledged = 0
    for _ in range(8):
        child = appending_child(relay_log.directory, after=acknowledged)
        assert child.stderr is not None
        for _ in range(rng.randrange(1, 60)):
            acknowledged = int(child.stderr.readline())
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, child.stderr.read().split())])
        child.stderr.close()
        child.wait()
        _, entries = await relay_log.read()
        assert [each.commit_ts for each in entries] == list(range(1, len(entries) + 1))
        assert len(entries) >= acknowledged
    assert all(a < b for a, b in pairwise(relay_log.files()))


def test_a_group_never_ends_between_transactions_of_one_commit_ts() -> None:
    """What is at or below the last commit_ts of a log counts as written."""
    large = bytes(GROUP_BYTES_MAX + 4)
    entries = [RelayEntry(Tso(ts), large[at:], b"") for at, ts in enumerate((1, 2, 2, 2, 3))]
    groups = [[entry.commit_ts for entry in group] for group in in_groups(entries)]
    assert groups == [[1], [2, 2, 2], [3]]
