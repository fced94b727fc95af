"""The Go client libraries that TiDB, Pump, Drainer and binlogctl are built with, against a whole
process that is their PD and their Pump.

`make setup-soak` gets their modules, some 200 MB; they are compiled once (a few minutes,
kept in Go's build cache).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.appliance import Appliance
from tests.support.appliance import run as command
from tests.support.certificates import Authority
from tests.support.etcd import say_version
from tests.support.go_programs import built
from tests.support.recordings_reader import RECORDINGS, history
from tests.support.tried import tried

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program; skips where it cannot be made from what is on this machine."""

    def compiled(folder: str, *flags: str) -> Path:
        return built(folder, tmp_path_factory.mktemp("interop"), *flags)

    return compiled


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path, history=history(RECORDINGS / "keys"))
    appliance.configure(
        '[upstream]\nkind = "standalone"\nschema-history = "ddl_history.json"\n',
        top='node-id = "pump0"\n',
    )
    appliance.start()
    yield appliance
    appliance.close()


def secured(directory: Path) -> tuple[str, dict[str, str]]:
    """The configuration of a node with TLS, and what tells a program its certificates."""
    authority = Authority(directory / "ca")
    authority.issue("node", "binlog")
    authority.issue("tidb", "binlog")
    configuration = (
        '[security]\nssl-ca = "ca/ca.pem"\nssl-cert = "ca/node.pem"\n'
        'ssl-key = "ca/node.key"\ncert-allowed-cn = ["binlog"]\n'
    )
    return configuration, {"TLS": str(directory / "ca")}


def run(program: Path, *arguments: str, **variables: str) -> None:
    """Every line of it says ok."""
    done = subprocess.run(
        [str(program), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    assert (done.returncode, failed) == (0, []), done.stdout + done.stderr
    assert sum(line.startswith("ok ") for line in lines) >= 7


@pytest.mark.soak
def test_the_go_clients_of_etcd_and_pd_get_what_they_expect(
    build: Build, appliance: Appliance
) -> None:
    run(build("."), "{}:{}".format(*appliance.target))


@pytest.mark.soak
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "TLS"])
def test_the_pump_client_of_tidb_writes_and_the_tools_read_the_registry(
    build: Build, tmp_path: Path, *, is_secured: bool
) -> None:
    """Through PD and the port, and through the unix socket; a Drainer's pull has it all."""
    security, given = secured(tmp_path) if is_secured else ("", {})
    appliance = Appliance(tmp_path)
    socket = tmp_path / "pump.sock"
    appliance.configure(
        f'[upstream]\nkind = "standalone"\ntso = "clock"\n{security}',
        top=f'node-id = "pump0"\nbinlog-socket = "{socket}"\n',
    )
    try:
        appliance.start(is_ready=False)
        appliance.wait_for_log("service_started")
        # TiDB speaks TLS on the socket too, where it has certificates; the socket here is plain
        sockets = () if is_secured else (str(socket),)
        run(build("pumps"), "{}:{}".format(*appliance.target), *sockets, **given)
        assert appliance.stop() == 0
    finally:
        appliance.close()


