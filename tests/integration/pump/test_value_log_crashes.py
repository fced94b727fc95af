"""No acknowledged record is lost, whatever fails: the value log on a simulated disk."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from binlogd.errors import CorruptRecord, DiskFull, LogFailed
from binlogd.log.pointer import FIRST, ValuePointer
from binlogd.pump.log.tail import Acknowledged
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.tso import Tso
from tests.sim.disk import SimDisk
from tests.support.appending import appended, recovered_log

HOME = Path("/pump/value")
LIMITS = LogLimits(segment_bytes_max=4_000, flush_bytes_max=2_000)


async def opened(
    disk: SimDisk, upto: ValuePointer, boot: str
) -> tuple[ValueLog, list[tuple[ValuePointer, bytes]]]:
    acknowledged = Acknowledged(upto=upto, same_boot=boot == disk.boot_id())
    return await recovered_log(HOME, disk, LIMITS, acknowledged)


class Life:
    """One process after another on one disk. `acked` is what a writer was told is durable."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(self.rng)
        self.acked: dict[bytes, ValuePointer] = {}
        self.failed: set[bytes] = set()
        self.upto = FIRST
        self.boot = ""
        self.number = 0

    async def live(self) -> None:
        """Opens the log, checks it, writes until the lights go out."""
        value_log, found = await opened(self.disk, self.upto, self.boot)
        self.boot = self.disk.boot_id()
        self.check(found)
        stop_at = self.rng.randrange(400)
        writing = asyncio.get_running_loop().create_task(self._write(value_log))
        for _ in range(stop_at):
            if writing.done():
                break
            await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing

    def check(self, found: list[tuple[ValuePointer, bytes]]) -> None:
        """Everything acknowledged is there, in its place, and nothing is there twice."""
        by_payload = {payload: pointer for pointer, payload in found}
        assert len(by_payload) == len(found)
        for payload, pointer in self.acked.items():
            assert by_payload.get(payload) == pointer, f"lost {payload[:20]!r}"

    async def _write(self, value_log: ValueLog) -> None:
        for _ in range(30):
            group = []
            for _ in range(self.rng.randrange(1, 6)):
                self.number += 1
                group.append(b"%d-" % self.number + self.rng.randbytes(self.rng.randrange(900)))
            is_large = self.rng.random() < 0.2
            group = [b"".join(group)] if is_large else group
            self._break_something()
            try:
                if is_large:
                    pointers = [await self._spooled(value_log, group[0])]
                else:
                    pointers = await appended(value_log, group, [Tso(self.number)] * len(group))
            except (LogFailed, DiskFull):
                self.failed.update(group)
                continue
            self.acked.update(zip(group, pointers, strict=True))
            if self.rng.random() < 0.3:
                self.upto = value_log.segments.end  # the index has come so far

    async def _spooled(self, value_log: ValueLog, payload: bytes) -> ValuePointer:
        spool = await value_log.spool(f"{self.number}")
        try:
            for begin in range(0, len(payload), 300):
                await spool.write(payload[begin : begin + 300])
            await spool.finish()
            return await value_log.take_over(spool, Tso(self.number))
        except (LogFailed, DiskFull):
            await spool.drop()
            raise

    def _break_something(self) -> None:
        chance = self.rng.random()
        if chance < 0.05:
            self.disk.fail_writes_after = self.rng.randrange(2_000)
        elif chance < 0.1:
            self.disk.fail_syncs = 1
        elif chance < 0.12:
            self.disk.fail_creates = 1


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 80, 20),
        *(pytest.param(first, marks=pytest.mark.soak) for first in range(80, 200, 20)),
    ],
)
async def test_nothing_acknowledged_is_lost(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + 20):
        life = Life(seed)
        for _ in range(6):
            await life.live()
            life.disk = life.disk.crash() if life.rng.random() < 0.6 else life.disk.kill()
        _, found = await opened(life.disk, life.upto, life.boot)
        life.check(found)
        acknowledged += len(life.acked)
    assert acknowledged > 1_000


