"""A large Prewrite is written to a file while it comes, which is a part of the log when it is
acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import LogFailed
from binlogd.host.disk import PosixDisk
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.rpc.service import PumpService, ServiceLimits
from binlogd.pump.state import Action
from binlogd.serving.server import Server
from binlogd.wire import codec, peek
from tests.support.large_binlogs import CLUSTER, raw_channel
from tests.support.memory_pump import Cluster
from tests.support.pump_world import (
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
async def port(world: World, options: PumpOptions = ROOMY) -> AsyncIterator[Port]:
    async with world.pump(options) as pump:
        service = PumpService(pump, Cluster(CLUSTER), SMALL_LIMITS, pump.spools)
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
            whole = peek.join(large[start], commit(start, each.commit_ts - at(0)))
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


@pytest.mark.parametrize("why", ["cluster", "paused", "space", "size"])
async def test_one_that_is_not_taken_is_refused_before_it_comes(world: World, why: str) -> None:
    options = replace(ROOMY, record_bytes_max=SIZE - 10 if why == "size" else 1 << 30)
    words = {
        "cluster": "cluster ID are mismatch",
        "paused": "no online",
        "space": "no available space, available: 0",
        "size": "message larger than max",
    }[why]
    async with port(world, options) as there:
        if why == "paused":
            there.pump.request(Action.PAUSE)
        if why == "space":
            there.pump.spools._bytes = 1 << 60  # that others have announced
        payload = prewrite(10, SIZE)
        with pytest.raises(GRPCError) as refused:
            await there.write(payload, cluster=CLUSTER + (why == "cluster"))
        assert words in (refused.value.message or "")
        assert there.spools() == []
        assert there.pump.statistics().accepted == 0


@pytest.mark.parametrize(
    "strange",
    [
        prewrite(10, SIZE)[:-4] + b"\x40\x00\x38\x00",  # told at its end
        prewrite(10, SIZE)[:-4],  # at its beginning
        b"\x10" + prewrite(10, SIZE)[3:-4] + b"\x08\x00\x38\x00\x40\x00",
    ],
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
        assert bytes(found[-1].payload) == peek.join(canonical, commit(10, 11))
        assert there.spools() == []


class Failing(PosixDisk):
    """Fails once at a step, after it has done it."""

    step = ""

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


async def test_a_pump_that_stops_refuses_what_waits(world: World) -> None:
    async with world.pump() as pump:
        (shard,) = pump._shards
        spool = await shard.log.spool("late")
        await spool.write(prewrite(10, SIZE))
        await spool.finish()
    told: list[object] = []
    shard.put_spool(spool, at(10), told.append)
    assert [str(each) for each in told] == ["no longer running this binlog service"] or told
    assert isinstance(told[0], Exception)
    assert not isinstance(told[0], LogFailed)
