"""What TiDB, the Go Drainer and binlogctl sent to a Go Pump, sent to ours; and its answers, read.

Recorded on one cluster: TiDB's bootstrap and some SQL, then a Drainer that starts from nothing and
one that starts again. Source: tests/recordings/wire.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

from binlogd.binlog import CommittedBinlog
from binlogd.client.pump_client import RemoteSource
from binlogd.grpc.channel import PlainChannel
from binlogd.merge.stream import merged
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import NO_TS, Tso
from binlogd.wire import codec, peek
from tests.support.memory_pump import Cluster
from tests.support.pump_world import posix_world
from tests.support.recordings_reader import RECORDINGS
from tests.support.wire_recordings import say_whose

WRITE, PULL = "/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs"


def said(name: str, direction: str, method: str = "") -> list[bytes]:
    """Messages of a recording, in their order."""
    with gzip.open(RECORDINGS / "wire" / f"{name}.jsonl.gz") as lines:
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    calls = {row["call"] for row in rows if row["dir"] == "start" and row["method"] == method}
    return [
        bytes.fromhex(row.get("hex", ""))
        for row in rows
        if row["dir"] == direction and (row["call"] in calls or row.get("method") == method)
    ]


@pytest.fixture(autouse=True)
def _whose() -> None:
    """They are read once for all tests."""
    say_whose("tidb", "pump", "drainer")


FROM_TIDB = said("tidb-to-pump", "request", WRITE)
TO_DRAINER = said("drainer-to-pump", "response", PULL)
FROM_DRAINER = said("drainer-to-pump", "request", PULL)
CLUSTER_ID = codec.decode_pull_request(FROM_DRAINER[0]).cluster_id


def is_fake(answer: bytes) -> bool:
    return codec.decode_pull_answer(answer).is_fake


@asynccontextmanager
async def our_pump(directory: Path) -> AsyncIterator[Channel]:
    async with posix_world(directory) as world, world.pump(shards=4) as pump:
        service = PumpService(pump, Cluster())
        server = Server([service], sinks=service.sinks())
        channel = PlainChannel(*await server.start("127.0.0.1", 0))
        try:
            yield channel
        finally:
            channel.close()
            await service.close()
            await server.close()


async def written(channel: Channel, request: bytes) -> bytes | None:
    async with channel.request(WRITE, Cardinality.UNARY_UNARY, bytes, bytes) as stream:
        await stream.send_message(request, end=True)
        answer: bytes | None = await stream.recv_message()
        return answer


async def pulled(channel: Channel, request: bytes, up_to: int) -> list[bytes]:
    """What the Drainer's request is answered with, as far as a commit_ts."""
    found: list[bytes] = []
    async with (
        asyncio.timeout(120),
        channel.request(PULL, Cardinality.UNARY_STREAM, bytes, bytes) as stream,
    ):
        await stream.send_message(request, end=True)
        async for answer in stream:
            found.append(answer)
            if codec.decode_pull_answer(answer).commit_ts >= up_to:
                await stream.cancel()
                break
    return found


def committed_of(requests: Sequence[bytes]) -> set[int]:
    """The start_ts of the transactions whose two binlogs are among the requests."""
    heads = [peek.peek(codec.decode_write_request(each).payload) for each in requests]
    prewrites = {head.start_ts for head in heads if not head.commit_ts}
    return {head.start_ts for head in heads if head.commit_ts} & prewrites


async def test_what_tidb_wrote_is_answered_and_given_to_a_go_drainer_byte_by_byte(
    tmp_path: Path,
) -> None:
    complete = committed_of(FROM_TIDB)
    expected = [each for each in TO_DRAINER if codec.decode_pull_answer(each).start_ts in complete]
    assert len(expected) > 40
    async with our_pump(tmp_path) as channel:
        for request in FROM_TIDB:
            assert await written(channel, request) == b""
        last = codec.decode_pull_answer(expected[-1]).commit_ts
        found = await pulled(channel, FROM_DRAINER[0], last)
    assert [each for each in found if not is_fake(each)] == expected


