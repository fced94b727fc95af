"""Tutorial and how-tos: the commands of a page run as they stand there, and print what it shows.

Of a page with the mark, in order: a block with a title is a file, `$ ` in a `console` block is a
command, the lines below it are what it prints, `…` standing for anything. Only the ports differ,
that of binlogd and that of the database.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.deployment import grants
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
MARK = "<!-- run by tests/e2e/test_docs.py -->"
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if MARK in page.read_text()]
BLOCK = re.compile(
    r"^(?P<indent> *)```(\w+)(?: title=\"(.+?)\")?\n(.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
SERVER = re.compile(r"(.+) & echo \$! > (\S+)")
PATIENCE_S = 300.0


@dataclass
class Reader:
    """Somebody who types in a clone, and waits where one would wait."""

    directory: Path
    database_port: int
    port: int = field(default_factory=free_port)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def save(self, name: str, text: str) -> None:
        """A block with a title."""
        if name.endswith(".toml"):
            text = f'addr = "127.0.0.1:{self.port}"\n{text}'
        (self.directory / name).write_text(self._here(text))

    def type(self, command: str, expected: str) -> None:
        """One command; what it prints must be what the page shows."""
        if words := SERVER.fullmatch(command):
            self.servers.append(self._start(f"echo $$ > {words[2]}; exec {words[1]}"))
            self._wait()
            return
        text = self._said_by(command)
        deadline = time.monotonic() + PATIENCE_S
        while expected and not re.fullmatch(pattern(expected), text):
            is_moving = "binlogd status" in command and time.monotonic() < deadline
            assert is_moving, f"{command}\n{text}\nis not\n{expected}"
            time.sleep(0.5)  # as one would look again
            text = self._said_by(command)
        for server in [each for each in self.servers if "kill -9" in command]:
            server.wait()
            self.servers.remove(server)
        if self.servers and self.servers[-1].poll() is None:
            self._wait()

    def _said_by(self, command: str) -> str:
        done = self._start(self._here(command), pipe=subprocess.PIPE)
        try:
            said, _ = done.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            said, _ = done.communicate()
            raise AssertionError(f"{command}\nhas not ended; so far:\n{said.decode()}") from None
        assert done.returncode == 0, f"{command}\n{said.decode()}"
        return said.decode()

    def close(self) -> None:
        """Whatever runs is ended."""
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()

    def _here(self, text: str) -> str:
        """The ports of binlogd and of the database are others here."""
        return text.replace("8250", str(self.port)).replace("3306", str(self.database_port))

    def _start(self, command: str, pipe: int | None = None) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-ec", command],
            cwd=self.directory,
            env=environ,
            stdout=pipe,
            stderr=subprocess.STDOUT if pipe else None,
            start_new_session=True,
        )

    def _wait(self) -> None:
        """Until it answers, and all that arrived is applied, or what is stuck is to be mended."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.servers[-1].poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
                    status = json.load(answer)
            except OSError:
                time.sleep(0.05)
                continue
            is_filed = not any(
                each["open_prewrites"] or each["queued"] for each in status["shards"]
            )
            drainer = status["drainer"]
            is_done = status["newest_commit_ts"] <= drainer["applied_ts"]
            if is_filed and (is_done or drainer["state"] == "stuck"):
                return
            time.sleep(0.05)
        assert self.servers[-1].poll() is not None, "it does not come to rest"


def pattern(expected: str) -> str:
    """A line that is `…` stands for any lines, within a line it stands for any characters."""
    parts = []
    for line in expected.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(re.escape(line.rstrip()).replace("…", ".*") + r" *\n")
    return "".join(parts)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, expected = part.partition("\n")
        yield command, expected


@pytest.fixture
def reader(tmp_path: Path, mariadb_server: MariaDb) -> Iterator[Reader]:
    mariadb_server.reset()
    mariadb_server.execute("CREATE OR REPLACE USER binlogd@'%'", *grants())
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    made = Reader(tmp_path, mariadb_server.port)
    yield made
    made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_what_it_says(page: Path, reader: Reader) -> None:
    for indent, language, title, indented in BLOCK.findall(page.read_text()):
        text = re.sub(f"^{indent}", "", indented, flags=re.MULTILINE)
        if title:
            reader.save(title, text)
        elif language == "console":
            for command, expected in commands(text):
                reader.type(command, expected)


def test_there_are_pages_to_run() -> None:
    assert {page.stem for page in PAGES} >= {
        "tutorial",
        "tutorial-data",
        "sqlite",
        "mend",
        "restore",
        "migrate",
    }
