"""`kind = "tidb"` in a process of its own: schema, time, and what a dead TiDB left behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support import bank
from tests.support.appliance import READY_S, Appliance
from tests.support.scripted_tidb import ScriptedTidb

BEFORE = 30


class Scene:
    """Two TiDBs of one cluster, and a binlogd that asks them and writes a SQLite file."""

    def __init__(self, directory: Path) -> None:
        self.now: int = bank.commit_ts_of(0)
        self.first, self.second = (ScriptedTidb(now=lambda: self.now) for _ in range(2))
        self.first.jobs += json.loads(bank.history())
        self.second.jobs, self.second.keys = self.first.jobs, self.first.keys
        self.node = Appliance(directory)
        sql, status = (
            ", ".join(f'"127.0.0.1:{port}"' for port in ports)
            for ports in (
                (self.first.sql_port, self.second.sql_port),
                (self.first.status_port, self.second.status_port),
            )
        )
        self.node.configure(
            f'[upstream]\nkind = "tidb"\ntidb = [{sql}]\ntidb-status = [{status}]\n'
            '[syncer]\ndb-type = "sqlite"\n'
        )
        self.pump = PumpClient(*self.node.target, cluster_id=bank.CLUSTER_ID)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Asks beside the two TiDBs, which live in this loop."""
        last: Any = None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + READY_S
        async with aiohttp.ClientSession() as session:
            while loop.time() < until_s:
                try:
                    async with session.get(f"http://127.0.0.1:{self.node.port}/status") as answer:
                        last = await answer.json()
                except aiohttp.ClientError as error:
                    last = error
                else:
                    if condition(last):
                        return dict(last)
                await asyncio.sleep(0.05)
        raise AssertionError(f"not so within {READY_S:g} s: {last}\n{self.node.log()}")

    async def applied(self, number: int) -> None:
        """Until everything up to a transaction is downstream."""
        self.now = max(self.now, bank.commit_ts_of(number))
        await self.until(
            lambda s: s["max_commit_ts"] >= bank.commit_ts_of(number) and s["lag_s"] == 0
        )

    async def prewrites(self, number: int) -> bytes:
        """A line of the ledger that a TiDB writes, which then dies; its primary key."""
        key = b"t\x80\x00\x00\x00\x00\x00\x00\x0c_r%d" % number
        value = encode_mutations(5, [bank.inserted(bank.LEDGER, (number, 1))])
        start_ts = self.start_ts(number)
        self.now = max(self.now, start_ts)
        await self.pump.write(prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value))
        return key

    def start_ts(self, number: int) -> Tso:
        return Tso(bank.commit_ts_of(number) - 9)

    def ledger(self) -> set[int]:
        path = self.node.data_dir / "drainer" / "replica.db"
        with closing(sqlite3.connect(path)) as replica:
            return {n for (n,) in replica.execute('SELECT n FROM "bank.ledger"')}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.first.start()
    await made.second.start()
    made.node.start(is_ready=False)
    await made.until(lambda status: status["state"] == "online")
    await bank.feed(bank.transfers(BEFORE), made.node.target)
    await made.applied(BEFORE - 1)
    yield made
    made.pump.close()
    made.node.close()
    await made.first.kill()
    await made.second.kill()


async def test_what_a_dead_tidb_left_is_settled_by_what_tikv_has_of_it(scene: Scene) -> None:
    number = BEFORE
    committed, undone, running = [await scene.prewrites(number + n) for n in range(3)]
    scene.first.committed(committed, scene.start_ts(number), bank.commit_ts_of(number))
    scene.first.rolled_back(undone, scene.start_ts(number + 1))
    scene.first.locked(running, scene.start_ts(number + 2))
    status = await scene.until(lambda s: "still running" in s["blocked_by"])
    (version,) = {each["version"] for each in status["upstream"]["parts"]} - {""}
    assert version == "v6.5.0", "as it says when a session begins"
    assert status["max_commit_ts"] < bank.commit_ts_of(number + 2), "it holds what is behind it"
    scene.first.keys.pop(running)
    scene.first.committed(running, scene.start_ts(number + 2), bank.commit_ts_of(number + 2))
    await scene.applied(number + 2)
    assert scene.ledger() == {*range(1, BEFORE), number, number + 2}

    # with one TiDB gone the other one is asked, with both gone the transaction waits
    await scene.first.kill()
    key = await scene.prewrites(number + 3)
    scene.first.committed(key, scene.start_ts(number + 3), bank.commit_ts_of(number + 3))
    await scene.applied(number + 3)
    await scene.second.kill()
    key = await scene.prewrites(number + 4)
    for record in bank.transaction(number + 5, bank.inserted(bank.LEDGER, (number + 5, 1))):
        await scene.pump.write(record.payload)  # writes are taken all the same
    await scene.until(lambda s: str(scene.second.status_port) in s["blocked_by"])
    scene.first.committed(key, scene.start_ts(number + 4), bank.commit_ts_of(number + 4))
    await scene.first.start()
    await scene.applied(number + 5)
    assert scene.ledger() >= {number + 3, number + 4, number + 5}


async def test_a_rollback_of_a_writer_that_lost_sight_of_its_commit_is_not_believed(
    scene: Scene,
) -> None:
    number = BEFORE
    done, never = await scene.prewrites(number), await scene.prewrites(number + 1)
    scene.first.committed(done, scene.start_ts(number), bank.commit_ts_of(number))
    for which, key in enumerate((done, never)):
        await scene.pump.write(rollback_binlog(scene.start_ts(number + which), prewrite_key=key))
    await scene.applied(number + 2)
    assert scene.ledger() == {*range(1, BEFORE), number}
    assert "rollback_contradicted" in scene.node.log_file.read_text()

    # a table that no job has made is named as TiDB names it
    scene.first.tables[999] = ("bank", "later")
    unknown = replace(bank.LEDGER, id=999)
    for record in bank.transaction(number + 3, bank.inserted(unknown, (1, 1))):
        await scene.pump.write(record.payload)
    status = await scene.until(lambda s: s["drainer"]["state"] == "stuck")
    assert "bank.later in schema version 42" in status["drainer"]["error"]
