"""Programs in Go, compiled from the modules that are on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "interop"


def built(folder: str, directory: Path, *flags: str, package: str = ".") -> Path:
    """A package of a folder of tests/interop, as a program in `directory`; skips where it cannot be
    made from what is here."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
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
        modules = " ".join(flag for flag in flags if flag.startswith("-modfile"))
        pytest.skip(f"modules are missing: cd tests/interop/{folder}; go mod download {modules}")
    assert done.returncode == 0, done.stderr
    return program
