"""Recordings through merge, schema, relay log and sink: what a real TiDB held is in MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.sink import Sink
from binlogd.drainer.statistics import DrainerState
from binlogd.host.disk import PosixDisk
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso
from tests.support.job_history import MemoryHistory
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, committed, compare, history
from tests.support.replay import SKIPPED, filter_for, sink_for

SHARDS = 3
RECOVERED = ("fl", "fl_back", "ddl_a.rec*")
"""Of `ddl`, what came back with rows that no binlog holds; EXCHANGE PARTITION is not among it."""


class RecordedShard:
    """Every third transaction of a recording, in batches of its own size."""

    def __init__(self, number: int, binlogs: list[CommittedBinlog], end_ts: Tso) -> None:
        self.name = f"shard-{number}"
        self._binlogs, self._end_ts, self._size = binlogs, end_ts, 17 * (number + 1)

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        left = [binlog for binlog in self._binlogs if binlog.commit_ts > after]
        for begin in range(0, len(left), self._size):
            batch = left[begin : begin + self._size]
            yield Pulled(batch, batch[-1].commit_ts)
        yield Pulled([], self._end_ts)
        await asyncio.Event().wait()


class Recording:
    """A recording as an upstream, and a Drainer in front of it."""

    def __init__(self, name: str, skip: tuple[str, ...], relay: RelayWriter) -> None:
        binlogs = list(committed(RECORDINGS / name))
        self.end_ts = Tso(binlogs[-1].commit_ts + 1)
        self.history = MemoryHistory(jobs_from_json(history(RECORDINGS / name)))
        self.shards = [
            RecordedShard(number, binlogs[number::SHARDS], self.end_ts) for number in range(SHARDS)
        ]
        self.skip, self.relay = skip, relay
        self.saved: list[Checkpoint] = []

    def drainer(self, make_sink: Callable[[], Sink]) -> Drainer:
        ports = DrainerPorts(
            sources=self.shards,
            history=self.history,
            make_sink=make_sink,
            relay=self.relay,
            table_filter=filter_for(self.skip),
            on_saved=self.saved.append,
        )
        options = DrainerOptions(
            dialect=Dialect.MYSQL, checkpoint_interval_s=0.05, drain_timeout_s=120
        )
        return Drainer(ports, Backoff(Random(1), first_s=0.01, max_s=0.1), options)

    async def replicate(self, make_sink: Callable[[], Sink]) -> None:
        """To the end of the recording."""
        drainer = self.drainer(make_sink)
        async with asyncio.TaskGroup() as group:
            group.create_task(drainer.run())
            async with asyncio.timeout(500):
                while drainer.statistics().applied_ts < self.end_ts:
                    assert drainer.statistics().state is not DrainerState.STUCK, (
                        drainer.statistics().last_error
                    )
                    await asyncio.sleep(0.01)
            await drainer.drain()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayWriter]:
    disk = PosixDisk(threads=2)
    yield RelayWriter(tmp_path / "relay", disk, max_file_bytes=1 << 20)
    disk.close()


def check_holds(recording: Recording, name: str, mariadb: MariaDb) -> None:
    with mariadb.connect() as connection:
        assert compare(RECORDINGS / name, connection, recording.skip) == []
    assert recording.saved[-1].consistent
    assert recording.saved[-1].commit_ts == recording.end_ts
    times = [checkpoint.commit_ts for checkpoint in recording.saved]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("name", "skip"),
    [
        ("few", SKIPPED["few"]),
        # in short: without shards in test_mysql_recordings; with many lives, below; end to end
        pytest.param("keys", SKIPPED["keys"], marks=pytest.mark.soak),
        pytest.param("types", SKIPPED["types"], marks=pytest.mark.soak),
        pytest.param("ddl", RECOVERED, marks=pytest.mark.soak),
        pytest.param("mixed", SKIPPED["mixed"], marks=pytest.mark.soak),
    ],
)
async def test_a_recording_spread_over_shards_arrives_exactly(
    name: str, skip: tuple[str, ...], relay: RelayWriter, mariadb: MariaDb
) -> None:
    recording = Recording(name, skip, relay)
    await recording.replicate(lambda: sink_for(mariadb))
    check_holds(recording, name, mariadb)


class Killed(Exception):
    """A sudden end."""


async def kill_soon(rng: Random) -> None:
    await asyncio.sleep(rng.random() * 1.5)
    raise Killed


@pytest.mark.parametrize("name", ["ddl", pytest.param("mixed", marks=pytest.mark.soak)])
async def test_a_drainer_that_is_killed_again_and_again_arrives_as_well(
    name: str, relay: RelayWriter, mariadb: MariaDb
) -> None:
    rng = Random(4)
    recording = Recording(name, {"ddl": RECOVERED, "mixed": ()}[name], relay)
    reached = NO_TS
    for _ in range(2 if name == "ddl" else 4):
        drainer = recording.drainer(lambda: sink_for(mariadb))
        with pytest.RaisesGroup(Killed):
            async with asyncio.TaskGroup() as group:
                group.create_task(drainer.run())
                group.create_task(kill_soon(rng))
        assert drainer.statistics().last_error == ""
        if recording.saved:
            assert recording.saved[-1].commit_ts >= reached
            reached = recording.saved[-1].commit_ts
    await recording.replicate(lambda: sink_for(mariadb))
    check_holds(recording, name, mariadb)
