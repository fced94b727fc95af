"""Nodes at a real PD, whose TiKV is a scripted one: Pumps and a Drainer meet in its etcd, take its
time, and read schema and fates where it says that they are.

The pd-server is made of the modules of tests/interop/pdserver (`make setup-soak` gets them, some
250 MB), compiled once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.tso import PdTso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support import bank
from tests.support.appliance import Appliance, run
from tests.support.certificates import Authority
from tests.support.go_programs import built
from tests.support.joined_tikv import JoinedTikv, joined_tikv
from tests.support.pump_world import PATIENCE_S
from tests.support.real_pd import RealPd, real_pd
from tests.support.tidb_writers import Writers, key_of

pytestmark = pytest.mark.soak
LOCK_MS = 600_000
"""Longer than PD is away: no lock is taken for one whose TiDB is dead."""
FOR_EVER = (1 << 63) - 1
"""Seconds that a PD takes of the worker of garbage collection, and no others."""


class Nodes:
    """Of binlogd, each in a directory of its own."""

    def __init__(self, directory: Path, pd: RealPd) -> None:
        self._directory, self._pd = directory, pd
        self.all: list[Appliance] = []

    def made(self, name: str, *roles: str, tables: str = "") -> Appliance:
        """One that has not started."""
        directory = self._directory / name
        directory.mkdir()
        node = Appliance(directory)
        node.configure(
            f'[upstream]\nkind = "pd"\npd-urls = "{self._pd.urls}"\n'
            f'{tables}[syncer]\ndb-type = "sqlite"\n',
            f'node-id = "{name}"\nroles = {json.dumps(roles)}\n',
        )
        self.all.append(node)
        return node

    def close(self) -> None:
        for each in self.all:
            each.close()


@contextmanager
def nodes_of(directory: Path, pd: RealPd) -> Iterator[Nodes]:
    made = Nodes(directory, pd)
    try:
        yield made
    finally:
        made.close()


class Records:
    """The scripted TiKV, as writers see it."""

    def __init__(self, tikv: JoinedTikv) -> None:
        self._tikv, self._records = tikv, tikv.kv.records

    def locked(self, key: bytes, start_ts: Tso) -> None:
        self._tikv.do(lambda: self._records.prewrite({key: b"row"}, start_ts, ttl_ms=LOCK_MS))

    def committed(self, key: bytes, start_ts: Tso, commit_ts: Tso) -> None:
        self._tikv.do(lambda: self._records.commit([key], start_ts, commit_ts))

    def rolled_back(self, key: bytes, start_ts: Tso) -> None:
        self._tikv.do(lambda: self._records.roll_back([key], start_ts))


def ledger(drainer: Appliance) -> list[int]:
    path = drainer.data_dir / "drainer" / "replica.db"
    with closing(sqlite3.connect(path)) as replica:
        if not replica.execute("SELECT 1 FROM sqlite_master WHERE name = 'bank.ledger'").fetchone():
            return []
        return [n for (n,) in replica.execute('SELECT n FROM "bank.ledger"')]


async def until(node: Appliance, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return await asyncio.to_thread(node.wait, condition)


async def pulls(drainer: Appliance, **states: str) -> None:
    """Until the Drainer has these Pumps, in these states, and no others."""
    await until(
        drainer,
        lambda now: (
            states == {each["name"]: each["state"] for each in now["drainer"].get("sources", ())}
        ),
    )


async def applied(drainer: Appliance, writers: Writers) -> None:
    """Until the replica has what was acknowledged, once."""
    await until(drainer, lambda _: len(ledger(drainer)) >= len(writers.written))
    assert sorted(ledger(drainer)) == sorted(writers.written)


async def ctl(node: Appliance, word: str, node_id: str) -> None:
    words = ["ctl", word, "--node-id", node_id, "--config", str(node.config_file)]
    done = await asyncio.to_thread(run, node.directory, *words)
    assert done.returncode == 0, done.stderr


def part(status: dict[str, Any], name: str = "pd") -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in status["upstream"]["parts"] if each["name"] == name
    )
    return found


async def test_nothing_is_lost_whatever_the_members_of_pd_do(
    pd_program: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pd = stack.enter_context(real_pd(pd_program, tmp_path, 3))
        tikv = stack.enter_context(joined_tikv(pd, bank.history()))
        nodes = stack.enter_context(nodes_of(tmp_path, pd))
        first, second = nodes.made("first", "pump"), nodes.made("second", "pump")
        drainer = nodes.made("drainer", "drainer")
        for node in nodes.all:
            node.start(is_ready=False)
        for node in nodes.all:
            await until(node, lambda _: True)
        writers = Writers(pd.addresses, Records(tikv), first, second)
        async with writers.writing():
            await pulls(drainer, first="online", second="online")
            await writers.some_more()
            await writers.orphan(second)
            leader = pd.leader()
            other = next(name for name in ("pd0", "pd1", "pd2") if name != leader)
            await asyncio.to_thread(pd.lead, other)
            await writers.some_more()
            pd.kill(other)
            await writers.some_more()
            await asyncio.to_thread(pd.start, other)
            hanging = await asyncio.to_thread(pd.leader)
            pd.hang(hanging)
            await writers.some_more()
            pd.kill(hanging)
            await asyncio.to_thread(pd.start, hanging)
            tikv.do(lambda: tikv.kv.split(b"m"))
            tikv.do(lambda: tikv.kv.split(b"t"))
            tikv.do(lambda: tikv.kv.move(b"t", 2))
            await writers.orphan(first)
            await writers.some_more()
            pd.kill()
            for node in nodes.all:
                said = await until(node, lambda now: part(now)["trouble"])
                assert said["refuses_because"] == ""
            await asyncio.to_thread(pd.start)
            await writers.some_more()
            for node in nodes.all:
                await until(node, lambda now: not part(now)["trouble"])
        await applied(drainer, writers)
        fates = [
            (await until(node, lambda _: True))["upstream"]["tikv"] for node in (first, second)
        ]
        assert sum(each["fates"]["committed"] for each in fates) >= 2, "of the orphans"
        assert [node.stop() for node in nodes.all] == [0, 0, 0]


async def test_members_come_and_go_for_good_and_so_do_pumps(
    pd_program: Path, tmp_path: Path
) -> None:
    """The one member that the nodes were given is gone in the end; they know those that came."""
    with ExitStack() as stack:
        pd = stack.enter_context(real_pd(pd_program, tmp_path))
        tikv = stack.enter_context(joined_tikv(pd, bank.history()))
        nodes = stack.enter_context(nodes_of(tmp_path, pd))
        first, drainer = nodes.made("first", "pump"), nodes.made("drainer", "drainer")
        second, third = nodes.made("second", "pump"), nodes.made("third", "pump")
        early = first, second, drainer
        for node in early:
            node.start(is_ready=False)
        for node in early:
            await until(node, lambda _: True)
        writers = Writers(pd.addresses, Records(tikv), first, second)
        async with writers.writing():
            await pulls(drainer, first="online", second="online")
            await writers.some_more()
            await asyncio.to_thread(pd.join, "pd1")
            await asyncio.to_thread(pd.join, "pd2")
            await asyncio.to_thread(pd.lead, "pd2")
            third.start(is_ready=False)
            await pulls(drainer, first="online", second="online", third="online")
            listed = await asyncio.to_thread(run, tmp_path, "nodes", "--json", *_config(first))
            assert listed.returncode == 0, listed.stderr
            for name in ("first", "second", "third", "drainer"):
                assert name in listed.stdout
            await ctl(second, "pause-pump", "second")
            assert await asyncio.to_thread(second.end) == 0
            await pulls(drainer, first="online", second="paused", third="online")
            second.start(is_ready=False)
            await pulls(drainer, first="online", second="online", third="online")
            third.kill()
            await pulls(drainer, first="online", second="online", third="paused")
            third.start(is_ready=False)
            await pulls(drainer, first="online", second="online", third="online")
            await until(third, lambda now: now["state"] == "online")
            await ctl(third, "offline-pump", "third")  # a node knows its own token alone
            assert await asyncio.to_thread(third.end) == 0
            await pulls(drainer, first="online", second="online")
            for node in early:  # every one of them knows the new members
                await until(node, lambda now: part(now)["leader"] == "pd2")
            await asyncio.to_thread(pd.remove, "pd0")
            await writers.some_more(40)
            await writers.orphan(second)
        await applied(drainer, writers)
        assert [node.stop() for node in (drainer, first, second)] == [0, 0, 0]


def test_a_pd_without_a_tikv_is_enough_to_start_and_the_first_tikv_is_waited_for(
    pd_program: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pd = stack.enter_context(real_pd(pd_program, tmp_path))
        node = stack.enter_context(nodes_of(tmp_path, pd)).made("node", "pump", "drainer")
        asked = run(node.directory, "check-config", *_config(node), "--ask")
        assert asked.returncode == 1
        assert "no TiKV has joined this PD yet" in asked.stderr
        node.start()
        before = node.status()["max_commit_ts"]
        node.wait(lambda now: now["max_commit_ts"] > before)  # its time moves the watermark
        asyncio.run(_written_alone(pd, node, 1, is_orphan=False))
        orphan = asyncio.run(_written_alone(pd, node, 2, is_orphan=True))
        waits = node.wait(lambda now: "NOT_BOOTSTRAPPED" in json.dumps(now))
        assert part(waits)["trouble"] == "", "it answers"
        assert "pd_lost" not in node.log_file.read_text()
        tikv = stack.enter_context(joined_tikv(pd, bank.history()))
        tikv.do(lambda: tikv.kv.records.put(key_of(2), b"row", *orphan))
        node.wait(lambda _: sorted(ledger(node)) == [1, 2])
        assert node.stop() == 0


async def _written_alone(
    pd: RealPd, node: Appliance, number: int, *, is_orphan: bool
) -> tuple[Tso, Tso]:
    """Start and commit of a transaction; of an orphan's commit its Pump does not hear."""
    client = PdClient(pd.addresses)
    tso, cluster_id = PdTso(client), await client.cluster_id()
    start_ts, commit_ts = await tso.next(), await tso.next()
    value = encode_mutations(5, [bank.inserted(bank.LEDGER, (number, 1))])
    async with PumpClient(*node.target, cluster_id=cluster_id) as pump:
        await pump.write(
            prewrite_binlog(start_ts, prewrite_key=key_of(number), prewrite_value=value)
        )
        if not is_orphan:
            await pump.write(commit_binlog(start_ts, commit_ts))
    await tso.close()
    await client.close()
    return start_ts, commit_ts


