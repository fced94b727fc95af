"""The demo does what it says: kills, restarts, compares, and tells by its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.mariadb import MariaDb

ROOT = Path(__file__).parents[2]


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.workload.demo", *words],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_files_and_mariadb_hold_every_row_after_a_kill(mariadb: MariaDb) -> None:
    url = f"mysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}"
    done = demo("--transactions", "800", "--seed", "5", "--ddl-every", "25", "--mysql-url", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every row is what it must be" in done.stdout
    assert "SIGKILL with" in done.stdout


def test_a_wrong_url_is_a_wrong_command() -> None:
    done = demo("--transactions", "100", "--mysql-url", "localhost")
    assert done.returncode == 2
    assert "mysql://user:password@host:port" in done.stdout
