"""A node that may open no file more: writers are told or wait, nothing ends, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.appliance import Appliance, run
from tests.support.faults import RecordProperty, counted
from tests.support.small_disk import mounted

BASE = compose(1_700_000_000_000)
PATIENT = ClientLimits(deadline_s=10.0, prewrite_retry_s=0.0, outcome_retry_s=0.0)
SEGMENT = 'space = "1 MiB"\nsegment-size = "1 MiB"\nshards = 1'


class Writer:
    """TiDB's, on one connection; what was acknowledged."""

    def __init__(self, appliance: Appliance) -> None:
        self.client = PumpClient(*appliance.target, cluster_id=7, limits=PATIENT)
        self.acknowledged: list[int] = []
        self.refused: list[tuple[list[bytes], int]] = []
        self.told: list[str] = []

    async def write(self, numbers: range, size: int = 1 << 19) -> None:
        for number in numbers:
            start_ts, commit_ts = Tso(BASE + (number << 30)), Tso(BASE + (number << 30) + 1)
            rows = encode_mutations(1, [Mutation(1, [bytes(size)], [], [], b"\0")])
            prewrite = prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=rows)
            await self._send([prewrite, commit_binlog(start_ts, commit_ts)], commit_ts)

    async def settle(self) -> None:
        """What was refused is sent again, as it comes from whoever has it."""
        refused, self.refused = self.refused, []
        for payloads, commit_ts in refused:
            await self._send(payloads, commit_ts)

    async def _send(self, payloads: list[bytes], commit_ts: int) -> None:
        try:
            for each in payloads:
                await self.client.write(each)
        except Exception as error:  # noqa: BLE001 - whatever a writer is told is looked at
            self.told.append(str(error))
            self.refused.append((payloads, commit_ts))
        else:
            self.acknowledged.append(commit_ts)


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path)
    machine.configure("[drainer]\nenabled = false\n", 'node-id = "pump0"\n')
    machine.config_file.write_text(
        machine.config_file.read_text().replace('space = "1 MiB"', SEGMENT)
    )
    yield machine
    machine.close()


def allow(appliance: Appliance, descriptors: int) -> None:
    hard = resource.prlimit(appliance.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(appliance.pid, resource.RLIMIT_NOFILE, (descriptors, hard))


def lowest_unused(appliance: Appliance) -> int:
    """A limit of so many leaves none: a new descriptor has the lowest number that is free."""
    used = set(map(int, os.listdir(f"/proc/{appliance.pid}/fd")))
    return next(number for number in range(1 << 20) if number not in used)


async def leave_none(appliance: Appliance) -> None:
    """What was open for a moment only is looked for again: it would leave one."""
    for _ in range(20):
        allow(appliance, lowest_unused(appliance))
        await asyncio.sleep(0.05)


def processor_s(appliance: Appliance) -> float:
    fields = Path(f"/proc/{appliance.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def held(appliance: Appliance, count: int, seconds: float) -> None:
    """Connections that nobody answers, for a while: they must not take a processor."""
    strangers = []
    for _ in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(appliance.target)
        strangers.append(stranger)
    before = processor_s(appliance)
    await asyncio.sleep(seconds)
    assert processor_s(appliance) - before < 0.7 * seconds
    for stranger in strangers:
        stranger.close()


async def goes_on(writer: Writer) -> None:
    """What had to wait is acknowledged, and what comes now."""
    await writer.settle()
    await writer.write(range(9, 14))
    assert writer.refused == []
    assert sorted(writer.acknowledged) == [BASE + (n << 30) + 1 for n in range(14)]


def everything_is_there(appliance: Appliance, acknowledged: list[int]) -> None:
    dumped = run(appliance.directory, "dump", "--heads", "--data-dir", str(appliance.data_dir))
    assert dumped.returncode == 0, dumped.stderr
    missing = [ts for ts in acknowledged if str(ts) not in dumped.stdout]
    assert missing == []


async def test_without_a_descriptor_nothing_ends_and_with_one_all_goes_on(
    appliance: Appliance, record_property: RecordProperty
) -> None:
    appliance.start()
    writer = Writer(appliance)
    with counted(record_property, fault="no descriptor is left", target="node") as cases:
        async with writer.client:
            await writer.write(range(4))
            await leave_none(appliance)
            await held(appliance, 4, 3.0)
            cases.one()
            await writer.write(range(4, 9))  # over two ends of a segment
            cases.one()
            allow(appliance, 1024)
            assert any("Too many open files" in each for each in writer.told), writer.told
            await goes_on(writer)
            cases.one()
        status = await asyncio.to_thread(
            appliance.wait, lambda each: each["max_commit_ts"] >= writer.acknowledged[-1]
        )
        assert status["refuses_because"] == ""
        assert await asyncio.to_thread(appliance.stop) == 0
        everything_is_there(appliance, writer.acknowledged)
        cases.one()


@pytest.mark.soak  # it mounts, which only root may, and not everywhere
async def test_without_an_inode_nothing_ends_and_with_one_all_goes_on(
    appliance: Appliance, record_property: RecordProperty
) -> None:
    with (
        mounted(appliance.data_dir, megabytes=128, inodes=200),
        counted(record_property, fault="no inode is left", target="node") as cases,
    ):
        await asyncio.to_thread(appliance.start)
        writer = Writer(appliance)
        async with writer.client:
            await writer.write(range(4))
            taken: list[Path] = []
            while os.statvfs(appliance.data_dir).f_ffree:
                taken.append(appliance.data_dir / f"filler-{len(taken)}")
                taken[-1].touch()
            await writer.write(range(4, 9))
            cases.one()
            for each in taken:
                each.unlink()
            assert any("look for inodes (df -i)" in each for each in writer.told), writer.told
            await goes_on(writer)
            cases.one()
        assert await asyncio.to_thread(appliance.stop) == 0
        everything_is_there(appliance, writer.acknowledged)
        cases.one()