def _config(node: Appliance) -> tuple[str, str]:
    return "--config", str(node.config_file)


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "TLS"])
def test_the_go_pump_client_writes_at_a_real_pd_whose_leader_moves(
    pd_program: Path, tmp_path: Path, *, is_secured: bool
) -> None:
    """TiDB's own finds the Pumps of binlogd in the same PD, and takes its time from there too."""
    (tmp_path / "go").mkdir()
    writer = built("pumps", tmp_path / "go")
    authority = Authority(tmp_path / "ca") if is_secured else None
    with ExitStack() as stack:
        pd = stack.enter_context(real_pd(pd_program, tmp_path, 3, authority))
        security, given = "", {}
        if authority is not None:
            authority.issue("node")
            authority.issue("tidb")
            given = {"TLS": str(authority.directory)}
            security = "".join(
                f'ssl-{key} = "{authority.directory}/{file}"\n'
                for key, file in (("ca", "ca.pem"), ("cert", "node.pem"), ("key", "node.key"))
            )
        nodes = stack.enter_context(nodes_of(tmp_path, pd))
        pumps = [
            nodes.made(name, "pump", tables=f"[security]\n{security}") for name in ("one", "two")
        ]
        for node in pumps:
            node.start(is_ready=False)
            node.wait_for_log("service_started")
        host, port = pd.address("pd0")
        writing = subprocess.Popen(
            [str(writer), f"{host}:{port}", "for", "20"],
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(3):
            leader = pd.leader()
            pd.lead(next(name for name in ("pd0", "pd1", "pd2") if name != leader))
        output, _ = writing.communicate(timeout=PATIENCE_S)
        assert writing.returncode == 0, output[-2000:]
        count, last = map(int, re.findall(r"wrote (\d+) up to (\d+)", output)[0])
        assert [node.stop() for node in pumps] == [0, 0]
        kept = [
            run(tmp_path, "dump", "--heads", "--json", "--data-dir", str(node.data_dir))
            for node in pumps
        ]
        commits = {
            json.loads(line)["commit_ts"] for each in kept for line in each.stdout.splitlines()
        }
        assert (len(commits), max(commits)) == (count, last)


def test_what_a_drainer_may_read_again_is_held_at_a_real_pd(
    pd_program: Path, tmp_path: Path
) -> None:
    """Whatever TiDB's worker says then, its garbage collection stays behind the Drainer's
    checkpoint, and what it has collected tells what an absence proves."""

    async def asked(ask: Callable[[PdClient], Awaitable[Tso]]) -> Tso:
        client = PdClient(pd.addresses)
        await client.cluster_id()
        try:
            return await ask(client)
        finally:
            await client.close()

    with ExitStack() as stack:
        pd = stack.enter_context(real_pd(pd_program, tmp_path))
        tikv = stack.enter_context(joined_tikv(pd, bank.history()))
        node = stack.enter_context(nodes_of(tmp_path, pd)).made("node", "pump", "drainer")
        text = node.config_file.read_text()
        node.config_file.write_text(
            text.replace("[syncer]\n", "[syncer]\nload-schema-snapshot = true\n")
        )
        node.start()
        node.wait(lambda now: now["checkpoint"] and now["checkpoint"]["commit_ts"])

        def worker(ts: Tso) -> Tso:
            return asyncio.run(asked(lambda client: client.hold_gc("gc_worker", ts, FOR_EVER)))

        node.wait(lambda _: 0 < worker(Tso(1 << 62)) < 1 << 62)
        held = worker(Tso(1 << 62))
        assert held <= node.status()["checkpoint"]["commit_ts"]
        tikv.safe_point(Tso(90))
        assert asyncio.run(asked(lambda client: client.gc_safe_point(Tso(80)))) == 90
        assert node.stop() == 0
