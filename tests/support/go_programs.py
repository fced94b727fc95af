"""Programs in Go, compiled from the modules that are on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "interop"


def built(folder: str, directory: Path, *flags: str, package: str = ".") -> Path:
    """A package of a folder of tests/interop, as a program in `directory`; skips where it cannot be
    made from what is here."""
    beside_python = str(Path(sys.executable).parent)
    go = shutil.which("go", path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))
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
    return program
