"""A large Prewrite is written to a file while it comes, which is a part of the log when it is
acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import DiskFull, NotOnline, Unavailable
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import pump_directory
from binlogd.ports import Space
from binlogd.pump.kept_routing import SHARDS_FILE
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.slow import SlowWrites
from binlogd.pump.state import Action
from binlogd.serving.server import Server
from binlogd.telemetry.traces import Traces
from binlogd.wire import codec, peek
from binlogd.wire.joining import join
from binlogd.wire.outline import outline
from tests.support.large_binlogs import CLUSTER, raw_channel
from tests.support.memory_pump import Cluster
from tests.support.pump_world import (
    PATIENCE_S,
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    prewrite,
    pulled,
    written,
)

SIZE = 1_500_000
SMALL_LIMITS = ServiceLimits(spooled_bytes_min=100_000, bytes_in_flight_max=4 << 20)


@dataclass
class Port:
    pump: Pump
    channel: Channel
    value: Path

    def spools(self) -> list[str]:
        return [path.name for path in self.value.iterdir() if path.suffix != ".vlog"]

    def segments(self) -> list[str]:
        return sorted(path.name for path in self.value.glob("*.vlog"))

    async def write(
        self, payload: bytes, *, cluster: int = CLUSTER, upto: int | None = None
    ) -> None:
        """One call; with `upto` it is given up after so many bytes."""
        message = codec.encode_write_request(cluster, payload)
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        async with self.channel.request(
            "/binlog.Pump/WriteBinlog", Cardinality.UNARY_UNARY, bytes, bytes
        ) as stream:
            await stream.send_request()
            with stream._wrapper:
                await stream._stream.send_data(framed[:upto])
                if upto is not None:
                    await eventually(lambda: bool(self.spools()))
                    await stream.cancel()
                    return
                await stream._stream.end()
            stream._send_message_done = stream._end_done = True
            assert await stream.recv_message() == b""


@asynccontextmanager
async def port(
    world: World, options: PumpOptions = ROOMY, limits: ServiceLimits = SMALL_LIMITS
) -> AsyncIterator[Port]:
    async with world.pump(options) as pump:
        service = PumpService(pump, Cluster(CLUSTER), limits, pump.spools)
        server = Server([service], sinks=service.sinks())
        _, number = await server.start("127.0.0.1", 0)
        channel = raw_channel("127.0.0.1", number)
        try:
            yield Port(pump, channel, world.directory / "pump" / "shard-0" / "value")
        finally:
            channel.close()
            await service.close()
            await server.close()


async def test_it_is_acknowledged_pulled_and_there_after_a_restart(world: World) -> None:
    large = {start: prewrite(start, SIZE + start) for start in (20, 30, 40)}

    async def check(pump: Pump) -> None:
        found = await pulled(pump, upto=at(51))
        assert numbers(found)[-5:] == [(10, 11), (20, 21), (30, 31), (40, 45), (50, 51)]
        for each in found[-4:-1]:
            start = each.start_ts - at(0)
            whole = join(large[start], commit(start, each.commit_ts - at(0)))
            assert bytes(each.payload) == whole

    async with port(world) as there:
        await written(there.pump, prewrite(10), commit(10, 11))
        for start, payload in large.items():
            await there.write(payload)
            if start != 40:
                await there.write(commit(start, start + 1))
        assert there.pump.statistics().accepted >= 7
        assert there.spools() == []
        assert len(there.segments()) == 4  # those behind one go on in its segment
        await written(there.pump, prewrite(50), commit(40, 45), commit(50, 51))
        await check(there.pump)
    async with world.pump() as pump:
        await check(pump)


async def test_one_is_told_and_counted_as_others_are(world: World) -> None:
    traces = Traces(slow_s=0)
    options = replace(ROOMY, slow=SlowWrites(traces, world.clock))
    async with port(world, options) as there:
        await there.write(prewrite(10, SIZE))
        assert [each.start_ts for each in traces.take()] == [at(10)]
        measures = there.pump.statistics().shards[0].measures
        for kind in ("single", "batch"):
            assert sum(measures.sizes[kind].counts) == sum(measures.seconds[kind].counts) == 1


async def test_a_call_that_is_given_up_leaves_nothing(world: World) -> None:
    async with port(world) as there:
        before = there.segments(), there.pump.logs()
        with suppress(GRPCError):
            await there.write(prewrite(10, SIZE), upto=SIZE // 2)
        await eventually(lambda: there.spools() == [])
        assert (there.segments(), there.pump.logs()) == before
        await there.write(prewrite(10, SIZE))
        await there.write(commit(10, 11))
        assert numbers(await pulled(there.pump, upto=at(11)))[-1] == (10, 11)


async def test_what_a_kill_leaves_behind_is_removed(world: World) -> None:
    value = world.directory / "pump" / "shard-0" / "value"
    async with world.pump() as pump:
        await written(pump, prewrite(10), commit(10, 11))
    (value / "445-1.spool").write_bytes(bytes(1000))
    async with world.pump() as pump:
        assert not list(value.glob("*.spool"))
        assert numbers(await pulled(pump, upto=at(11)))[-1] == (10, 11)


class Measured(PosixDisk):
    """Has so many bytes free, and counts what files take of them."""

    def __init__(self, directory: Path, free_bytes: int) -> None:
        super().__init__()
        self._directory, self._free_bytes = directory, free_bytes

    async def space(self, directory: Path) -> Space:
        value = self._directory / "pump" / "shard-0" / "value"
        taken = sum(path.stat().st_size for path in value.glob("*"))
        return Space(self._free_bytes, self._free_bytes - taken)


async def test_what_has_come_of_one_is_not_taken_from_the_room_of_another_again(
    tmp_path: Path,
) -> None:
    """Two fit, three do not, however much of the first has come when the others are announced."""
    payloads = [prewrite(start, SIZE) for start in (100, 200, 300)]
    size = len(payloads[0])
    begins = [made for each in payloads if (made := outline(each, peek.NO_DDL, size))]
    disk = Measured(tmp_path, 2 * size + size // 2)
    try:
        async with port(World(tmp_path, disk)) as there, AsyncExitStack() as open_spools:
            first, second, third = map(there.pump.spools.begun, begins)
            spool = await open_spools.enter_async_context(first)
            assert there.pump.statistics().spooled_bytes_coming == size
            await spool.write(payloads[0][: size - 10])
            assert there.pump.statistics().spooled_bytes_coming == 10
            await open_spools.enter_async_context(second)
            with pytest.raises(DiskFull):
                await open_spools.enter_async_context(third)
            assert len(there.spools()) == 2
    finally:
        disk.close()


async def test_one_that_finds_the_directory_gone_hears_that_and_not_of_a_full_disk(
    tmp_path: Path,
) -> None:
    payload = prewrite(100, SIZE)
    begin = outline(payload, peek.NO_DDL, len(payload))
    assert begin is not None
    with closing(PosixDisk()) as disk:
        async with port(World(tmp_path, disk)) as there:
            (pump_directory(tmp_path) / SHARDS_FILE).unlink()
            with pytest.raises(Unavailable, match="was removed or moved under this process"):
                async with there.pump.spools.begun(begin):
                    pass


@pytest.mark.parametrize("why", ["cluster", "paused", "space", "size"])
async def test_one_that_is_not_taken_is_refused_before_it_comes(tmp_path: Path, why: str) -> None:
    options = replace(ROOMY, record_bytes_max=SIZE - 10 if why == "size" else 1 << 30)
    words = {
        "cluster": "cluster ID are mismatch",
        "paused": "no online",
        "space": "available: 14999",
        "size": "message larger than max",
    }[why]
    disk = Measured(tmp_path, SIZE if why == "space" else 1 << 40)
    try:
        async with port(World(tmp_path, disk), options) as there:
            if why == "paused":
                there.pump.request(Action.PAUSE)
            with pytest.raises(GRPCError) as refused:
                await there.write(prewrite(10, SIZE), cluster=CLUSTER + (why == "cluster"))
            assert words in (refused.value.message or "")
            assert there.spools() == []
            assert there.pump.statistics().accepted == 0
    finally:
        disk.close()


@pytest.mark.parametrize(
    "strange",
    [
        prewrite(10, SIZE)[:-4] + b"\x40\x00\x38\x00",  # told at its end
        prewrite(10, SIZE)[:-4],  # at its beginning
        b"\x10" + prewrite(10, SIZE)[3:-4] + b"\x08\x00\x38\x00\x40\x00",
    ],
    ids=["end", "beginning", "order"],  # megabytes make no name
)
async def test_bytes_that_are_not_as_tidb_writes_them_are_made_so(
    world: World, strange: bytes
) -> None:
    _, canonical = peek.head_and_canonical(strange)
    assert canonical != strange
    async with port(world) as there:
        await there.write(strange)
        await there.write(commit(10, 11))
        found = await pulled(there.pump, upto=at(11))
        assert bytes(found[-1].payload) == join(canonical, commit(10, 11))
        assert there.spools() == []


async def test_those_that_wait_for_room_leave_the_connection_to_those_that_have_it(
    world: World,
) -> None:
    limits = replace(SMALL_LIMITS, bytes_in_flight_max=1)  # for one at a time

    async def refusal(there: Port, number: int) -> str:
        try:
            await there.write(prewrite(number, 2 << 20))
        except GRPCError as error:
            return error.message or ""
        return ""

    async with port(world, limits=limits) as there:
        await there.write(prewrite(10))  # who has written may send more
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            writing = [group.create_task(refusal(there, 101 + each)) for each in range(20)]
        refusals = {task.result() for task in writing} - {""}
        assert all("are in flight already" in each for each in refusals), refusals
        assert there.spools() == []


class Gated(PosixDisk):
    """Removes nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may, self.is_asked = asyncio.Event(), asyncio.Event()
        self.may.set()

    async def remove(self, paths: Sequence[Path]) -> None:
        self.is_asked.set()
        await self.may.wait()
        await super().remove(paths)


