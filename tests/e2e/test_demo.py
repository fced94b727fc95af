"""The demo does what it says: kills, restarts, compares, and tells by its exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
    done = demo("--transactions", "200", "--seed", "5", "--ddl-every", "25", "--mysql-url", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every row is what it must be" in done.stdout
    assert "SIGKILL with" in done.stdout


def test_a_wrong_url_is_a_wrong_command() -> None:
    done = demo("--transactions", "100", "--mysql-url", "localhost")
    assert done.returncode == 2
    assert "mysql://user:password@host:port" in done.stdout


@contextmanager
def showing() -> Iterator[subprocess.Popen[str]]:
    """The demo that stays up."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.workload.showing"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """Reads on until a line has it; the first group."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"{pattern} is not in {lines}")


def test_it_stays_up_to_be_looked_at_and_killed_until_ctrl_c() -> None:
    with showing() as process:
        config = Path(said(process, r"status --config (\S+)"))
        pid = int(said(process, r"kill -9 (\d+)"))
        os.kill(pid, signal.SIGKILL)
        assert int(said(process, r"signal 9\), and is back as process (\d+)")) != pid
        process.send_signal(signal.SIGINT)
        said(process, "(every row is what it must be)")
        assert said(process, "It leaves nothing: (.*) is removed") == str(config.parents[1])
        assert process.wait(timeout=60) == 0
    assert not config.parents[1].exists()


@pytest.mark.soak
def test_who_does_not_wait_for_the_comparison_leaves_nothing_either() -> None:
    with showing() as process:
        config = Path(said(process, r"status --config (\S+)"))
        said(process, "(Ctrl-C)")
        process.send_signal(signal.SIGINT)
        said(process, "(Ctrl-C again)")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert not config.parents[1].exists()
