"""Standard input, output and error are not always there, and who reads the output may go away."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.tools.test_reading import extracted
from tests.support import bank
from tests.support.appliance import READY_S, Appliance, environment, run
from tests.support.small_disk import fill, mounted

COUNT = 50
MISSING = '"event": "log_lines_missing"'
LINES_OF_A_PAGE = 40
"""More than are in what is left of one, where a disk is full."""


def ran(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script of a shell, to which `binlogd` is ours."""
    ours = f'binlogd() {{ {shlex.quote(sys.executable)} -m binlogd "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", ours + script],
        cwd=directory,
        env=environment() | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=READY_S,
    )


@pytest.mark.parametrize("words", ["dump out --json", "dump out", "check-config", "--help"])
def test_a_reader_that_goes_away_ends_a_command_without_a_word(tmp_path: Path, words: str) -> None:
    root = extracted("drainer_file_ddl", tmp_path)
    (tmp_path / "out").symlink_to(root / "last" / "out")
    gone = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
    gone += "os.execv(sys.executable, [sys.executable, '-m', 'binlogd', *sys.argv[1:]])"
    done = ran(tmp_path, f"{shlex.quote(sys.executable)} -c {shlex.quote(gone)} {words}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["check-config --json", "--help"])
def test_an_output_that_is_not_whole_is_no_success(tmp_path: Path, words: str) -> None:
    done = ran(tmp_path, f"binlogd {words} > /dev/full")
    said = "binlogd: No space left on device; what was written is not whole: free some, and run it"
    assert (done.returncode, done.stderr) == (1, f"{said} again\n")


def test_a_node_and_its_commands_run_without_standard_files(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path)
    config = f"--config {shlex.quote(str(appliance.config_file))} <&- >&- 2>&-"
    script = f"""
        binlogd serve {config} & node=$!
        binlogd health --wait 60 {config} || exit 3
        binlogd status {config} || exit 4
        binlogd nodes --json {config} || exit 5
        binlogd state pause --wait 60 {config} || exit 6
        wait $node
    """
    done = ran(tmp_path, script)
    assert done.returncode == 0


def test_a_node_whose_log_cannot_be_written_works_and_says_so(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path, history=bank.history())
    with mounted(tmp_path / "var", megabytes=1) as disk:
        appliance.log_file = disk / "log"
        try:
            appliance.start()
            fill(disk)
            asyncio.run(bank.feed(bank.transfers(COUNT), appliance.target))
            status = appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
            for _ in range(2 * LINES_OF_A_PAGE):
                appliance.signal(signal.SIGHUP)
                status = appliance.status()
            assert status["log_error"] == "No space left on device"
            words = ("status", "--config", str(appliance.config_file))
            assert "log lines cannot be written: No space left" in run(tmp_path, *words).stdout
            (disk / "filler").unlink()
            appliance.signal(signal.SIGHUP)
            assert appliance.wait(lambda status: not status["log_error"])
            assert appliance.stop() == 0
            (said,) = (
                line for line in appliance.log_file.read_text().splitlines() if MISSING in line
            )
            assert json.loads(said)["lines"] > LINES_OF_A_PAGE
        finally:
            appliance.close()


def test_a_node_whose_log_nobody_reads_works_and_says_so(tmp_path: Path) -> None:
    """As `serve | less` that was stopped; a pipe holds 64 KiB."""
    appliance = Appliance(tmp_path, history=bank.history())
    appliance.log_file = tmp_path / "log"
    os.mkfifo(appliance.log_file)
    reading = os.open(appliance.log_file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        appliance.start()
        assert appliance.wait(lambda status: _reloaded(appliance) and status["log_error"])
        asyncio.run(bank.feed(bank.transfers(COUNT), appliance.target))
        status = appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
        assert status["log_error"] == "who reads the log takes nothing"
        os.set_blocking(reading, True)
        with open(reading, encoding="utf-8", closefd=False) as log:
            said = threading.Thread(target=lambda: lines.extend(log))
            lines: list[str] = []
            said.start()
            assert appliance.wait(lambda status: _reloaded(appliance) and not status["log_error"])
            assert appliance.stop() == 0
            said.join()
        (missing,) = (json.loads(line) for line in lines if MISSING in line)
        assert missing["lines"] > 0
        assert missing["cause"] == "who reads the log takes nothing"
    finally:
        appliance.close()
        os.close(reading)


def _reloaded(appliance: Appliance) -> bool:
    """Each time a few lines of the log."""
    for _ in range(LINES_OF_A_PAGE):
        appliance.signal(signal.SIGHUP)
        appliance.status()
    return True
