"""Every byte and every length of every kind of file: the same answer, or an error that names it.

The gate takes some places of each at an even distance; `make soak` takes every one, but of a long
run of equal bytes (`tests.support.damage`).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.damage import damages, problems
from tests.support.file_kinds import WRITERS, all_kinds

ROOT = Path(__file__).parents[3]
GATE_CASES = 12
"""Of each reader of each kind."""
SOAK_CASES = 1 << 20
_WRITES = frozenset(
    {"write_whole", "write_text", "write_bytes", "open_append", "fdopen", "put_file"}
)
_SQLITE = frozenset({"sqlite3", "aiosqlite"})


def _tried(name: str, scratch: Path, cases_max: int, record: Callable[[str, object], None]) -> None:
    found, cases = problems(all_kinds()[name], scratch, cases_max=cases_max)
    record("fault", "a byte changed, or a file cut")
    record("target", name)
    record("cases", cases)
    record("lost", len(found))
    assert found == []


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory where that can be: each case makes a directory and removes it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.mark.parametrize("name", all_kinds())
def test_no_damage_of_a_file_goes_unseen(
    name: str, scratch: Path, record_property: Callable[[str, object], None]
) -> None:
    _tried(name, scratch, GATE_CASES, record_property)


@pytest.mark.soak
@pytest.mark.parametrize("name", all_kinds())
def test_no_damage_of_any_byte_of_a_file_goes_unseen(
    name: str, scratch: Path, record_property: Callable[[str, object], None]
) -> None:
    _tried(name, scratch, SOAK_CASES, record_property)


def test_of_a_long_run_both_ends_are_tried_and_nothing_else_is_left_out() -> None:
    content = b"head" + bytes(1_000) + b"middle" + bytes(63) + b"tail"
    every = list(damages(content, cases_max=SOAK_CASES))
    places = sorted({each.at for each in every})
    run = range(4, 1_004)
    assert [at for at in range(len(content)) if at not in run] == [
        at for at in places if at not in run
    ]
    assert {*run[:16], *run[-16:]} <= set(places)
    assert 40 < len([at for at in places if at in run]) < 60
    assert len(every) == len(places) * 4


def _writes(path: Path) -> bool:
    """Whether a module calls what writes files, stores or databases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "connection_to":
            return True
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, of = node.func.attr, node.func.value
        if name in _WRITES:
            return True
        owner = ast.unparse(of)
        if (name == "connect" and owner in _SQLITE) or (name == "put" and "store" in owner):
            return True
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if name == "open" and any(isinstance(m, str) and m[:1] in "wax" and m for m in modes):
            return True
    return False


def test_whatever_writes_a_file_says_which_kind_it_is() -> None:
    """So that a new kind of file gets its readers here, or the reason why it needs none."""
    writing = {
        str(path.relative_to(ROOT / "binlogd"))
        for path in (ROOT / "binlogd").rglob("*.py")
        if "generated" not in path.parts and _writes(path)
    }
    assert writing == WRITERS.keys()
    for kinds in WRITERS.values():
        assert kinds, "a kind, or a reason"
        for each in kinds:
            assert each in all_kinds() or each.startswith("none: "), each