@pytest.mark.soak
def test_pumps_are_restarted_one_after_the_other_while_tidbs_client_writes(
    build: Build, tmp_path: Path
) -> None:
    """No write fails, nothing is lost, the Drainer has it all: the original's test `restart`."""
    program = build("pumps")
    nodes = {name: _node(tmp_path, name) for name in ("home", "drainer", "first", "second")}
    home, drainer = nodes["home"], nodes["drainer"]
    home.configure(
        '[upstream]\nkind = "standalone"\ntso = "clock"\n', 'node-id = "home"\nroles = ["pump"]\n'
    )
    pd = f'[upstream]\nkind = "pd"\npd-urls = "http://127.0.0.1:{home.port}"\n'
    drainer.configure(
        pd + '[syncer]\ndb-type = "sqlite"\n', 'node-id = "drainer"\nroles = ["drainer"]\n'
    )
    for name in ("first", "second"):
        operators = '[security]\noperators-from = ["127.0.0.1"]\n'
        nodes[name].configure(pd + operators, f'node-id = "{name}"\nroles = ["pump"]\n')
    try:
        for node in nodes.values():
            node.start()
        target = "{}:{}".format(*home.target)
        writing = subprocess.Popen(
            [str(program), target, "for", "20"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for name in ("first", "second"):
            paused = command(
                tmp_path, "ctl", "-cmd", "pause-pump", "-node-id", name, "-pd-urls", target
            )
            assert paused.returncode == 0, paused
            assert nodes[name].end() == 0
            listed = command(tmp_path, "ctl", "-cmd", "pumps", "-pd-urls", target).stdout
            assert f"NodeID: {name}, Addr: 127.0.0.1:{nodes[name].port}, State: paused" in listed
            nodes[name].start()
        output, _ = writing.communicate(timeout=120)
        assert writing.returncode == 0, output[-2000:]
        count, last = re.findall(r"wrote (\d+) up to (\d+)", output)[0]
        assert int(count) > 100
        drainer.wait_until_applied(int(last))
        offline = command(
            tmp_path, "ctl", "-cmd", "offline-pump", "-node-id", "second", "-pd-urls", target
        )
        assert offline.returncode == 0
        assert nodes["second"].end() == 0
        assert [nodes[name].stop() for name in ("drainer", "first", "home")] == [0, 0, 0]
        kept = [
            command(tmp_path, "dump", "--heads", "--json", "--data-dir", str(nodes[name].data_dir))
            for name in ("home", "first", "second")
        ]
        commits = {
            json.loads(line)["commit_ts"] for each in kept for line in each.stdout.splitlines()
        }
        assert len(commits) == int(count)
        assert max(commits) == int(last)
    finally:
        for node in nodes.values():
            node.close()


def _node(directory: Path, name: str) -> Appliance:
    (directory / name).mkdir()
    return Appliance(directory / name)


@pytest.mark.soak
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("flags", [(), ("-modfile=pd71.mod", "-tags=pd71")], ids=["8.3", "7.1"])
def test_the_clients_of_newer_tidbs_find_a_pd_and_the_history(
    build: Build, tmp_path: Path, flags: tuple[str, ...], *, is_secured: bool
) -> None:
    security, given = secured(tmp_path) if is_secured else ("", {})
    appliance = Appliance(tmp_path, history=history(RECORDINGS / "keys"))
    appliance.configure(
        f'[upstream]\nkind = "standalone"\nschema-history = "ddl_history.json"\n{security}'
    )
    try:
        appliance.start(is_ready=False)
        appliance.wait_for_log("service_started")
        run(build("cluster", *flags), "{}:{}".format(*appliance.target), **given)
    finally:
        appliance.close()


@pytest.mark.soak
def test_etcdctl_does_here_what_it_does_at_an_etcd(
    appliance: Appliance, real_etcd_port: int
) -> None:
    etcdctl = shutil.which("etcdctl")
    if etcdctl is None:
        pytest.skip("etcdctl is not installed: `make setup-soak` does")
    version = subprocess.run([etcdctl, "version"], check=True, capture_output=True, text=True)
    tried("etcdctl", version.stdout.split()[2])
    say_version(real_etcd_port)
    said = []
    for port in (appliance.port, real_etcd_port):
        answers = []
        for words, given in ETCDCTL:
            done = subprocess.run(
                [etcdctl, f"--endpoints=127.0.0.1:{port}", *words.split()],
                env={**os.environ, "ETCDCTL_API": "3"},
                input=given,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            errors = [line for line in done.stderr.splitlines() if line.startswith("Error")]
            answers.append((words, done.returncode, done.stdout, errors))
        said.append(answers)
    assert said[0] == said[1]
    status = [etcdctl, f"--endpoints=127.0.0.1:{appliance.port}"]
    for each in (["endpoint", "health"], ["member", "list"]):
        subprocess.run([*status, *each], check=True, capture_output=True, timeout=60)
    refused = subprocess.run(
        [*status, "member", "add", "two", "--peer-urls=http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "binlogd stands in for PD: it has one member" in refused.stderr


ETCDCTL = [
    ("put /ctl/a 1", ""),
    ("put /ctl/a 2 --prev-kv", ""),
    ("put /ctl/b 3", ""),
    ("get /ctl/a", ""),
    ("get /ctl/ --prefix", ""),
    ("get /ctl/ --prefix --keys-only --limit=1 --order=DESCEND", ""),
    ("get /ctl/none", ""),
    (
        "txn",
        'value("/ctl/a") = "2"\nversion("/ctl/a") > "1"\nlease("/ctl/a") = "0"\n\n'
        "put /ctl/a 5\nget /ctl/a\n\nget /ctl/b\n\n",
    ),
    ("txn", 'create("/ctl/a") = "0"\n\nput /ctl/a 6\n\nget /ctl/a\ndel /ctl/b\n\n'),
    ("del /ctl/ --prefix --prev-kv", ""),
    ("lease revoke 1234", ""),
    ("put /ctl/l v --lease=1234", ""),
    ("lock /ctl/lock echo held", ""),
]
