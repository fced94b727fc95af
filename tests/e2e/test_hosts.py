"""Pumps and a Drainer on hosts of their own: each dies, a Pump comes late, one rests, one goes.

The registry and the time are those of one Pump that stands in for PD; a TiDB knows the schema, and
what became of a transaction whose writer found another Pump. What was acknowledged is in the
replica, once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from binlogd.host.clock import WallClock
from binlogd.tso import Tso, compose
from tests.support import bank
from tests.support.appliance import Appliance, run
from tests.support.pump_world import PATIENCE_S, eventually
from tests.support.scripted_tidb import ScriptedTidb
from tests.support.tidb_writers import Writers


class TikvOfTidb:
    """What a scripted TiDB says of the fates of transactions; its time is that of the last one."""

    def __init__(self) -> None:
        self._now: int = compose(WallClock().wall_ms())
        self.tidb = ScriptedTidb(now=lambda: self._now, jobs=json.loads(bank.history()))

    def locked(self, key: bytes, start_ts: Tso) -> None:
        self._now = max(self._now, start_ts)
        self.tidb.locked(key, start_ts)

    def committed(self, key: bytes, start_ts: Tso, commit_ts: Tso) -> None:
        self._now = max(self._now, commit_ts)
        self.tidb.keys[key] = {"writes": []}
        self.tidb.committed(key, start_ts, commit_ts)

    def rolled_back(self, key: bytes, start_ts: Tso) -> None:
        self.tidb.keys[key] = {"writes": []}
        self.tidb.rolled_back(key, start_ts)


TOKEN = "one-that-all-of-these-hosts-were-given"
"""An operator on one host acts on a node of another."""


class Hosts:
    """The nodes, and who writes to them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes: list[Appliance] = []
        store = TikvOfTidb()
        self.tidb = store.tidb
        self.first = self.node(
            "first", "pump", f"{self.tidb.in_config}cluster-id = {bank.CLUSTER_ID}\n"
        )
        self.second = self.node("second", "pump", self._behind_pd)
        self.drainer = self.node(
            "drainer", "drainer", self._behind_pd + '[syncer]\ndb-type = "sqlite"\n'
        )
        self.writers = Writers([self.first.target], store, self.first, self.second)

    @property
    def _behind_pd(self) -> str:
        pd = f'kind = "pd"\npd-urls = "http://127.0.0.1:{self.first.port}"\n'
        return self.tidb.in_config.replace('kind = "tidb"\n', pd)

    def node(self, name: str, role: str, upstream: str) -> Appliance:
        directory = self._directory / name
        directory.mkdir()
        made = Appliance(directory)
        self._nodes.append(made)
        made.configure(
            f'[upstream]\n{upstream}[security]\nadmin-token = "{TOKEN}"\n',
            f'node-id = "{name}"\nroles = ["{role}"]\n',
        )
        return made

    def late(self) -> Appliance:
        return self.node("third", "pump", self._behind_pd)

    # --- looking ---------------------------------------------------------------------------

    async def until(
        self, node: Appliance, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        last: Any = None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        async with aiohttp.ClientSession() as session:
            while loop.time() < until_s:
                try:
                    async with session.get(f"http://127.0.0.1:{node.port}/status") as answer:
                        last = await answer.json()
                except aiohttp.ClientError as error:
                    last = repr(error)
                else:
                    if condition(last):
                        return dict(last)
                await asyncio.sleep(0.05)
        others = [each for each in self._nodes if each is not node]
        logs = "".join(f"\n--- {each.directory.name}\n{each.log()}" for each in (*others, node))
        raise AssertionError(f"not so within {PATIENCE_S:g} s: {logs}\n{json.dumps(last)}")

    async def pulls(self, **states: str) -> None:
        """Until the Drainer has these Pumps, in these states, and no others."""
        await self.until(
            self.drainer,
            lambda status: (
                states
                == {each["name"]: each["state"] for each in status["drainer"].get("sources", ())}
            ),
        )

    def ledger(self) -> list[int]:
        path = self.drainer.data_dir / "drainer" / "replica.db"
        with closing(sqlite3.connect(path)) as replica:
            return [n for (n,) in replica.execute('SELECT n FROM "bank.ledger"')]


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    made = Hosts(tmp_path)
    await made.tidb.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.tidb.kill)
        for node in (made.first, made.second, made.drainer):
            stack.callback(node.close)
            node.start(is_ready=False)
            if node is made.first:  # the others need its registry and its time
                await made.until(node, lambda _: True)
        yield made


@pytest.mark.soak
async def test_pumps_and_a_drainer_on_hosts_of_their_own_lose_nothing(hosts: Hosts) -> None:
    await lose_nothing(hosts, kills=[hosts.second, hosts.drainer, hosts.first])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_they_lose_nothing_however_often_they_die(hosts: Hosts, seed: int) -> None:
    nodes = [hosts.first, hosts.second, hosts.drainer]
    await lose_nothing(hosts, kills=random.Random(seed).choices(nodes, k=15))


async def lose_nothing(hosts: Hosts, *, kills: Sequence[Appliance]) -> None:
    """What is acknowledged is in the replica once, whoever dies, comes, rests or goes."""
    async with hosts.writers.writing():
        await hosts.pulls(first="online", second="online")
        await hosts.writers.some_more()
        await hosts.writers.orphan(hosts.second)  # which asks the TiDB, as its PD has no TiKV
        for node in kills:
            node.kill()
            node.start(is_ready=False)
            await hosts.writers.some_more()

        third = hosts.late()
        try:
            third.start(is_ready=False)
            await hosts.pulls(first="online", second="online", third="online")
            await hosts.writers.some_more()

            await hosts.until(hosts.second, lambda status: status["state"] == "online")
            await ctl(hosts.second, "pause-pump", "second")
            await eventually(lambda: hosts.second.exit_code == 0)
            await hosts.pulls(first="online", second="paused", third="online")
            await hosts.writers.some_more()
            hosts.second.start(is_ready=False)
            await hosts.pulls(first="online", second="online", third="online")

            await hosts.until(third, lambda status: status["state"] == "online")
            await ctl(hosts.first, "offline-pump", "third")
            await hosts.until(hosts.drainer, lambda status: len(status["drainer"]["sources"]) == 2)
            await eventually(lambda: third.exit_code == 0)
            await hosts.pulls(first="online", second="online")
            await hosts.writers.some_more()
        finally:
            third.close()
    await hosts.until(hosts.drainer, lambda _: len(hosts.ledger()) >= len(hosts.writers.written))
    assert sorted(hosts.ledger()) == sorted(hosts.writers.written)


async def ctl(node: Appliance, word: str, node_id: str) -> None:
    """An operator's command, on the host of a node; TiDB answers meanwhile."""
    words = ["ctl", word, "--node-id", node_id, "--config", str(node.config_file)]
    done = await asyncio.to_thread(run, node.directory, *words)
    assert done.returncode == 0, done.stderr
