"""A real `binlogd serve` in a process of its own, for tests from end to end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.program import Program, said

READY_S = 120.0
LOOK_S, LOOK_S_MAX = 0.05, 0.25
"""Between two looks at a status, which takes a node 7 ms to answer: a tenth of the time that it has
been looked at so far, within these bounds."""
STOP_S = 60.0
"""What a process promises is ten seconds; it says itself when it does not keep that."""


def into_mariadb(server: MariaDb, *, lanes: int = 4, extra: str = "", relay: str = "relay") -> str:
    """The `[syncer]` part of a configuration for a private MariaDB."""
    return (
        f'[syncer]\ndb-type = "mysql"\nworker-count = {lanes}\n{extra}\n'
        f'[syncer.relay]\nlog-dir = "{relay}"\n'
        f'[syncer.to]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "{server.user}"\n'
        f'password = "{server.password}"\n'
    )


class Appliance:
    """`binlogd serve` on a directory: start, kill -9, start again, stop."""

    def __init__(self, directory: Path, *, history: bytes | str = b"", syncer: str = "") -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.port = free_port()
        self.config_file = directory / "binlogd.toml"
        self.log_file = directory / "log"
        upstream = '[upstream]\nkind = "standalone"\ntso = "observed"\n'
        if isinstance(history, str):
            upstream += f'schema-history = "{history}"\n'
        elif history:
            (directory / "ddl_history.json").write_bytes(history)
            upstream += 'schema-history = "ddl_history.json"\n'
        self.configure(upstream + syncer)
        self._process: Program | subprocess.Popen[bytes] | None = None

    def configure(self, tables: str, top: str = "") -> None:
        """Writes the configuration; it counts from the next start on."""
        self.config_file.write_text(
            f'data-dir = "{self.data_dir}"\naddr = "127.0.0.1:{self.port}"\n{top}{tables}'
            "\n[pump]\ntimestamp-ahead-max = 1000000000\n"
            'stop-write-at-available-space = "1 MiB"\nfake-binlog-interval = 1\n'
        )

    @property
    def target(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self.port

    def start(self, *, is_ready: bool = True) -> None:
        """Starts it and waits until it answers."""
        self._process = self.launched()
        if is_ready:
            self.wait(lambda status: True, timeout_s=READY_S)

    def launched(self) -> Program | subprocess.Popen[bytes]:
        """A process that runs it."""
        words = ("serve", "--config", str(self.config_file))
        return Program(words, self.directory, environment(), out=self.log_file, err=self.log_file)

    def command(self, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The same as a command of its own: with the code, or the libraries, that these name."""
        words = (sys.executable, "-m", "binlogd", "serve", "--config", str(self.config_file))
        environ = {**environment(), **environ}
        with self.log_file.open("ab") as log:
            return subprocess.Popen(words, cwd=self.directory, env=environ, stdout=log, stderr=log)

    @property
    def token(self) -> str:
        """What the node has made for those who act."""
        return (self.data_dir / "admin-token").read_text().strip()

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running().pid

    def kill(self) -> None:
        """SIGKILL, and gone on return."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code. Fails when it does not end in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        return self.end(STOP_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal and does not wait."""
        self._running().send_signal(number)

    def end(self, timeout_s: float = READY_S) -> int:
        """Waits until it ends by itself; the exit code."""
        try:
            return self._running().wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end in {timeout_s} s: {self.log()}") from None

    @property
    def exit_code(self) -> int | None:
        """Of the process; None while it runs."""
        return self._running().poll()

    def close(self) -> None:
        """Whatever it does, it is gone afterwards."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def status(self) -> dict[str, Any]:
        """The document of `/status`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=60) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def wait(self, condition: Any, *, timeout_s: float = 120.0) -> dict[str, Any]:
        """The first status for which the condition holds; fails after the timeout."""
        begun = time.monotonic()
        last: Any = None
        while (waited_s := time.monotonic() - begun) < timeout_s:
            if self._running().poll() is not None:
                raise AssertionError(f"binlogd ended by itself: {self.log()}")
            try:
                last = self.status()
            except OSError as error:
                last = error
            else:
                if condition(last):
                    return dict(last)
            time.sleep(min(max(LOOK_S, waited_s / 10), LOOK_S_MAX))
        raise AssertionError(f"not so within {timeout_s} s: {last}\n{self.log()}")

    def wait_until_applied(self, commit_ts: int, *, timeout_s: float = 120.0) -> dict[str, Any]:
        """Returns when everything up to commit_ts is in the downstream; fails when stuck."""

        def is_applied(status: dict[str, Any]) -> bool:
            assert status["drainer"]["state"] != "stuck", status["drainer"]["error"]
            return bool(status["max_commit_ts"] >= commit_ts and status["lag_s"] == 0)

        return self.wait(is_applied, timeout_s=timeout_s)

    def wait_for_log(self, words: str, *, timeout_s: float = READY_S) -> None:
        """Returns when it has printed this."""
        deadline = time.monotonic() + timeout_s
        while words not in self._printed():
            if self._running().poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {words} in {timeout_s} s: {self.log()}")
            time.sleep(0.05)

    def log(self) -> str:
        """The end of what it printed."""
        return self._printed()[-4000:]

    def _printed(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _running(self) -> Program | subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process


def run(directory: Path, *words: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    """One `binlogd` command to its end."""
    return said(words, directory, environment(), timeout_s)


def environment() -> dict[str, str]:
    """Of every process of ours."""
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1", "COLUMNS": "200"}


@contextmanager
def killed_at_random(
    appliance: Appliance, seed: int, kills: int, *, every_s: tuple[float, float] = (1.0, 3.0)
) -> Iterator[None]:
    """SIGKILL and a new start, again and again, while the body runs."""
    rng, over = random.Random(seed), threading.Event()

    def kill_and_start() -> None:
        for _ in range(kills):
            if over.wait(rng.uniform(*every_s)):
                return
            appliance.kill()
            appliance.start(is_ready=False)

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
