"""The bugs that are planted on purpose: `bugs/*.toml`, one table a bug.

`old` is what stands in `file`, exactly once, and `new` is put in its place. `tests` are node ids of
pytest without parameters or with them, the cheapest first: each ought to find the bug. `seeds` is
the range of the simulation that is searched, "" where the simulation has no part with the bug.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

BUGS = Path(__file__).parent / "bugs"
_SEEDS = re.compile(r"(\d+)-(\d+)|")


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One bug. `what` says what would be lost or wrong; `invariant` which promise it breaks."""

    name: str
    what: str
    invariant: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    seeds: str = ""

    @property
    def digest(self) -> str:
        """Of what is changed where: a result counts for as long as this stays."""
        return sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def planted(self, text: str) -> str:
        """The file with the bug in it. Raises ValueError where `old` does not stand there once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"its text stands {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


class _Listed(msgspec.Struct, forbid_unknown_fields=True):
    bug: list[Bug]


def load(folder: Path = BUGS) -> list[Bug]:
    """All of them, file by file. Raises msgspec.DecodeError, or ValueError for a name that is used
    twice."""
    bugs = [
        bug
        for path in sorted(folder.glob("*.toml"))
        for bug in msgspec.toml.decode(path.read_bytes(), type=_Listed).bug
    ]
    names = [bug.name for bug in bugs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"several bugs are called {', '.join(sorted(twice))}")
    return bugs


def faults_of(bug: Bug, root: Path) -> Iterator[str]:
    """What is wrong with a bug itself, held against the sources and tests below `root`."""
    try:
        planted = bug.planted((root / bug.file).read_text())
        compile(planted, bug.file, "exec")
    except (OSError, ValueError, SyntaxError) as error:
        yield f"{bug.name}: {error}"
    if bug.old == bug.new:
        yield f"{bug.name}: it changes nothing"
    if not bug.tests:
        yield f"{bug.name}: no test is named"
    if _SEEDS.fullmatch(bug.seeds) is None:
        yield f"{bug.name}: {bug.seeds!r} is no range of seeds"
    for node_id in bug.tests:
        path, _, name = node_id.partition("::")
        if name.partition("[")[0] not in tests_in(root / path):
            yield f"{bug.name}: there is no test {node_id}"


def tests_in(path: Path) -> set[str]:
    """Names of the tests in a file, none where it is not there."""
    if not path.is_file():
        return set()
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
