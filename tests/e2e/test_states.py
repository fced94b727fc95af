"""The states of a node and of its halves: what each takes, what a close waits for, who is told."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.errors import PumpUnavailable
from binlogd.ports import NodeStatus
from binlogd.pump.rpc.cistern import CisternService
from binlogd.serving.server import Server
from binlogd.tso import NO_TS, Tso, compose
from binlogd.upstream.entry import DRAINER, PUMP
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance, run
from tests.support.nodes import own_registry

BASE = compose(1_700_000_000_000)
QUICK = ClientLimits(deadline_s=60.0, prewrite_retry_s=0.0, outcome_retry_s=0.0)
NO_ROWS = encode_mutations(1, [])


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path, history=b"[]")
    machine.configure(
        '[upstream]\nschema-history = "ddl_history.json"\n[drainer]\ncheckpoint-interval = 0.1\n',
        'node-id = "pump0"\n',
    )
    machine.data_dir.mkdir()
    yield machine
    machine.close()


def write(appliance: Appliance, *payloads: bytes) -> None:
    async def all_of_them() -> None:
        async with PumpClient(*appliance.target, cluster_id=7, limits=QUICK) as client:
            for payload in payloads:
                await client.write(payload)

    asyncio.run(all_of_them())


def prewrite(number: int) -> bytes:
    return prewrite_binlog(Tso(BASE + number), prewrite_key=b"k", prewrite_value=NO_ROWS)


def commit(number: int, at: int) -> bytes:
    return commit_binlog(Tso(BASE + number), Tso(BASE + at))


def put(appliance: Appliance, node_id: str, action: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{appliance.port}/state/{node_id}/{action}"
    headers = {"Authorization": f"Bearer {appliance.token}"}
    request = urllib.request.Request(url, method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
        document: dict[str, Any] = json.load(answer)
        return document


async def registered(data_dir: Path) -> dict[tuple[str, str], str]:
    async with own_registry(data_dir) as registry:
        nodes = [node for kind in (PUMP, DRAINER) for node in await registry.nodes(kind)]
    return {(node.kind, node.node_id): node.state for node in nodes}


async def until_published(data_dir: Path, state: str, after: Tso = NO_TS) -> NodeStatus:
    """The Pump's entry in the registry, once a heartbeat has written that state."""
    async with own_registry(data_dir) as registry, asyncio.timeout(120):
        while True:  # until it is so, or the time is over
            node = await registry.node(PUMP, "pump0")
            if node is not None and node.state == state and node.update_ts > after:
                return node
            await asyncio.sleep(0.05)


def all_is_on_disk(data_dir: Path) -> bool:
    """Whether the marks of every shard stand at the end of its log."""
    ends = []
    for shard in (data_dir / "pump").glob("shard-*"):
        with sqlite3.connect(shard / "index.db") as index:
            marks = dict(index.execute("SELECT name, value FROM marks"))
        index.close()
        fid = int.from_bytes(marks["head_pointer"][:4], "little")
        size = (shard / "value" / f"{fid:06d}.vlog").stat().st_size
        at_end = int.from_bytes(marks["head_pointer"][4:], "little") == size
        ends.append(at_end and marks["handle_pointer"] == marks["head_pointer"])
    return bool(ends) and all(ends)


async def register_drainer(
    data_dir: Path, host: str, position: int, state: str, *, node_id: str = "far"
) -> None:
    async with own_registry(data_dir) as registry:
        await registry.register(NodeStatus(DRAINER, node_id, host, state, Tso(position), NO_TS))


