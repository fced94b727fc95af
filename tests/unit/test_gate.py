"""The gate leaves nothing out in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WANTS_A_TOOL = "tests/integration/test_deploy_files.py"


@pytest.mark.parametrize(("options", "ends"), [((), 0), (("--nothing-skipped",), 1)])
def test_a_test_whose_tool_is_missing_fails_the_gate_and_says_which(
    options: tuple[str, ...], ends: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "systemd", *options, WANTS_A_TOOL],
        cwd=ROOT,
        env={**os.environ, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == ends, ran.stdout
    assert "no systemd here" in ran.stdout
