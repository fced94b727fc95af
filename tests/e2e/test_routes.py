"""Every HTTP route of both originals on one address, with their shapes and words."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance

BASE = compose(1_700_000_000_000)
START, COMMIT = Tso(BASE + 1), Tso(BASE + 2)
STATUS_KEYS = ["nodeId", "host", "state", "isAlive", "score", "label", "maxCommitTS", "updateTS"]


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    machine = Appliance(tmp_path_factory.mktemp("routes"), history=b"[]")
    machine.configure(
        '[upstream]\nschema-history = "ddl_history.json"\n[drainer]\ncheckpoint-interval = 0.1\n',
        'node-id = "pump0"\nadvertise-addr = "10.0.0.1:8250"\n',
    )
    machine.start()
    asyncio.run(one_transaction(machine))
    machine.wait(lambda status: status["LastTS"] >= COMMIT)
    yield machine
    machine.close()


async def one_transaction(machine: Appliance) -> None:
    rows = encode_mutations(3, [])
    async with PumpClient(*machine.target, cluster_id=7) as client:
        await client.write(
            prewrite_binlog(START, prewrite_key=b"t\x80\x00k\n", prewrite_value=rows)
        )
        await client.write(commit_binlog(START, COMMIT))


def ask(appliance: Appliance, route: str, method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {appliance.token}"}
    url = f"http://127.0.0.1:{appliance.port}{route}"
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def document(appliance: Appliance, route: str) -> Any:
    code, text = ask(appliance, route)
    assert code == 200
    assert text.endswith("\n")
    return json.loads(text)


def test_the_status_has_the_keys_of_both_originals(appliance: Appliance) -> None:
    status = document(appliance, "/status")
    assert list(status["status"]) == ["pump0"]
    pump = status["status"]["pump0"]
    assert list(pump) == STATUS_KEYS
    assert (pump["host"], pump["state"]) == ("10.0.0.1:8250", "online")
    assert pump["isAlive"] is True
    assert pump["label"] is None
    assert 0 < pump["score"] <= 100
    assert pump["maxCommitTS"] >= COMMIT
    assert status["CommitTS"] >= COMMIT
    assert (status["Checkpoint"], status["ErrMsg"]) == ({}, "")
    assert status["PumpPos"] == {"pump0": pytest.approx(COMMIT)}
    assert status["LastTS"] >= COMMIT
    assert status["Synced"] is True
    assert status["TsMap"] == ""


def test_pumps_and_drainers_are_listed(appliance: Appliance) -> None:
    for route, name in (("/pumps", "pump0"), ("/drainers", "pump0-drainer")):
        (node,) = document(appliance, route)
        assert list(node) == STATUS_KEYS
        assert node["nodeId"] == name
        assert node["state"] == "online"


def test_the_drainers_commit_ts(appliance: Appliance) -> None:
    code, text = ask(appliance, "/commit_ts")
    assert code == 200
    assert text.startswith('{\n  "message": "get drainer\'s latest ts success!",\n  "code": 200,\n')
    assert json.loads(text)["data"]["ts"] >= COMMIT


def test_a_binlog_is_shown_as_text(appliance: Appliance) -> None:
    _, prewrite = ask(appliance, f"/debug/binlog/{START}")
    first, *rest = prewrite.split("\n\n")
    assert first == f'tp:Prewrite start_ts:{START} prewrite_key:"t\\200\\000k\\n" '
    assert rest[0].startswith(" PrewriteValue: \nschema_version:3 ")
    assert " GetMvccByEncodedKey failed: " in rest[-1]
    _, commit = ask(appliance, f"/debug/binlog/{COMMIT}")
    assert commit == f"tp:Commit start_ts:{START} commit_ts:{COMMIT} \n"
    code, missing = ask(appliance, "/debug/binlog/2")
    assert (code, missing) == (200, "fail read binlog by ts: 2: not found\n")
    for word in ("x", "-1", "9" * 19, "9" * 5000, "%D9%A1"):
        code, said = ask(appliance, f"/debug/binlog/{word}")
        assert code == 200
        assert said.startswith("invalid parameter ts: ")


def test_garbage_collection_is_triggered(appliance: Appliance) -> None:
    assert ask(appliance, "/debug/gc/trigger", "POST") == (200, "trigger gc success\n")


def test_what_is_not_there_answers_as_the_originals_do(appliance: Appliance) -> None:
    assert ask(appliance, "/nothing") == (404, "404 page not found\n")
    assert ask(appliance, "/debug/gc/trigger") == (405, "")
    assert ask(appliance, "/status", "PUT") == (405, "")


def test_a_running_process_can_be_profiled(appliance: Appliance) -> None:
    assert "goroutine" in ask(appliance, "/debug/pprof/")[1]
    assert "task pump" in ask(appliance, "/debug/pprof/goroutine")[1]
    assert "serve" in ask(appliance, "/debug/pprof/cmdline")[1].split("\0")
    code, profile = ask(appliance, "/debug/pprof/profile?seconds=0.1")
    assert code == 200
    stack, _, count = profile.splitlines()[0].rpartition(" ")
    assert ";" in stack
    assert int(count) > 0
    assert ask(appliance, "/debug/pprof/profile?seconds=nan")[0] == 400
    both: list[int] = []
    for seconds in (1, 5, 25):  # longer where they did not meet
        route = f"/debug/pprof/profile?seconds={seconds}"
        with ThreadPoolExecutor() as asking:
            both = sorted(asking.map(lambda route: ask(appliance, route)[0], [route] * 2))
        if both != [200, 200]:
            break
    assert both == [200, 503]
    assert ask(appliance, "/debug/pprof/heap")[0] == 501
    assert ask(appliance, "/debug/metrics")[0] == 501
