"""Everything between a Pump that holds the binlogs and the rows in MariaDB, in one process.

Pull from the shards, merge, translate, relay log with fsync, lanes, progress with the rows: the
path of `binlogd serve` behind the acknowledgement. The Pump is filled before the clock starts, as
it was for the Go Drainer's figures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.host.disk import PosixDisk
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.bench.load import Load
from tests.bench.pump_load import running_pump
from tests.support.job_history import MemoryHistory
from tests.support.mariadb import MariaDb

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SHARDS = 4
WRITE_BATCH = 500
LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds of the clock, of this process (all threads) and of mariadbd."""

    took_s: float
    own_s: float
    server_s: float


class Meter:
    """Measures from its making to `read`."""

    def __init__(self, mariadb: MariaDb) -> None:
        self._pid = mariadb.pid
        self._begin = time.perf_counter(), time.process_time(), self._server_s()

    def read(self) -> Cost:
        now = time.perf_counter(), time.process_time(), self._server_s()
        return Cost(*(end - begin for begin, end in zip(self._begin, now, strict=True)))

    def _server_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Place(Protocol):
    """Where a MariaDB is: `MariaDb`, or what another process knows of one."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def password(self) -> str: ...


def server_of(mariadb: Place) -> MySqlServer:
    """Where the sink connects to."""
    return MySqlServer(mariadb.host, mariadb.port, mariadb.user, mariadb.password)


def halves(binlog: CommittedBinlog) -> tuple[bytes, bytes]:
    """The Prewrite and the Commit that TiDB sends for it."""
    key, body = peek.prewrite_key(bytes(binlog.payload)), peek.body(binlog.payload)
    query, job_id, state = body.ddl_query or None, body.ddl_job_id, body.ddl_schema_state
    prewrite = prewrite_binlog(
        binlog.start_ts,
        prewrite_key=key,
        prewrite_value=body.prewrite_value or None,
        ddl_query=query,
        ddl_job_id=job_id,
        ddl_schema_state=state,
    )
    commit = commit_binlog(
        binlog.start_ts,
        binlog.commit_ts,
        prewrite_key=key,
        ddl_query=query,
        ddl_job_id=job_id,
        ddl_schema_state=state,
    )
    return prewrite, commit


async def fill(pump: Pump, binlogs: Sequence[CommittedBinlog]) -> None:
    """Writes each transaction as TiDB does: its prewrite, then its commit."""
    batch: list[bytes] = []
    for binlog in binlogs:
        batch += halves(binlog)
        if len(batch) >= WRITE_BATCH:
            await _written(pump, batch)
            batch = []
    await _written(pump, batch)


async def _written(pump: Pump, batch: list[bytes]) -> None:
    refused = [error for error in await pump.write(batch) if error is not None]
    if refused:
        raise refused[0]


@asynccontextmanager
async def draining(
    pump: Pump, mariadb: Place, load: Load, directory: Path, lanes: int
) -> AsyncIterator[Drainer]:
    """A Drainer of this Pump into this server, with a relay log; drained at the end."""
    disk = PosixDisk(threads=2)
    options = MySqlSinkOptions(lanes=lanes)
    ports = DrainerPorts(
        sources=pump.sources(),
        history=MemoryHistory(jobs_from_json(load.history)),
        make_sink=lambda: MySqlSink(server_of(mariadb), 1, options, Random(1)),
        relay=RelayWriter(directory / "relay", disk, max_file_bytes=10 << 20),
        table_filter=TableFilter(),
        on_saved=lambda checkpoint: None,
    )
    drainer = Drainer(ports, Backoff(Random(1)), DrainerOptions(dialect=Dialect.MYSQL))
    async with asyncio.TaskGroup() as group:
        group.create_task(drainer.run())
        yield drainer
        await drainer.drain()
    disk.close()


async def until_applied(drainer: Drainer, commit_ts: Tso) -> None:
    """Returns when everything up to there is downstream. Raises RuntimeError when it is stuck."""
    while drainer.statistics().applied_ts < commit_ts:
        if error := drainer.statistics().last_error:
            raise RuntimeError(error)
        await asyncio.sleep(LOOK_EVERY_S)


async def through_everything(mariadb: MariaDb, load: Load, directory: Path, lanes: int) -> Cost:
    """The cost of a load whose binlogs the Pump holds; what it builds on is downstream before."""
    mariadb.reset()
    options = PumpOptions(free_bytes_min=1)
    async with running_pump(directory / "pump", shards=SHARDS, options=options) as pump:
        await fill(pump, load.setup)
        async with draining(pump, mariadb, load, directory, lanes) as drainer:
            await until_applied(drainer, load.setup[-1].commit_ts)
        await fill(pump, load.binlogs)
        meter = Meter(mariadb)
        async with draining(pump, mariadb, load, directory, lanes) as drainer:
            await until_applied(drainer, load.binlogs[-1].commit_ts)
            return meter.read()
