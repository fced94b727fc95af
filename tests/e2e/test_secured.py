"""A whole process with TLS, a token and secrets; commands that speak to it; a changed file."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.client.pump_client import PumpClient
from binlogd.errors import BinlogdError, ConfigError
from binlogd.host.tls import ClientTls
from binlogd.node.problems import problems
from binlogd.status import Status
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.appliance import READY_S, Appliance
from tests.support.certificates import Authority

TOKEN = "a-token-of-this-test-0123456789"
BASE = compose(1_700_000_000_000)


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path, history=b"[]")
    yield machine
    machine.close()


def configure(machine: Appliance, tables: str = "", top: str = "") -> None:
    machine.configure(
        '[upstream]\nschema-history = "ddl_history.json"\n[drainer]\ncheckpoint-interval = 0.1\n'
        + tables,
        f'node-id = "pump0"\n{top}',
    )


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def said(*words: str, given: str = "") -> Done:
    """One command in this process: starting another one takes longer than what it does."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(command_line(), list(words), input=given)
    error = result.exception
    if isinstance(error, BinlogdError):
        return Done(2 if isinstance(error, ConfigError) else 1, result.stdout, str(error))
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Done(result.exit_code, result.stdout, result.stderr)


def command(machine: Appliance, *words: str) -> Done:
    return said(*words, "-c", str(machine.config_file))


