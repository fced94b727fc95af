"""Processes that stand still for a while, as under SIGSTOP or in a machine that is moved: a Pump
that is its own PD, a Drainer behind it, and the MariaDB that this writes to.

The long form stops each for longer than what the others wait: a call of a writer (15 s), a claim to
be alive in the registry (10 s), an answer to a statement (300 s). Nothing is lost, nobody is stuck,
and all goes on without a word of an operator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.client.pump_client import ClientLimits, PumpClient
from tests.e2e.test_recordings_end_to_end import RECORDINGS, ignoring, skipped
from tests.support.appliance import Appliance, into_mariadb
from tests.support.faults import Cases, RecordProperty, counted
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import compare, connect, history, info
from tests.workload.feed import Feeder
from tests.workload.recording import cluster_id, records
from tests.workload.timeline import Record

NAME = "few"
RECORDING = RECORDINGS / NAME
PATIENT = ClientLimits(
    deadline_s=5.0, prewrite_retry_s=600.0, outcome_retry_s=600.0, outcome_retry_interval_s=0.1
)
SHORT = {"MariaDB": 1.0, "Drainer": 1.0, "Pump": 1.0}
LONG = {"MariaDB": 310.0, "Drainer": 25.0, "Pump": 25.0}
CAUGHT_UP_S = 400.0
"""With the time in which a statement may go without an answer."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Trio:
    """The three of them."""

    def __init__(self, directory: Path, mariadb: MariaDb) -> None:
        for name in ("pump", "drainer"):
            (directory / name).mkdir()
        self.mariadb = mariadb
        self.pump = Appliance(directory / "pump", history=history(RECORDING))
        self.pump.configure(
            '[upstream]\nkind = "standalone"\nschema-history = "ddl_history.json"\n',
            top='roles = ["pump"]\nnode-id = "pump-a"\n',
        )
        self.drainer = Appliance(directory / "drainer")
        self.drainer.configure(
            f'[upstream]\nkind = "pd"\npd-urls = "127.0.0.1:{self.pump.port}"\n'
            f"cluster-id = {cluster_id(RECORDING)}\n" + into_mariadb(mariadb, extra=ignoring(NAME)),
            top='roles = ["drainer"]\nnode-id = "drainer-c"\n',
        )

    def pid(self, name: str) -> int:
        if name == "MariaDB":
            return self.mariadb.pid
        return (self.drainer if name == "Drainer" else self.pump).pid

    def caught_up(self, commit_ts: int) -> None:
        """All is applied, and nobody says that something is wrong."""
        deadline_s = time.monotonic() + CAUGHT_UP_S
        self.pump.wait(lambda status: status["max_commit_ts"] >= commit_ts)
        status = self.drainer.wait_until_applied(commit_ts, timeout_s=CAUGHT_UP_S)
        while status["drainer"]["error"] and time.monotonic() < deadline_s:
            status = self.drainer.status()
        assert (status["drainer"]["state"], status["drainer"]["error"]) == ("running", "")

    def close(self) -> None:
        self.drainer.close()
        self.pump.close()


async def _given(part: list[Record]) -> AsyncIterator[Record]:
    for record in part:
        yield record


async def fed(target: tuple[str, int], part: list[Record]) -> None:
    own = cluster_id(RECORDING)
    async with PumpClient(*target, cluster_id=own, limits=PATIENT) as client:
        await Feeder([client], in_flight=8, patience_s=0).feed(_given(part))


def parts_of(every: list[Record], count: int) -> Iterator[list[Record]]:
    """Parts of about the same size, behind each of which no transaction is open."""
    part, unsettled, left = list[Record](), set[int](), count
    size = len(every) // count
    for record in every:
        part.append(record)
        if record.kind == BinlogType.PREWRITE and not record.is_repeat:
            unsettled.add(record.fate.start_ts)
        elif record.kind != BinlogType.PREWRITE:
            unsettled.discard(record.fate.start_ts)
        if len(part) >= size and not unsettled and left > 1:
            yield part
            part, left = [], left - 1
    yield part


async def lived_through(trio: Trio, stops: dict[str, float], cases: Cases) -> None:
    """A part of the recording comes while one of them stands still."""
    parts = list(parts_of(list(records(RECORDING)), len(stops)))
    for (name, seconds), part in zip(stops.items(), parts, strict=True):
        async with asyncio.TaskGroup() as group:
            with stopped(trio.pid(name)):
                group.create_task(fed(trio.pump.target, part))
                await asyncio.sleep(seconds)
        newest = max(record.fate.commit_ts for record in part)
        await asyncio.to_thread(trio.caught_up, newest)
        cases.one()


def all_is_there(trio: Trio) -> None:
    trio.caught_up(info(RECORDING)["last_tso"])
    assert trio.drainer.stop() == 0
    assert trio.pump.stop() == 0
    server = trio.mariadb
    connection = connect(server.host, server.port, server.user, server.password)
    assert compare(RECORDING, connection, skipped(NAME)) == []


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="long", marks=pytest.mark.soak),
    ],
)
async def test_who_stood_still_goes_on_and_nothing_is_lost(
    tmp_path: Path, mariadb: MariaDb, stops: dict[str, float], record_property: RecordProperty
) -> None:
    trio = Trio(tmp_path, mariadb)
    try:
        await asyncio.to_thread(trio.pump.start)
        await asyncio.to_thread(trio.drainer.start, is_ready=False)
        names = "Pump, Drainer, MariaDB"
        with counted(record_property, fault="stands still (SIGSTOP)", target=names) as cases:
            await lived_through(trio, stops, cases)
            await asyncio.to_thread(all_is_there, trio)
            cases.one()
    finally:
        trio.close()