@pytest.mark.parametrize("seed", range(24))
async def test_what_a_killed_process_began_is_durable_before_the_next_builds_on_it(
    seed: int,
) -> None:
    """Killed at one moment after the other of an append that begins a segment; then the power
    fails, and takes what nobody has synced."""
    moment, was_killed = 0, True
    while was_killed:  # until the append ends by itself
        disk = SimDisk(random.Random(seed))
        value_log, _ = await opened(disk, FIRST, "")
        await appended(value_log, [bytes(4_000)], [Tso(1)])
        writing = asyncio.create_task(appended(value_log, [b"began"], [Tso(2)]))
        for _ in range(moment):
            await asyncio.sleep(0)
        was_killed = not writing.done()
        writing.cancel()
        await asyncio.wait([writing])
        disk = disk.kill()
        value_log, _ = await opened(disk, FIRST, disk.boot_id())
        await appended(value_log, [b"later"], [Tso(3)])
        _, found = await opened(disk.crash(), value_log.segments.end, disk.boot_id())
        assert b"later" in [payload for _, payload in found], f"killed after {moment} turns"
        moment += 1
    assert moment > 3


async def test_a_disk_that_forgets_names_is_found_out() -> None:
    """The checker must be able to fail: without directory syncs, records are lost."""

    class Forgetful(SimDisk):
        async def sync_directory(self, directory: Path) -> None:
            await self._wait()

    lost = 0
    for seed in range(20):
        life = Life(seed)
        life.disk = Forgetful(life.rng)
        try:
            for _ in range(6):
                await life.live()
                life.disk = life.disk.crash()
        except (AssertionError, CorruptRecord):
            lost += 1
    assert lost > 0


async def test_after_a_failed_sync_the_log_goes_on_in_a_new_segment() -> None:
    disk = SimDisk(random.Random(1))
    value_log, _ = await opened(disk, FIRST, "")
    (first,) = await appended(value_log, [b"first"], [Tso(1)])
    disk.fail_syncs = 1
    with pytest.raises(LogFailed, match="Input/output error"):
        await appended(value_log, [b"second"], [Tso(2)])
    (third,) = await appended(value_log, [b"third"], [Tso(3)])
    assert (first.fid, third.fid) == (0, 1)
    _, found = await opened(disk.crash(), value_log.segments.end, disk.boot_id())
    assert [payload for _, payload in found] == [b"first", b"third"]


async def test_while_the_disk_is_full_every_write_is_refused() -> None:
    disk = SimDisk(random.Random(1))
    disk.free = 4_096
    value_log, _ = await opened(disk, FIRST, "")
    for _ in range(3):
        disk.fail_writes_after = 5
        with pytest.raises(DiskFull, match="available: 4096"):
            await appended(value_log, [b"too much"], [Tso(1)])
    await appended(value_log, [b"at last"], [Tso(2)])
    _, found = await opened(disk.kill(), value_log.segments.end, disk.boot_id())
    assert [payload for _, payload in found] == [b"at last"]


async def test_acknowledged_bytes_that_the_kernel_lost_stop_the_log() -> None:
    disk = SimDisk(random.Random(1))
    value_log, _ = await opened(disk, FIRST, "")
    await appended(value_log, [b"first"], [Tso(1)])
    disk.fail_syncs = 1
    with pytest.raises(LogFailed):
        await appended(value_log, [b"second"], [Tso(2)])
    disk.files[HOME / "000000.vlog"].content[18] ^= 1
    with pytest.raises(CorruptRecord, match="offset 0"):
        await appended(value_log, [b"third"], [Tso(3)])


@pytest.mark.parametrize("is_poisoned", [False, True], ids=["rotates", "is repaired"])
async def test_a_log_that_is_given_up_at_any_moment_and_closed_reads_again(
    is_poisoned: bool,  # noqa: FBT001
) -> None:
    """As a shard that is cancelled does: whatever was under way, it closes its log."""
    limits = LogLimits(segment_bytes_max=60_000, flush_bytes_max=2_000)
    moment, was_given_up = 0, True
    while was_given_up:  # at one moment after the other, until it ends by itself
        disk = SimDisk(random.Random(moment))
        value_log, _ = await recovered_log(HOME, disk, limits)
        size = 5_700 if is_poisoned else 7_000
        kept = [bytes([number]) * size for number in range(9)]
        await appended(value_log, kept, [Tso(1)] * 9)  # the next one rotates
        if is_poisoned:
            disk.fail_syncs = 1
            with pytest.raises(LogFailed):
                await appended(value_log, [b"failed"], [Tso(2)])
        writing = asyncio.get_running_loop().create_task(
            appended(value_log, [b"more" * 200] * 4, [Tso(2)] * 4)
        )
        for _ in range(moment):
            await asyncio.sleep(0)
        was_given_up = writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await value_log.close()
        _, found = await opened(disk.kill(), FIRST, disk.boot_id())
        assert [payload for _, payload in found][:9] == kept
        moment += 1
    assert moment > 3