def ask(machine: Appliance, method: str, route: str, token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{machine.port}{route}"
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


EMPTY = encode_mutations(3, [])
UNKNOWN = encode_mutations(3, [Mutation(77, [b"\x08\x02"], [], [], b"\x00")])


async def one_transaction(
    machine: Appliance, number: int, tls: ClientTls | None = None, rows: bytes = EMPTY
) -> None:
    start, commit = Tso(BASE + 2 * number), Tso(BASE + 2 * number + 1)
    async with PumpClient("localhost", machine.port, cluster_id=7, tls=tls) as client:
        await client.write(
            prewrite_binlog(start, prewrite_key=b"t\x80\x00k\n", prewrite_value=rows)
        )
        await client.write(commit_binlog(start, commit))


def test_a_secured_node_is_written_to_asked_and_stopped(
    appliance: Appliance, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("node", "binlog")
    (tmp_path / "token").write_text(TOKEN)
    configure(
        appliance,
        '[security]\nssl-ca = "ca/ca.pem"\nssl-cert = "ca/node.pem"\nssl-key = "ca/node.key"\n'
        'cert-allowed-cn = ["binlog"]\nadmin-token-file = "token"\n'
        '[syncer.to]\npassword = "hunter2"\n',
    )
    appliance.start(is_ready=False)
    healthy = command(appliance, "health", "--ready", "--wait", str(READY_S))
    assert healthy.stdout == "ready\n", appliance.log()
    certificate = authority.files(authority.issue("tidb", "binlog"))
    tls = ClientTls(certificate, is_grpc=True)
    asyncio.run(one_transaction(appliance, 1, tls))
    status = json.loads(command(appliance, "status", "--json").stdout)
    assert status["node_id"] == "pump0"
    without = said("health", "--addr", f"127.0.0.1:{appliance.port}")
    assert without.returncode == 1
    plain = appliance.config_file.read_text().replace("admin-token-file", "# admin-token-file")
    (tmp_path / "plain.toml").write_text(plain)
    tokenless = str(tmp_path / "plain.toml")
    refused = said("ctl", "pause", "--node-id", "pump0", "-c", tokenless)
    assert refused.returncode == 1
    assert "needs the admin token" in refused.stdout
    (tmp_path / "bare.toml").write_text('[security]\nadmin-token-file = "token"\n')
    files = [
        f"-ssl-{name}={tmp_path / 'ca' / file}"
        for name, file in (("ca", "ca.pem"), ("cert", "tidb.pem"), ("key", "tidb.key"))
    ]
    where = ("-c", str(tmp_path / "bare.toml"), "--addr", f"127.0.0.1:{appliance.port}")
    done = said("ctl", "-cmd", "pause-pump", "-node-id", "pump0", *files, *where)
    assert done.returncode == 0, done
    assert done.stdout.endswith(
        '["Apply action on node success"] [action=pause] [NodeID=pump0]\n'
    ), "as binlogctl says it"
    assert appliance.end() == 0
    log = appliance.log_file.read_text()
    assert "action_refused" in log
    for secret in (TOKEN, "hunter2"):
        assert secret not in log + json.dumps(status)


def test_a_changed_file_is_taken_by_signal_and_request(appliance: Appliance) -> None:
    configure(appliance, "[syncer]\nworker-count = 2\n")
    appliance.start()
    asyncio.run(one_transaction(appliance, 1))
    appliance.wait(lambda status: status["LastTS"] >= BASE + 3)
    assert ask(appliance, "POST", "/reload", appliance.token) == (
        200,
        {
            "message": "nothing to take has changed",
            "code": 200,
            "data": {"applied": [], "restart": [], "without_effect": {}},
        },
    )
    configure(
        appliance,
        "[syncer]\nworker-count = 3\nignore-schemas = 'x'\n",
        f'log-level = "debug"\nadvertise-addr = "a:1"\nsecurity.admin-token = "{TOKEN}"\n'
        'security.operators-from = ["198.51.100.7"]\n',
    )
    _, taken = ask(appliance, "POST", "/reload", appliance.token)
    assert taken["message"] == (
        "taken: log-level, security.admin-token, security.operators-from, syncer.ignore-schemas,"
        " syncer.worker-count;"
        " needs a restart: advertise-addr;"
        ' syncer.worker-count: without effect: it does nothing with db-type "file"'
    )
    made = appliance.token
    assert ask(appliance, "POST", "/reload", made)[0] == 401, "another token counts from now on"
    asyncio.run(one_transaction(appliance, 2))
    status = appliance.wait(lambda status: status["LastTS"] >= BASE + 5)
    assert status["drainer"]["node_state"] == "online"
    assert "drainer_renewed" in appliance.log_file.read_text()

    appliance.config_file.write_text("[syncer]\nreplicate-do-db = ['~(']\n")
    status_code, refused = ask(appliance, "POST", "/reload", TOKEN)
    assert (status_code, refused["code"]) == (200, 3)
    assert "the configuration before stays in force" in refused["message"]

    configure(appliance, "[syncer]\nworker-count = 4\n")
    appliance.signal(signal.SIGHUP)
    until_s = time.monotonic() + READY_S
    while ask(appliance, "POST", "/reload", made)[0] == 401:  # the token has gone from the file
        assert time.monotonic() < until_s
    asyncio.run(one_transaction(appliance, 3))
    appliance.wait(lambda status: status["LastTS"] >= BASE + 7)
    assert appliance.stop() == 0
    assert TOKEN not in appliance.log_file.read_text()


def test_a_node_that_is_given_no_token_makes_one_that_its_owner_s_commands_read(
    appliance: Appliance,
) -> None:
    configure(appliance)
    appliance.start()
    assert ask(appliance, "POST", "/reload")[0] == 401, "not even from loopback"
    assert ask(appliance, "POST", "/reload", appliance.token)[0] == 200
    paused = command(appliance, "state", "pause", "--drainer", "--wait", "60")
    assert paused.returncode == 0, paused
    link = command(appliance, "page").stdout.strip()
    assert link == f"http://127.0.0.1:{appliance.port}/#token={appliance.token}"
    assert appliance.status()["open_addr"] == ""
    assert appliance.stop() == 0
    assert appliance.token not in appliance.log_file.read_text()


def test_a_port_that_others_reach_without_tls_or_token_says_so(appliance: Appliance) -> None:
    configure(appliance)
    closed = appliance.config_file.read_text()
    everywhere = closed.replace("127.0.0.1", "0.0.0.0")
    appliance.config_file.write_text(everywhere)
    appliance.start()
    status = appliance.status()
    assert status["open_addr"] == f"0.0.0.0:{appliance.port}"
    assert (
        "open to other machines, without TLS and without a token"
        in problems(msgspec.convert(status, Status))[0].title
    )
    assert appliance.stop() == 0
    assert "port_is_open" in appliance.log_file.read_text()
    appliance.config_file.write_text(f'{everywhere}\n[security]\nadmin-token = "{TOKEN}"\n')
    appliance.start()
    assert appliance.status()["open_addr"] == ""


def test_a_replication_that_is_stuck_goes_on_by_another_filter(appliance: Appliance) -> None:
    configure(appliance)
    appliance.start()
    asyncio.run(one_transaction(appliance, 1, rows=UNKNOWN))
    asyncio.run(one_transaction(appliance, 2))
    appliance.wait(lambda status: status["drainer"]["state"] == "stuck")
    configure(appliance, f"[syncer]\nignore-txn-commit-ts = [{BASE + 3}]\n")
    assert ask(appliance, "POST", "/reload", appliance.token)[1]["data"]["applied"] == [
        "syncer.ignore-txn-commit-ts"
    ]
    appliance.wait(lambda status: status["LastTS"] >= BASE + 5)
    assert appliance.stop() == 0


def test_the_words_of_binlogctl(appliance: Appliance) -> None:
    configure(appliance, top='binlog-socket = "p.sock"\n')
    appliance.start()
    for listing, node in (("pumps", "pump0"), ("-cmd=drainers", "pump0-drainer")):
        listed = json.loads(command(appliance, "ctl", listing, "--json").stdout)
        assert [each["nodeId"] for each in listed[listing.removeprefix("-cmd=")]] == [node]
    lines = command(appliance, "ctl", "-cmd", "pumps", "-show-offline-nodes").stdout
    assert '[INFO] [<unknown>] ["query node"] [type=pump] [node="{NodeID: pump0, Addr: ' in lines
    paused = command(appliance, "ctl", "pause-drainer", "--node-id", "pump0-drainer")
    assert (paused.returncode, paused.stdout) == (0, "apply action pause success!\n")
    appliance.wait(lambda status: status["drainer"]["node_state"] == "paused")
    again = command(appliance, "ctl", "offline-drainer", "--node-id", "pump0-drainer")
    assert again.returncode == 1, "the original's would call that a success"
    assert "this pump's state is paused, apply close failed!" in again.stdout
    assert command(appliance, "ctl", "resume", "--node-id", "pump0-drainer").returncode == 0
    for words, reason in (
        (("dance",), "cmd dance not supported; known: pumps, drainers"),
        (("pause-pump",), "pause-pump needs --node-id"),
        (("update-pump", "--node-id", "pump0", "--state", "x"), "state x is illegal"),
    ):
        wrong = command(appliance, "ctl", *words)
        assert wrong.returncode == 2
        assert reason in wrong.stderr
    failed = command(appliance, "ctl", "-cmd", "update-pump", "-node-id", "x", "-state", "paused")
    assert failed.returncode == 1, "as binlogctl"
    assert (
        '["fail to execute command"] [command=update-pump] [error="key /tidb-bin' in failed.stdout
    )
    for word, node in (("pause-pump", "nobody"), ("offline-pump", "pump0-drainer")):
        unknown = command(appliance, "ctl", word, "--node-id", node)
        assert unknown.returncode == 2
        assert f"key /tidb-binlog/v1/pumps/{node} in etcd not found" in unknown.stderr
        failed = command(appliance, "ctl", "-cmd", word, "-node-id", node)
        assert failed.returncode == 1, "as binlogctl, which looks in the registry first"
        assert f'[error="key /tidb-binlog/v1/pumps/{node} in etcd not found' in failed.stdout
    assert appliance.stop() == 0
    command(appliance, "ctl", "update-pump", "--node-id", "pump0", "--state", "offline")
    assert json.loads(command(appliance, "ctl", "pumps", "--json").stdout)["pumps"] == []
    shown = command(appliance, "ctl", "pumps", "--json", "-show-offline-nodes").stdout
    assert json.loads(shown)["pumps"][0]["state"] == "offline"


def test_status_follows_a_node_until_it_is_left(appliance: Appliance) -> None:
    configure(appliance)
    appliance.start()
    primary, secondary = pty.openpty()
    watch = ("status", "--watch", "--interval", "0.1")
    heard = ("env", "--default-signal=INT")  # a background job's children would not hear it
    watching = subprocess.Popen(
        [*heard, sys.executable, "-m", "binlogd", *watch, "-c", str(appliance.config_file)],
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"},
    )
    os.close(secondary)

    def until(word: bytes) -> None:
        seen = b""
        while word not in seen:  # ends with the test's timeout
            seen += os.read(primary, 4096)

    until(b"everything up to")
    appliance.kill()
    until(b"no answer:")
    watching.send_signal(signal.SIGINT)
    left = b""
    try:
        while chunk := os.read(primary, 4096):
            left += chunk
    except OSError:  # how the end of a terminal reads
        pass
    os.close(primary)
    assert watching.wait(READY_S) == 0
    assert b"Traceback" not in left


def test_status_as_json_follows_a_node_past_its_end(appliance: Appliance) -> None:
    configure(appliance)
    appliance.start()
    watch = ("status", "--watch", "--json", "--interval", "0.1")
    with subprocess.Popen(
        [sys.executable, "-m", "binlogd", *watch, "-c", str(appliance.config_file)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as watching:
        assert watching.stdout is not None
        documents = map(json.loads, watching.stdout)
        assert "LastTS" in next(documents)
        appliance.kill()
        gone = next(each for each in documents if "LastTS" not in each)
        assert gone["message"].startswith("no binlogd answers at ")
        appliance.start()
        assert any("LastTS" in each for each in documents), "there again"
        watching.kill()


def test_a_password_is_encrypted_and_used(tmp_path: Path) -> None:
    made = said("ctl", "encrypt", given="hunter2\n")
    assert "everybody knows" in made.stderr
    path = tmp_path / "c.toml"
    path.write_text(f'[syncer.to]\nencrypted_password = "{made.stdout.strip()}"\n')
    shown = said("check-config", "-c", str(path), "--json")
    document = json.loads(shown.stdout)
    assert document["config"]["syncer.to.password"] == "***"
    assert document["origins"]["syncer.to.password"] == "syncer.to.encrypted_password"
    assert "hunter2" not in shown.stdout + shown.stderr


def test_the_configuration_is_explained_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[syncer.to]\npassword = "hunter2"\n[pump]\nshards = 2\n')
    shown = said("check-config", "-c", str(path), "--addr", "127.0.0.1:1")
    assert shown.returncode == 0
    assert "actions are taken from: whoever has the admin token (the node's own" in shown.stdout
    open_to = path.with_name("open.toml")
    open_to.write_text(f'[security]\nadmin-token = "{TOKEN}"\noperators-from = ["10.1.2.0/24"]\n')
    assert (
        "actions are taken from: whoever has the admin token; 10.1.2.0/24 (states of nodes only"
        in said("check-config", "-c", str(open_to)).stdout
    )
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["pump.shards", "2", str(path)] in lines
    assert ["syncer.to.password", '"***"', str(path)] in lines
    assert ["addr", '"127.0.0.1:1"', "command", "line"] in lines
    assert "hunter2" not in shown.stdout


def test_a_machine_is_measured(tmp_path: Path) -> None:
    done = said("bench", "--seconds", "0.2", "--dir", str(tmp_path), "--json")
    found = json.loads(done.stdout)
    rates = {"fsync", "write", "write_p50", "write_p99", "pull", "pull_bytes"}
    shares = {"write_client_share", "pull_client_share"}
    assert rates | shares | {"write_cpu", "pull_cpu"} == set(found)
    assert all(found[each]["value"] > 0 for each in rates | shares)
    assert all(found[each]["value"] <= 100 for each in shares)
    assert list(tmp_path.iterdir()) == [], "nothing stays"
