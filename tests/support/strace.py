"""System calls of a real process, seen or made to fail by strace, where it may be used."""

from __future__ import annotations

import shutil
import subprocess

import pytest

UNDER = ("strace", "-f", "--seccomp-bpf", "-qq")
"""A process stops at the calls alone that are asked for."""


def skip_without() -> None:
    """Skips where strace is missing or processes may not be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: `make system` does")
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode(errors='replace').strip()}")
