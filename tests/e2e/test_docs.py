"""Tutorials and how-tos: what a page prints runs as it stands there, one command after the other.

Of a page with the mark, in order: a block with a title is a file, `$ ` in a `console` block is a
command, the lines below it are what it prints, `…` standing for anything. Nobody waits for anything
that the page does not wait for. Only the ports differ, that of binlogd and that of the database.
What is not run is in blocks that are indented, or of another language: it needs a TiDB, a cluster,
or an account somewhere.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.deployment import grants
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.recordings_reader import SYSTEM_SCHEMAS

ROOT = Path(__file__).parents[2]
MARK = "<!-- run by tests/e2e/test_docs.py -->"
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if MARK in page.read_text()]
BLOCK = re.compile(
    r"^(?P<indent> *)```(\w+)(?: title=\"(.+?)\")?\n(.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
CLONE = ("Makefile", "binlogd", "config", "deploy", "docs", "tests")
PATIENCE_S = 300.0
SHORT = "tutorial"
"""The page whose commands run in every gate; the others, up to a minute each, in the long run. What
their commands do has tests of its own."""


@dataclass
class Reader:
    """Somebody who pastes into a terminal at the root of a clone."""

    clone: Path
    database_port: int
    port: int = field(default_factory=free_port)
    groups: list[int] = field(default_factory=list)

    def save(self, name: str, text: str) -> None:
        """A block with a title."""
        (self.clone / name).write_text(self._here(text))

    def paste(self, command: str, expected: str) -> None:
        """One command; what it prints must be what the page shows."""
        said = self._said_by(self._here(command))
        assert not expected or re.fullmatch(pattern(expected), said), (
            f"{command}\n{said}\nis not\n{expected}"
        )

    def close(self) -> None:
        """Whatever a page that failed has left running is ended."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue  # as it should be

    def _here(self, text: str) -> str:
        """The ports of binlogd and of the database are others here."""
        return text.replace("8250", str(self.port)).replace("3306", str(self.database_port))

    def _said_by(self, command: str) -> str:
        settings = {
            "BINLOGD_ADDR": f"127.0.0.1:{self.port}",
            "BINLOGD_PUMP__STOP_WRITE_AT_AVAILABLE_SPACE": "64 MiB",  # on a small disk, too
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        typed = subprocess.Popen(
            ["bash", "-o", "pipefail", "-ec", command],
            cwd=self.clone,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self.groups.append(typed.pid)
        said, _ = typed.communicate(timeout=PATIENCE_S)
        assert typed.returncode == 0, f"{command}\n{said}"
        return said


def pattern(expected: str) -> str:
    """A line that is `…` stands for any lines, within a line it stands for any characters, and `N`
    for a number that is not 0."""
    parts = []
    for line in expected.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*")
        else:
            said = re.escape(line.rstrip()).replace("…", ".*")
            parts.append(re.sub(r"\bN\b", "[1-9][0-9,]*", said) + r" *\n")
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
    for name in CLONE:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    made = Reader(tmp_path, mariadb_server.port)
    yield made
    made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[] if page.stem == SHORT else [pytest.mark.soak])
        for page in PAGES
    ],
)
def test_a_page_can_be_pasted_and_leaves_nothing_behind(
    page: Path, reader: Reader, mariadb_server: MariaDb
) -> None:
    for indent, language, title, indented in BLOCK.findall(page.read_text()):
        text = re.sub(f"^{indent}", "", indented, flags=re.MULTILINE)
        if title:
            reader.save(title, text)
        elif language == "console":
            for command, expected in commands(text):
                reader.paste(command, expected)
    assert {path.name for path in reader.clone.iterdir()} == {*CLONE, ".venv"}
    left = {(name or b"").decode() for (name,) in mariadb_server.execute("SHOW DATABASES")}
    assert left - set(SYSTEM_SCHEMAS) <= {"test"}


def test_there_are_pages_to_run() -> None:
    assert {page.stem for page in PAGES} >= {
        "tutorial",
        "tutorial-data",
        "mend",
        "restore",
        "migrate",
    }
