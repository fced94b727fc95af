"""A MariaDB that dies in the sync of a COMMIT: nobody knows whether it counts, and each row is
there once all the same."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.errors import DownstreamUnavailable
from binlogd.tso import NO_TS
from tests.integration.drainer.test_downstream_faults import MODES, ROWS, SMALL, TXNS, sink_at
from tests.support import strace
from tests.support.faults import RecordProperty, counted
from tests.support.mariadb import MariaDb

SYNCS = (1, 2, 3, 5, 8, 13, 21)
"""Of all threads of the server; which of them has it die."""
LIVES_MAX = 20

pytestmark = pytest.mark.soak


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[MariaDb]:
    strace.skip_without()
    server = MariaDb(tmp_path, is_durable=True, pool_mb=16)
    server.start()
    yield server
    server.stop()


async def dies_at(server: MariaDb, sync: int) -> asyncio.subprocess.Process:
    """From now on, at the n-th time that a thread of it waits for the disk."""
    kind = "fsync,fdatasync"
    process = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-qq", "-p", str(server.pid), "-e", f"trace={kind}"),
        *("-e", f"inject={kind}:signal=SIGKILL:when={sync}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    async with asyncio.timeout(60):
        while not _is_traced(server.pid):  # noqa: ASYNC110 - strace does not say when it begins
            await asyncio.sleep(0.02)
    return process


def _is_traced(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all("\nTracerPid:\t0\n" not in (each / "status").read_text() for each in threads)


async def applied(server: MariaDb, *, is_transactional: bool) -> None:
    """A life: what is not stored yet is given to the sink. Raises DownstreamUnavailable."""
    sink = sink_at(server.port, SMALL, is_transactional=is_transactional)
    try:
        stored = await sink.open()
        after = NO_TS if stored is None else stored.commit_ts
        running = asyncio.create_task(sink.run())
        try:
            for txn in TXNS:
                if txn.commit_ts > after:
                    await sink.submit([txn])
            await sink.flush()
        finally:
            running.cancel()
    finally:
        await sink.close()


@MODES
async def test_a_server_that_dies_in_a_commit_has_each_row_once(
    durable: MariaDb, record_property: RecordProperty, *, is_transactional: bool
) -> None:
    with counted(
        record_property, fault="kill -9 in the sync of a COMMIT", target="MariaDB"
    ) as all_:
        for sync in SYNCS:
            durable.execute(
                "CREATE DATABASE s",
                "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
                "CREATE TABLE s.k (id BIGINT, b BIGINT)",
            )
            killer, deaths = await dies_at(durable, sync), 0
            for _ in range(LIVES_MAX):
                try:
                    async with asyncio.timeout(60):
                        await applied(durable, is_transactional=is_transactional)
                except (DownstreamUnavailable, TimeoutError):
                    deaths += 1
                    durable.restart()
                else:
                    break
            await killer.wait()
            assert deaths
            assert durable.execute(ROWS) == [(b"200", b"200")], sync
            durable.reset()
            all_.one()
