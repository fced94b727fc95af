"""`binlogd` in a process of its own, forked where its code has been imported already.

What `python -m binlogd` does after its imports happens here too: words, environment, directory,
output and exit code are those of a command, signals reach it alone. An interpreter and the imports
cost a second of a core, and tests start hundreds. The pages of the documentation and the demo are
run with the command itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing import connection, forkserver, get_context
from pathlib import Path

import pytest

from binlogd.cli import main

ROOT = Path(__file__).parents[2]
_PROCESSES = get_context("forkserver")
_TURN = threading.Lock()
"""Who starts a process asks all others for their exit codes, and each can be read once."""


class Program:
    """`binlogd` with these words; it runs at once. What it says is appended to `out` and `err`."""

    def __init__(
        self,
        words: tuple[str, ...],
        directory: Path,
        environ: Mapping[str, str],
        out: Path,
        err: Path,
    ) -> None:
        self.words = words
        self._process = _PROCESSES.Process(
            target=_main, args=(words, directory, dict(environ), out, err), daemon=True
        )
        with _TURN:
            with pytest.MonkeyPatch.context() as patch:  # for the one that forks
                patch.setenv("PYTHONPATH", str(ROOT))
                _PROCESSES.set_forkserver_preload(["__main__", "tests.support.imported"])
                forkserver.ensure_running()
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with _TURN:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. Raises subprocess.TimeoutExpired."""
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.words, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def said(
    words: tuple[str, ...], directory: Path, environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """One command to its end. Raises subprocess.TimeoutExpired, and it is gone."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        program = Program(words, directory, environ, out, err)
        try:
            code = program.wait(timeout_s)
        finally:
            program.send_signal(signal.SIGKILL)
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _main(
    words: tuple[str, ...], directory: Path, environ: dict[str, str], out: Path, err: Path
) -> None:
    """In the new process."""
    os.chdir(directory)
    for number, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environ)
    # what runs in the background of a shell ignores Ctrl-C, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["binlogd", *words]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    main()
