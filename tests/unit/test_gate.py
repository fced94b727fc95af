"""The gate leaves nothing out in silence, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WANTS_A_TOOL = "tests/integration/test_deploy_files.py"
LEAVES_A_DATABASE_OPEN = """
import aiosqlite

async def test_it():
    database = await aiosqlite.connect(":memory:")
    assert database.in_transaction, "it is not"
"""
PATIENCE_S = 120.0


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


def test_a_test_that_fails_with_a_database_open_ends_the_run(tmp_path: Path) -> None:
    """It waited for the thread of the database, without end."""
    failing = tmp_path / "test_left_open.py"
    failing.write_text(LEAVES_A_DATABASE_OPEN)
    options = ("-q", "-p", "tests.conftest", "-c", "pyproject.toml", str(failing))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    assert "AssertionError: it is not" in ran.stdout
