"""How `binlogd serve` ends: within ten seconds, in good order, whatever its clients do."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.errors import BinlogdError
from binlogd.log.directory import LOCK_FILE
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import READY_S, Appliance, run
from tests.support.ports import free_port

BASE = compose(1_700_000_000_000)
IMPATIENT = ClientLimits(deadline_s=2.0, prewrite_retry_s=0.0, outcome_retry_s=0.0)
NO_ROWS = encode_mutations(1, [])


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path, history=b"[]")
    yield machine
    machine.close()


async def one_after_another(client: PumpClient, numbers: Iterator[int]) -> None:
    """Transactions without rows, until the Pump takes no more."""
    while True:
        start, commit = Tso(BASE + next(numbers)), Tso(BASE + next(numbers))
        await client.write(prewrite_binlog(start, prewrite_key=b"k", prewrite_value=NO_ROWS))
        await client.write(commit_binlog(start, commit))


async def hammer(appliance: Appliance, transactions: int) -> None:
    """Many writers; a signal comes while they write, and they do not stop before it has ended."""
    numbers = count(1)

    async def writer(client: PumpClient) -> None:
        while appliance.exit_code is None:
            with suppress(BinlogdError):
                await one_after_another(client, numbers)
            await asyncio.sleep(0.01)

    async def stop() -> None:
        while next(numbers) < 2 * transactions:  # noqa: ASYNC110 - writers tell nobody
            await asyncio.sleep(0.01)
        appliance.signal(signal.SIGTERM)

    async with asyncio.timeout(READY_S), asyncio.TaskGroup() as group:
        for _ in range(4):
            client = PumpClient(*appliance.target, cluster_id=7, limits=IMPATIENT)
            for _ in range(24):
                group.create_task(writer(client))
        group.create_task(stop())


def test_a_stop_under_load_is_in_good_order(appliance: Appliance) -> None:
    appliance.start()
    asyncio.run(hammer(appliance, 2_000))
    assert appliance.end() == 0, appliance.log()
    said = appliance.log_file.read_text()
    assert '"state": "pausing"' in said, "prewrites were taken to the end"
    assert "service_stopped" in said


def test_a_signal_ends_the_wait_for_lost_outcomes(appliance: Appliance) -> None:
    appliance.start()

    async def leave_open() -> None:
        async with PumpClient(*appliance.target, cluster_id=7) as client:
            await client.write(prewrite_binlog(Tso(BASE + 1), prewrite_value=NO_ROWS))

    asyncio.run(leave_open())
    node_id = appliance.status()["node_id"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{appliance.port}/state/{node_id}/close",
        method="PUT",
        headers={"Authorization": f"Bearer {appliance.token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert b"success" in answer.read()
    appliance.wait(lambda status: status["state"] == "closing")
    assert appliance.stop() == 0


def test_a_restore_beside_a_running_node_is_refused(tmp_path: Path) -> None:
    syncer = (
        '[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "127.0.0.1"\nport = 1\nuser = "x"\n'
        '[syncer.relay]\nlog-dir = "relay"\n'
    )
    machine = Appliance(tmp_path, history=b"[]", syncer=syncer)
    try:
        machine.start()
        answer = run(tmp_path, "restore", "--config", str(machine.config_file))
        assert answer.returncode == 2, answer.stdout + answer.stderr
        assert "is in use by process" in answer.stderr
    finally:
        machine.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_for_pd_reloads_and_ends_in_good_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    appliance = Appliance(tmp_path)
    nobody = f'[upstream]\nkind = "pd"\npd-urls = "127.0.0.1:{free_port()}"\ncluster-id = 7\n'
    appliance.configure(nobody)
    try:
        appliance.start(is_ready=False)
        appliance.wait_for_log("port_answers_that_it_waits", timeout_s=120)
        appliance.configure(nobody, 'log-level = "debug"\n')
        appliance.signal(signal.SIGHUP)
        appliance.wait_for_log('"applied": ["log-level"]', timeout_s=120)
        appliance.signal(number)
        assert appliance.end() == 0, appliance.log()
        events = [json.loads(line) for line in appliance.log_file.read_text().splitlines()]
        assert [(each["state"], each["cause"]) for each in events[-1:]] == [
            ("not started", number.name)
        ]
        with (appliance.data_dir / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        appliance.close()
