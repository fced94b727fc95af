"""Programs in Go, compiled from the modules that are on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.tried import tried

PROGRAMS = Path(__file__).parents[1] / "interop"


def _go() -> str | None:
    """The compiler beside this Python before that of the machine."""
    beside_python = str(Path(sys.executable).parent)
    return shutil.which("go", path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))


def built(folder: str, directory: Path, *flags: str, package: str = ".") -> Path:
    """A package of a folder of tests/interop, as a program in `directory`; skips where it cannot be
    made from what is here."""
    go = _go()
    if go is None:
        pytest.skip("go is not installed: `make setup-soak` does")
    program = directory / "program"
    done = subprocess.run(
        [go, "build", *flags, "-o", str(program), package],
        cwd=PROGRAMS / folder,
        env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "module lookup disabled" in done.stderr:
        pytest.skip(f"modules of tests/interop/{folder} are missing: `make setup-soak` gets them")
    assert done.returncode == 0, done.stderr
    say_modules(program)
    return program


MODULES = {
    "github.com/compose-spec/compose-go/v2": "Compose's parser (compose-go)",
    "github.com/pingcap/tidb-tools": "TiDB's Pump client (tidb-tools, Go)",
    "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring": (
        "Prometheus operator's types"
    ),
    "github.com/summerwind/h2spec": "h2spec",
    "github.com/tikv/client-go/v2": "TiKV's client (client-go)",
    "github.com/tikv/pd": "PD",
    "github.com/tikv/pd/client": "PD's client (Go)",
    "go.etcd.io/etcd/client/v3": "etcd's client (Go)",
    "google.golang.org/grpc": "grpc-go",
    "helm.sh/helm/v3": "Helm",
    "k8s.io/client-go": "Kubernetes' types (client-go)",
}
"""What the programs are made to try."""


def say_modules(program: Path) -> None:
    """That a test has to do with MODULES, in the versions that this program was linked with."""
    for module, version in _linked(program):
        tried(MODULES[module], version)


@cache
def _linked(program: Path) -> tuple[tuple[str, str], ...]:
    said = subprocess.run(
        [_go() or "go", "version", "-m", str(program)], check=True, capture_output=True, text=True
    )
    lines = [line.split() for line in said.stdout.splitlines()]
    named = [words[1:3] for words in lines if words[:1] in (["mod"], ["dep"])]
    return tuple((module, version) for module, version in named if module in MODULES)
