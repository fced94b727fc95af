"""The Go client libraries that TiDB, Pump, Drainer and binlogctl are built with, against a whole
process that is their PD and their Pump.

They come with `go mod download` in each folder of tests/interop, some 200 MB, and are compiled once
(a few minutes, kept in Go's build cache).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.appliance import Appliance
from tests.recordings_reader import RECORDINGS, history

PROGRAMS = Path(__file__).parents[1] / "interop"
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program; skips where it cannot be made from what is on this machine."""
    go = shutil.which("go")

    def compiled(folder: str, *flags: str) -> Path:
        if go is None:
            pytest.skip("go is not installed")
        program = tmp_path_factory.mktemp("interop") / "program"
        built = subprocess.run(
            [go, "build", *flags, "-o", str(program), "."],
            cwd=PROGRAMS / folder,
            env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if "module lookup disabled" in built.stderr:
            modules = " ".join(flag for flag in flags if flag.startswith("-modfile"))
            pytest.skip(
                f"modules are missing: cd tests/interop/{folder}; go mod download {modules}"
            )
        assert built.returncode == 0, built.stderr
        return program

    return compiled


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path, history=history(RECORDINGS / "keys"))
    appliance.configure(
        '[upstream]\nkind = "standalone"\nschema-history = "ddl_history.json"\n',
        top=f'node-id = "pump0"\nbinlog-socket = "{tmp_path / "pump.sock"}"\n',
    )
    appliance.start()
    yield appliance
    appliance.close()


def run(program: Path, *arguments: str) -> None:
    """Every line of it says ok."""
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=False, timeout=180
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
def test_the_pump_client_of_tidb_writes_and_the_tools_read_the_registry(
    build: Build, appliance: Appliance
) -> None:
    """Through PD and the port, and through the unix socket."""
    target = "{}:{}".format(*appliance.target)
    run(build("pumps"), target, str(appliance.directory / "pump.sock"))
    status = appliance.wait(lambda status: status["max_commit_ts"] > 0)
    assert status["late_commits"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("-modfile=pd71.mod", "-tags=pd71")], ids=["8.3", "7.1"])
def test_the_clients_of_newer_tidbs_find_a_pd_and_the_history(
    build: Build, appliance: Appliance, flags: tuple[str, ...]
) -> None:
    run(build("cluster", *flags), "{}:{}".format(*appliance.target))


@pytest.mark.soak
def test_etcdctl_does_here_what_it_does_at_an_etcd(
    appliance: Appliance, real_etcd_port: int
) -> None:
    etcdctl = shutil.which("etcdctl")
    if etcdctl is None:
        pytest.skip("etcdctl is not installed: Debian has it in etcd-client")
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
    for each in (["endpoint", "status"], ["endpoint", "health"], ["member", "list"]):
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
    ("get /ctl/a --rev=99999999", ""),
    ("get /ctl/none", ""),
    ("put /ctl/none --ignore-value", ""),
    (
        "txn",
        'value("/ctl/a") = "2"\nversion("/ctl/a") > "1"\nlease("/ctl/a") = "0"\n\n'
        "put /ctl/a 5\nget /ctl/a\n\nget /ctl/b\n\n",
    ),
    ("txn", 'create("/ctl/a") = "0"\n\nput /ctl/a 6\n\nget /ctl/a\ndel /ctl/b\n\n'),
    ("del /ctl/ --prefix --prev-kv", ""),
    ("lease revoke 1234", ""),
    ("lease timetolive 1234", ""),
    ("put /ctl/l v --lease=1234", ""),
    ("compaction 99999999", ""),
    ("alarm list", ""),
    ("alarm disarm", ""),
    ("--user=root:secret get /ctl/a", ""),
    ("lock /ctl/lock echo held", ""),
]
