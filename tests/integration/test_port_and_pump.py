"""The port in front of a real Pump: recorded binlogs in, the same transactions out, also after a
restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from binlogd.binlog import BinlogType, CommittedBinlog
from binlogd.client.pump_client import ClientLimits, PumpClient, RemoteSource
from binlogd.errors import MissedCommit, PumpUnavailable, Refused
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.pump.metrics import say_pump, say_service
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import Action
from binlogd.serving.server import Server
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.wire import peek
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.pump_world import eventually
from tests.support.recordings_reader import committed, info, records

RECORDINGS = Path(__file__).parents[1] / "recordings"


@dataclass
class Port:
    pump: Pump
    service: PumpService
    host: str
    port: int

    def metrics(self) -> bytes:
        out = Exposition()
        say_service(out, self.service.statistics())
        say_pump(out, self.pump.statistics())
        return out.text()

    def client(self, cluster_id: int) -> PumpClient:
        limits = ClientLimits(prewrite_retry_s=0.2, prewrite_retry_interval_s=0.05)
        return PumpClient(self.host, self.port, cluster_id=cluster_id, limits=limits)

    def source(self, cluster_id: int) -> RemoteSource:
        return RemoteSource("remote", self.host, self.port, cluster_id=cluster_id)


@asynccontextmanager
async def appliance(directory: Path) -> AsyncIterator[Port]:
    tso = ObservedTso()
    store = await UpstreamStore.open(directory / "upstream.db")
    disk = PosixDisk()
    pump = await Pump.open(
        directory,
        shards=3,
        tso=tso,
        txn_status=LocalTxnStatus(tso, rolls_back_abandoned=False),
        clock=WallClock(),
        disk=disk,
        options=PumpOptions(free_bytes_min=1, fake_interval_s=0.2),
    )
    cluster = await StoredClusterIdentity.open(store, 0)
    service = PumpService(pump, cluster)
    port = Port(pump, service, "127.0.0.1", 0)
    server = Server([service])
    async with asyncio.TaskGroup() as group:
        group.create_task(pump.run())
        _, port.port = await server.start("127.0.0.1", 0)
        try:
            yield port
        finally:
            await service.close()
            await server.close()
            await pump.close()
            await store.close()
            disk.close()


async def feed(port: Port, recording: str) -> int:
    """Everything in the order of arrival; a few at a time, as far as the order allows."""
    cluster_id = int(info(RECORDINGS / recording)["cluster_id"])
    async with port.client(cluster_id) as client:
        batch: list[bytes] = []
        for _, _, payload in records(RECORDINGS / recording):
            if peek.peek(payload).tp != BinlogType.PREWRITE or len(batch) >= 32:
                await write_all(client, batch)
                batch = []
            batch.append(payload)
        await write_all(client, batch)
    return cluster_id


async def write_all(client: PumpClient, payloads: list[bytes]) -> None:
    async with asyncio.TaskGroup() as group:
        for payload in payloads:
            group.create_task(client.write(payload))


async def pulled(source: RemoteSource, count: int, after: Tso = NO_TS) -> list[CommittedBinlog]:
    found: list[CommittedBinlog] = []
    pulls: Any = source.pull(after)
    async with aclosing(pulls):
        async for batch in pulls:
            found += [binlog for binlog in batch.binlogs if not binlog.is_fake]
            if len(found) >= count:
                break
    return found


@pytest.mark.parametrize(
    "recording", ["few", *(pytest.param(name, marks=pytest.mark.soak) for name in ("keys", "ddl"))]
)
async def test_what_was_recorded_goes_in_and_comes_out_joined_and_in_order(
    tmp_path: Path, recording: str
) -> None:
    expected = list(committed(RECORDINGS / recording))
    async with appliance(tmp_path) as port:
        cluster_id = await feed(port, recording)
        assert await pulled(port.source(cluster_id), len(expected)) == expected
    async with appliance(tmp_path) as port:
        middle = len(expected) // 2
        source = port.source(cluster_id)
        later = await pulled(source, len(expected) - middle, expected[middle - 1].commit_ts)
        assert later == expected[middle:]
        async with port.client(5) as stranger:
            with pytest.raises(Refused, match=f"cluster ID are mismatch, 5 vs {cluster_id}"):
                await stranger.write(prewrite_binlog(Tso(1)))


async def test_a_closing_pump_takes_outcomes_only(tmp_path: Path) -> None:
    async with appliance(tmp_path) as port, port.client(1) as client:
        await client.write(prewrite_binlog(Tso(10)))
        port.pump.request(Action.CLOSE)
        with pytest.raises(PumpUnavailable, match="no online: closing"):
            await client.write(prewrite_binlog(Tso(11)))
        with pytest.raises(PumpUnavailable, match="no online: closing"):
            await client.probe()
        await client.write(commit_binlog(Tso(10), Tso(12)))
        await port.pump.settle()
        assert port.pump.max_commit_ts >= 12


@pytest.mark.parametrize(
    ("late", "named_max"),
    [([160], 1), ([160, 161, 162], 3), ([*range(60, 161)], 0)],
    ids=["one", "some", "more than are named"],
)
async def test_who_has_pulled_further_is_told_of_commits_that_came_too_late(
    tmp_path: Path, late: list[int], named_max: int
) -> None:
    async with appliance(tmp_path) as port, port.client(1) as client:

        async def committed_at(commit_ts: int) -> None:
            await client.write(prewrite_binlog(Tso(commit_ts - 1)))
            await client.write(commit_binlog(Tso(commit_ts - 1), Tso(commit_ts)))

        await committed_at(200 << 18)

        async def further() -> None:
            async with aclosing(port.source(1).pull(NO_TS)) as batches:
                async for batch in batches:
                    if batch.resolved_ts >= 200 << 18 and not port.pump.late.unresolved():
                        await asyncio.gather(*(committed_at(ts << 18) for ts in late))
                        await eventually(lambda: len(port.pump.late.unresolved()) == len(late))
                        await committed_at(300 << 18)

        said = rf"DATA_LOSS: .*commit_ts {late[0] << 18} \(start_ts"
        with pytest.raises(MissedCommit, match=said) as missed:
            await further()
        named = [(start_ts, commit_ts >> 18) for _, start_ts, commit_ts in missed.value.late]
        assert named == [((ts << 18) - 1, ts) for ts in late[:named_max]]
        count = 2 + len(late)
        found = [each.commit_ts >> 18 for each in await pulled(port.source(1), count)]
        assert found == [*late, 200, 300], "who begins before it gets it in its place"


async def test_the_metrics_tell_what_happened(tmp_path: Path) -> None:
    async with appliance(tmp_path) as port, port.client(1) as client:
        start_ts, commit_ts = Tso(100 << 18), Tso(200 << 18)
        await client.write(prewrite_binlog(start_ts))
        await client.write(commit_binlog(start_ts, commit_ts))
        async with port.client(2) as stranger:
            with pytest.raises(Refused):
                await stranger.write(prewrite_binlog(Tso(1)))
        await pulled(port.source(1), 1)
        samples = dict(
            line.rsplit(" ", 1)
            for line in port.metrics().decode().splitlines()
            if not line.startswith("#")
        )
        calls = "binlog_pump_rpc_duration_seconds_count"
        assert samples[f'{calls}{{method="WriteBinlog",label="succ"}}'] == "2"
        assert samples[f'{calls}{{method="WriteBinlog",label="fail"}}'] == "1"
        assert samples["binlog_pump_loss_binlog_count"] == "0"
        assert samples["binlog_pump_storage_max_commit_ts"] == "200"
        written = [v for k, v in samples.items() if k.startswith("binlogd_shard_written_records")]
        assert sum(map(int, written)) == 2