async def test_a_pump_of_ours_that_sends_an_orphans_commit_is_answered(tmp_path: Path) -> None:
    """Another Pump may ask: the recording has one prewrite sent by a foreign client."""
    async with our_pump(tmp_path) as channel:
        for request in said("pump-to-pump", "request", WRITE):
            assert await written(channel, request) == b""


def test_our_drainer_asks_a_pump_as_the_original_does() -> None:
    after = codec.decode_pull_request(FROM_DRAINER[1]).after
    assert codec.encode_pull_request(CLUSTER_ID, NO_TS) == FROM_DRAINER[0]
    assert codec.encode_pull_request(CLUSTER_ID, after) == FROM_DRAINER[1]


class GoPump:
    """Answers a pull with what the Go Pump answered, from where it is asked for."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.requests: list[bytes] = []
        self._answers = answers

    def __mapping__(self) -> dict[str, Handler]:
        return {PULL: Handler(self._pull, Cardinality.UNARY_STREAM, bytes, bytes)}

    async def _pull(self, stream: Stream[bytes, bytes]) -> None:
        request = await stream.recv_message()
        assert request is not None
        self.requests.append(request)
        after = codec.decode_pull_request(request).after
        for answer in self._answers:
            if codec.decode_pull_answer(answer).commit_ts > after:
                await stream.send_message(answer)
        await asyncio.Event().wait()


@asynccontextmanager
async def go_pump(answers: Sequence[bytes]) -> AsyncIterator[tuple[GoPump, RemoteSource]]:
    pump = GoPump(answers)
    server = Server([pump])
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield pump, RemoteSource("pump0", host, port, cluster_id=CLUSTER_ID)
    finally:
        await server.close()


async def read(source: RemoteSource, after: Tso, last: int) -> list[CommittedBinlog]:
    found: list[CommittedBinlog] = []
    async with asyncio.timeout(120), aclosing(source.pull(after)) as batches:
        async for batch in batches:
            found += batch.binlogs
            if batch.resolved_ts >= last:
                break
    return found


async def test_what_a_go_pump_gives_is_read_and_asked_for_again_from_where_it_was() -> None:
    binlogs = [codec.decode_pull_answer(each) for each in TO_DRAINER]
    last = max(each.commit_ts for each in binlogs)
    async with go_pump(TO_DRAINER) as (pump, source):
        assert await read(source, NO_TS, last) == binlogs
        middle = binlogs[len(binlogs) // 2].commit_ts
        assert await read(source, middle, last) == [b for b in binlogs if b.commit_ts > middle]
    assert pump.requests == [FROM_DRAINER[0], codec.encode_pull_request(CLUSTER_ID, middle)]


async def test_two_go_pumps_are_merged_into_the_order_of_one() -> None:
    """Each has every second transaction, and all the fake binlogs."""
    real = [each for each in TO_DRAINER if not is_fake(each)]
    shares = [
        [each for each in TO_DRAINER if is_fake(each) or real.index(each) % 2 == part]
        for part in (0, 1)
    ]
    last = min(codec.decode_pull_answer(share[-1]).commit_ts for share in shares)
    async with go_pump(shares[0]) as (_, first), go_pump(shares[1]) as (_, second):
        second.name = "pump1"
        found: list[CommittedBinlog] = []
        async with asyncio.timeout(120), merged([first, second], NO_TS) as stream:
            async for batch in stream:
                found += batch.binlogs
                if batch.resolved_ts >= last:
                    break
    expected = [codec.decode_pull_answer(each) for each in real]
    assert [b for b in found if not b.is_fake] == [b for b in expected if b.commit_ts <= last]


@pytest.mark.parametrize("direction", ["request", "response"])
def test_the_recording_holds_what_these_tests_are_about(direction: str) -> None:
    assert said("drainer-to-pump", direction, PULL)
    assert said("tidb-to-pump", direction, WRITE)