async def test_one_that_is_given_up_while_it_is_removed_leaves_nothing(tmp_path: Path) -> None:
    disk = Gated()
    try:
        async with port(World(tmp_path, disk)) as there:
            (shard,) = there.pump._shards
            spool = await shard.log.spool("late")
            disk.is_asked.clear()
            disk.may.clear()
            dropping = asyncio.create_task(spool.drop())
            await disk.is_asked.wait()
            dropping.cancel()
            disk.may.set()
            with pytest.raises(asyncio.CancelledError):
                await dropping
            assert there.spools() == []
    finally:
        disk.close()


class Failing(PosixDisk):
    """Fails once at a step, after it has done it."""

    step = ""
    may_remove = True

    async def remove(self, paths: Sequence[Path]) -> None:
        if not self.may_remove:
            raise OSError(5, "Input/output error")
        await super().remove(paths)

    async def _done(self, step: str) -> None:
        if self.step == step:
            self.step = ""
            raise OSError(5, "Input/output error")

    async def rename(self, source: Path, target: Path) -> None:
        await super().rename(source, target)
        await self._done("rename")

    async def overwrite(self, path: Path, begin: int, content: bytes) -> None:
        await super().overwrite(path, begin, content)
        await self._done("overwrite")


@pytest.mark.parametrize("step", ["rename", "overwrite"])
async def test_one_that_could_not_be_written_is_not_in_the_log(tmp_path: Path, step: str) -> None:
    disk = Failing()
    try:
        world = World(tmp_path, disk)
        async with port(world) as there:
            await written(there.pump, prewrite(10), commit(10, 11))
            disk.step = step
            with pytest.raises(GRPCError) as refused:
                await there.write(prewrite(20, SIZE))
            assert refused.value.status is Status.UNKNOWN
            assert "Input/output error" in (refused.value.message or "")
            assert there.spools() == []
            await there.write(prewrite(20, SIZE))
            await there.write(commit(20, 21))
            found = await pulled(there.pump, upto=at(21))
            assert numbers(found)[-2:] == [(10, 11), (20, 21)]
        async with world.pump() as pump:
            found = await pulled(pump, upto=at(21))
            assert numbers(found)[-2:] == [(10, 11), (20, 21)]
    finally:
        disk.close()


async def test_a_name_that_could_not_be_taken_back_does_not_end_writing(tmp_path: Path) -> None:
    disk = Failing()
    try:
        world = World(tmp_path, disk)
        async with port(world) as there:
            await written(there.pump, prewrite(10), commit(10, 11))
            disk.step, disk.may_remove = "rename", False
            with pytest.raises(GRPCError):
                await there.write(prewrite(20, SIZE))
            disk.may_remove = True
            assert len(there.segments()) == 2  # nobody was told of the second
            await written(there.pump, prewrite(30), commit(30, 31))
            assert there.pump.statistics().shards[0].failed_records == 1
        async with world.pump() as pump:
            found = await pulled(pump, upto=at(31))
            assert numbers(found)[-2:] == [(10, 11), (30, 31)]
    finally:
        disk.close()


async def test_a_pump_that_stops_refuses_what_waits(world: World) -> None:
    async with world.pump() as pump:
        (shard,) = pump._shards
        spool = await shard.log.spool("late")
        await spool.write(prewrite(10, SIZE))
        await spool.finish()
    with pytest.raises(NotOnline):
        await shard.put_spool(spool, at(10))
    assert not spool.is_given