def test_the_drainer_is_paused_and_resumed_while_the_pump_goes_on(appliance: Appliance) -> None:
    appliance.start()
    write(appliance, prewrite(1), commit(1, 2))
    appliance.wait(lambda status: status["lag_s"] == 0)
    assert put(appliance, "pump0-drainer", "jump") == {
        "message": "invalid action jump",
        "code": 3,
        "data": None,
    }
    assert put(appliance, "pump0-drainer", "pause")["code"] == 200
    paused = appliance.wait(lambda status: status["drainer"]["node_state"] == "paused")
    assert paused["state"] == "online"
    assert paused["checkpoint"]["consistent"], "what was pulled is applied before it rests"
    assert paused["gc"]["holds"]["drainer"], "it will need what comes now"
    again = put(appliance, "pump0-drainer", "close")
    assert again["message"] == "this pump's state is paused, apply close failed!"
    write(appliance, prewrite(3), commit(3, 4))
    appliance.wait(lambda status: status["lag_s"] > 0)
    assert put(appliance, "pump0-drainer", "resume")["code"] == 200
    appliance.wait(lambda status: status["lag_s"] == 0)
    assert put(appliance, "pump0-drainer", "resume")["code"] == 3
    assert put(appliance, "pump0-drainer", "close")["code"] == 200
    closed = appliance.wait(lambda status: status["drainer"]["node_state"] == "offline")
    assert "drainer" not in closed["gc"]["holds"], "an offline drainer holds nothing back"
    assert appliance.stop() == 0
    assert asyncio.run(registered(appliance.data_dir)) == {
        (PUMP, "pump0"): "paused",
        (DRAINER, "pump0-drainer"): "offline",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_every_signal_that_asks_for_an_end_pauses(
    appliance: Appliance, number: signal.Signals
) -> None:
    appliance.start()
    assert put(appliance, "pump0-drainer", "pause")["code"] == 200
    status = appliance.wait(lambda status: status["drainer"]["node_state"] != "pausing")
    assert status["drainer"]["node_state"] == "paused", "although nobody has written yet"
    assert put(appliance, "pump0-drainer", "resume")["code"] == 200
    write(appliance, prewrite(1), commit(1, 2))
    appliance.wait(lambda status: status["lag_s"] == 0)
    appliance.signal(number)
    assert appliance.end() == 0, appliance.log()
    assert asyncio.run(registered(appliance.data_dir))[PUMP, "pump0"] == "paused"


def test_the_registry_follows_and_a_socket_outlives_a_kill(appliance: Appliance) -> None:
    text = appliance.config_file.read_text()
    appliance.config_file.write_text(
        f'binlog-socket = "data/run/pump.sock"\n{text}heartbeat-interval = 1\n'
    )
    path = appliance.data_dir / "run" / "pump.sock"

    async def over_the_socket(*payloads: bytes) -> None:
        async with PumpClient(path, cluster_id=7, limits=QUICK) as client:
            for payload in payloads:
                await client.write(payload)

    appliance.start()
    assert "free_space_checked" in appliance.log(), "the limit is explained at the start"
    asyncio.run(over_the_socket(prewrite(1), commit(1, 2)))
    appliance.wait(lambda _: position_in(appliance, "/pumps") == BASE + 2)
    appliance.kill()
    assert path.is_socket(), "nobody could remove it"
    appliance.start()
    asyncio.run(over_the_socket(prewrite(3), commit(3, 4)))
    appliance.wait(lambda _: position_in(appliance, "/drainers") == BASE + 4)
    assert appliance.stop() == 0
    assert not path.exists()


def position_in(appliance: Appliance, route: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{appliance.port}{route}") as answer:
        (node,) = json.load(answer)
    return int(node["maxCommitTS"])


def test_a_closing_pump_says_what_it_waits_for_and_takes_outcomes_only(
    appliance: Appliance,
) -> None:
    with appliance.config_file.open("a") as file:
        file.write("heartbeat-interval = 1\n")
    appliance.start()
    write(appliance, prewrite(1))
    asyncio.run(register_drainer(appliance.data_dir, "127.0.0.1:1", BASE, "paused"))
    stranger = put(appliance, "pump1", "close")
    assert stranger["message"] == "invalide nodeID pump1, this pump's nodeID is pump0"
    assert put(appliance, "pump0", "close") == {
        "message": "apply action close success!",
        "code": 200,
        "data": None,
    }
    waiting = appliance.wait(lambda status: status["close_waits_for"])
    assert waiting["state"] == "closing"
    assert "1 transactions have no outcome" in waiting["close_waits_for"]
    with pytest.raises(PumpUnavailable, match="no online: closing"):
        write(appliance, prewrite(5))
    assert put(appliance, "pump0", "close")["message"] == (
        "this pump's state is closing, apply close failed!"
    )
    screen = run(appliance.directory, "status", "--config", str(appliance.config_file))
    assert "closing: 1 transactions have no outcome" in screen.stdout, screen.stderr
    write(appliance, commit(1, 2))
    waiting = appliance.wait(lambda status: "far" in status["close_waits_for"])
    assert f"(paused) has come to {BASE}, not yet to" in waiting["close_waits_for"]
    published = asyncio.run(until_published(appliance.data_dir, "closing"))
    later = asyncio.run(until_published(appliance.data_dir, "closing", after=published.update_ts))
    assert later.max_commit_ts >= BASE + 2, "others see in the registry that it lives"
    asyncio.run(register_drainer(appliance.data_dir, "127.0.0.1:1", BASE + 2, "paused"))
    assert appliance.end() == 0
    assert asyncio.run(registered(appliance.data_dir))[PUMP, "pump0"] == "offline"
    assert all_is_on_disk(appliance.data_dir), "the process does not end before its storage"


def test_a_close_that_is_not_safe_in_time_ends_as_paused(appliance: Appliance) -> None:
    with appliance.config_file.open("a") as file:
        file.write("close-timeout = 0.5\n")
    appliance.start()
    write(appliance, prewrite(1))
    put(appliance, "pump0", "close")
    assert appliance.end() == 1
    assert "1 transactions have no outcome" in appliance.log()
    assert "close-timeout: 0.5 s are over" in appliance.log()
    assert asyncio.run(registered(appliance.data_dir))[PUMP, "pump0"] == "paused"


def test_a_new_pump_tells_the_drainers_before_it_serves_and_a_known_one_does_not(
    appliance: Appliance,
) -> None:
    async def start_beside_a_drainer() -> int:
        told = 0

        async def count() -> None:
            nonlocal told
            told += 1
            states = await registered(appliance.data_dir)
            assert states[PUMP, "pump0"] == "online", "it is registered before it tells"

        drainer = Server([CisternService(count)])
        host, port = await drainer.start("127.0.0.1", 0)
        await register_drainer(appliance.data_dir, f"{host}:{port}", 1, "online")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, appliance.start)
            appliance.kill()
            await loop.run_in_executor(None, appliance.start)
            appliance.stop()
        finally:
            await drainer.close()
        return told

    assert asyncio.run(start_beside_a_drainer()) == 1
    states = asyncio.run(registered(appliance.data_dir))
    assert states[PUMP, "pump0"] == states[DRAINER, "pump0-drainer"] == "paused"


def test_a_new_pump_does_not_start_past_a_drainer_that_cannot_be_told(
    appliance: Appliance,
) -> None:
    asyncio.run(register_drainer(appliance.data_dir, "127.0.0.1:1", 1, "online"))
    answer = run(appliance.directory, "serve", "--config", str(appliance.config_file))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "fail to notify all living drainer: notify drainer(far" in answer.stderr
    states = asyncio.run(registered(appliance.data_dir))
    assert states[PUMP, "pump0"] == "offline"
    assert states[DRAINER, "pump0-drainer"] == "paused", "nobody would find it to tell it"
    config = ("--config", str(appliance.config_file))
    unknown = run(appliance.directory, "nodes", "nobody", "--mark", "paused", *config)
    assert (unknown.returncode, "is not in the registry" in unknown.stderr) == (2, True)
    marked = run(appliance.directory, "nodes", "far", "--mark", "paused", "--json", *config)
    assert marked.returncode == 0, marked.stderr
    ((name, state),) = [
        (each["nodeId"], each["state"]) for each in json.loads(marked.stdout)["drainers"]
    ]
    assert (name, state) == ("far", "paused")
    appliance.start()
    assert appliance.stop() == 0


def test_the_command_line_pauses_and_resumes(appliance: Appliance) -> None:
    def state(*words: str) -> tuple[int, str]:
        config = ("--config", str(appliance.config_file))
        answer = run(appliance.directory, "state", *words, *config)
        return answer.returncode, answer.stdout + answer.stderr

    before = register_drainer(appliance.data_dir, "h:1", 0, "paused", node_id="pump0")
    asyncio.run(before)  # what an earlier version called the halves holds nobody
    appliance.start()
    write(appliance, prewrite(1), commit(1, 2))
    assert state("pause", "--drainer", "--wait", "120") == (0, "the drainer is paused\n")
    code, said = state("pause", "--drainer", "--json")
    assert (code, json.loads(said)["code"]) == (1, 3)
    assert state("resume", "--drainer", "--wait", "120") == (0, "the drainer is online\n")
    code, said = state("close", "--wait", "120")
    assert code == 0, said
    assert "the node has ended" in said
    assert appliance.end() == 0
    assert asyncio.run(registered(appliance.data_dir))[PUMP, "pump0"] == "offline"
