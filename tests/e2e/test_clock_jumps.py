"""The wall clock of a real process jumps, forward and back, by libfaketime: timestamps still rise,
nothing is lost, and nobody stops.

The node hands out the timestamps itself (`upstream.tso = "clock"`), so its clock is the one that
counts; time that only goes forward, by which it waits, is left alone, as a jump leaves it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.errors import UpstreamUnavailable
from binlogd.tso import NO_TS, Tso, physical_ms
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.tso import PdTso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance, run
from tests.support.faults import RecordProperty, counted

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
CLOCK_READ_EVERY_S = 1
HOUR_S = 3600
ANSWERED_S = 60.0
SHORT = (0, HOUR_S, -2 * HOUR_S)
ROWS = encode_mutations(1, [])


class Jumping(Appliance):
    """A node whose wall clock is that of the machine and so many seconds."""

    def set_off(self, by_s: int) -> None:
        """Counts within a second."""
        fresh = self.directory / "off.new"
        fresh.write_text(f"{by_s:+d}\n")
        fresh.rename(self.directory / "off")

    def seen_off(self) -> float:
        """By how much the clock of the process is off, to the second."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=60) as answer:
            told = parsedate_to_datetime(answer.headers["Date"])
        return (told - datetime.now(UTC)).total_seconds()

    def jump(self, by_s: int) -> None:
        """Its clock is off by this on return."""
        self.set_off(by_s)
        while abs(self.seen_off() - by_s) > 2 * CLOCK_READ_EVERY_S:  # within the test's own limit
            time.sleep(0.05)

    def launched(self) -> subprocess.Popen[bytes]:
        """The command itself: what is forked has no preload of its own."""
        assert FAKETIME is not None, "libfaketime is missing: make system installs it"
        faked = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.directory / "off"),
            "FAKETIME_CACHE_DURATION": str(CLOCK_READ_EVERY_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return self.command(faked)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Jumping]:
    """With a Drainer into files, and the customary limit on timestamps that lie ahead."""
    made = Jumping(tmp_path)
    made.configure(
        '[upstream]\nkind = "standalone"\ntso = "clock"\n[syncer]\ndb-type = "sqlite"\n',
        'node-id = "pump0"\n',
    )
    text = made.config_file.read_text()
    made.config_file.write_text(text.replace("timestamp-ahead-max = 1000000000\n", ""))
    yield made
    made.close()


class Writer:
    """A TiDB that gets its timestamps from the node."""

    def __init__(self, node: Jumping) -> None:
        self._node = node
        self.commits: list[Tso] = []
        self._last = NO_TS

    async def write(self, count: int) -> None:
        """Some transactions, each in order. Fails where a timestamp does not rise."""
        client = PdClient([self._node.target], None)
        times = PdTso(client)
        try:
            own = await client.cluster_id()
            async with PumpClient(*self._node.target, cluster_id=own) as pump:
                for _ in range(count):
                    start_ts = await self._next(times)
                    prewrite = prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=ROWS)
                    await pump.write(prewrite)
                    commit_ts = await self._next(times)
                    await pump.write(commit_binlog(start_ts, commit_ts))
                    self.commits.append(commit_ts)
        finally:
            await times.close()
            await client.close()

    async def _next(self, times: PdTso) -> Tso:
        found = await self._patiently(times)
        assert found > self._last, f"{found} after {self._last}"
        self._last = found
        return found

    async def _patiently(self, times: PdTso) -> Tso:
        """A process under libfaketime is slow, and a machine may be: a writer asks again."""
        async with asyncio.timeout(ANSWERED_S):
            while True:  # until it answers, or the time is over
                try:
                    return await times.next()
                except UpstreamUnavailable:
                    await asyncio.sleep(0.1)


async def goes_on(node: Jumping, writer: Writer) -> None:
    """Transactions are taken, and applied."""
    await writer.write(3)
    last = writer.commits[-1]

    def is_applied(status: dict[str, object]) -> bool:
        drainer = status["drainer"]
        assert isinstance(drainer, dict)
        assert drainer["state"] == "running", drainer
        return int(drainer["applied_ts"]) >= last

    status = await asyncio.to_thread(node.wait, is_applied)
    assert status["refuses_because"] == ""


async def lived_through(
    node: Jumping, jumps: tuple[int, ...], property_: RecordProperty, kills: frozenset[int]
) -> None:
    writer, begun_ms = Writer(node), int(time.time() * 1000)
    node.set_off(0)
    await asyncio.to_thread(node.start)
    with counted(property_, fault="the wall clock jumps", target="node") as cases:
        for number, off_s in enumerate(jumps):
            if number in kills:
                node.kill()
                node.set_off(off_s)
                await asyncio.to_thread(node.start)
            await asyncio.to_thread(node.jump, off_s)
            await goes_on(node, writer)
            cases.one()
        furthest_ms = begun_ms + max(jumps) * 1000
        assert physical_ms(writer.commits[-1]) >= furthest_ms, "its clock was never there"
        assert await asyncio.to_thread(node.stop) == 0
        dumped = run(node.directory, "dump", "--heads", "--data-dir", str(node.data_dir))
        assert dumped.returncode == 0, dumped.stderr
        assert [ts for ts in writer.commits if str(ts) not in dumped.stdout] == []


async def test_time_goes_on_whatever_the_clock_does(
    node: Jumping, record_property: RecordProperty
) -> None:
    await lived_through(node, SHORT, record_property, frozenset())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
async def test_time_goes_on_through_many_jumps_and_deaths(
    node: Jumping, record_property: RecordProperty, seed: int
) -> None:
    rng = random.Random(seed)
    sizes = (1, 3, 60, HOUR_S, 30 * HOUR_S)
    jumps = tuple(rng.choice((-1, 1)) * rng.choice(sizes) for _ in range(12))
    kills = frozenset(n for n in range(12) if rng.random() < 0.3)
    await lived_through(node, jumps, record_property, kills)
