"""The Go client libraries of etcd and PD against a whole process that stands in for both.

They come with `cd tests/interop && go mod download`, about 100 MB, and are compiled once (a minute
or two, kept in Go's build cache).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance import Appliance

PROGRAM = Path(__file__).parents[1] / "interop"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program; skips where it cannot be made from what is on this machine."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    compiled = tmp_path_factory.mktemp("interop") / "interop"
    built = subprocess.run(
        [go, "build", "-o", str(compiled), "."],
        cwd=PROGRAM,
        env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "module lookup disabled" in built.stderr:
        pytest.skip("the Go modules are missing: cd tests/interop && go mod download")
    assert built.returncode == 0, built.stderr
    return compiled


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path)
    appliance.configure('[upstream]\nkind = "standalone"\n')
    yield appliance
    appliance.close()


@pytest.mark.soak
def test_the_go_clients_of_etcd_and_pd_get_what_they_expect(
    program: Path, appliance: Appliance
) -> None:
    appliance.start()
    host, port = appliance.target
    done = subprocess.run(
        [str(program), f"{host}:{port}"], capture_output=True, text=True, check=False, timeout=120
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert (done.returncode, failed) == (0, []), done.stdout
    assert done.stdout.count("\nok ") >= 18
