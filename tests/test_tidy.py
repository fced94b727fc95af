"""The repository checks itself: sizes, docstrings, no helpers' corner, no foreign words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for path in sorted((ROOT / "binlogd").rglob("*.py"))
    if "generated" not in path.relative_to(ROOT).parts
]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
PRODUCT_LINES_MAX = 90_009
ROOMS_MAX = 50
FUNCTIONS_MAX = 5_835
WALK_LINES_MAX = 5_000
"""A ratchet: whoever removes something lowers them; whoever adds says in the commit what pays."""
OWN_BYTES = {
    "binlogd/drainer/files/log.py": "records of a file sink",
    "binlogd/drainer/messages/secondary.py": "doubles of the original's protobuf",
    "binlogd/drainer/messages/secondary_write.py": "doubles of the original's protobuf",
    "binlogd/relay/frame.py": "frames of a relay log",
    "binlogd/snapshot/process/gateway.py": "where a JVM listens",
    "binlogd/tools/row_index.py": "frames of a row index",
}
"""Who takes bytes apart outside the rooms that are there for it, and which."""
ROW_BYTES = {
    "binlogd/drainer/messages/pb.py": "values of a file sink are written as in rows",
    "binlogd/snapshot/log/datums.py": "a step of all rows at once, in numpy",
    "binlogd/snapshot/log/row_changes.py": "as datums.py",
    "binlogd/snapshot/log/rowkey.py": "as datums.py",
    "binlogd/snapshot/writing/row_arrays.py": "as datums.py",
}
"""Who knows the flags of a row's values outside tidb/ (decisions/0119-copies-that-stay-two.md)."""
RECORD_BYTES = {"binlogd/spark/archived_rows.py": "ends of all records at once, in numpy"}
"""Who counts the head of a record outside log/ and the Pump, to say where the next one begins."""
pytestmark = pytest.mark.xdist_group("tidy")  # one process parses the sources


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Module:
    """What is asked of a source; functions with their lines."""

    lines: int
    is_told: bool
    functions: list[tuple[str, int]]
    classes: list[str]
    imports: set[str]
    swallowed: list[int]


@cache
def modules() -> dict[Path, Module]:
    """Each source is parsed once for all tests."""
    return {path: _module(path.read_text()) for path in SOURCES}


def _module(text: str) -> Module:
    tree = ast.parse(text)
    every = list(_statements(tree))
    return Module(
        lines=len(text.splitlines()),
        is_told=bool(ast.get_docstring(tree)),
        functions=[
            (node.name, (node.end_lineno or 0) - node.lineno + 1)
            for node in every
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ],
        classes=[node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        imports={
            f"{node.module}.{each.name}" if isinstance(node, ast.ImportFrom) else each.name
            for node in every
            if isinstance(node, ast.Import | ast.ImportFrom)
            for each in node.names
        },
        swallowed=[
            node.lineno
            for node in every
            if isinstance(node, ast.ExceptHandler)
            and all(isinstance(child, ast.Pass | ast.Continue) for child in node.body)
        ],
    )


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below it, and no expressions: those are most of a tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from _statements(child)


def test_a_module_is_small_and_so_are_its_functions() -> None:
    sizes = {_name(path): module.lines for path, module in modules().items()}
    assert {name: lines for name, lines in sizes.items() if lines > MODULE_LINES_MAX} == {}
    long = [
        f"{_name(path)}: {name} ({lines} lines)"
        for path, module in modules().items()
        for name, lines in module.functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_the_product_does_not_grow_unnoticed() -> None:
    assert sum(module.lines for module in modules().values()) <= PRODUCT_LINES_MAX
    assert len({path.parent for path in SOURCES}) <= ROOMS_MAX
    assert sum(len(module.functions) for module in modules().values()) <= FUNCTIONS_MAX


def test_the_straight_walk_does_not_get_longer() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    steps = page.split("## The straight walk")[1].split("\n\nRead ")[0]
    walk = {ROOT / "binlogd" / name for name in re.findall(r"`([a-z_0-9/]+\.py)`", steps)}
    assert walk <= modules().keys()
    assert sum(modules()[path].lines for path in walk) <= WALK_LINES_MAX


def test_bytes_are_taken_apart_where_their_format_is() -> None:
    def outside(rooms: set[str], imported: str) -> set[str]:
        return {
            _name(path)
            for path, module in modules().items()
            if path.relative_to(ROOT / "binlogd").parts[0] not in rooms
            and any(re.fullmatch(imported, each) for each in module.imports)
        }

    assert outside({"log", "tidb", "grpc"}, r"struct(\.\w+)?") == OWN_BYTES.keys()
    assert outside({"tidb"}, r"binlogd\.tidb\.datum\.([A-Z_]+|Flag)") == ROW_BYTES.keys()
    assert outside({"log", "pump"}, r"binlogd\.log\.record(\.[A-Z]+_BYTES)?") == RECORD_BYTES.keys()


def test_the_name_of_a_public_class_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path, module in modules().items():
        for name in module.classes:
            if not name.startswith("_"):
                places.setdefault(name, []).append(_name(path))
    assert {name: there for name, there in places.items() if len(there) > 1} == {}


def test_a_module_says_what_it_is_and_swallows_nothing() -> None:
    silent = [path for path, module in modules().items() if not module.is_told]
    assert [_name(path) for path in silent if path.name != "__init__.py"] == []
    swallowed = {_name(path): module.swallowed for path, module in modules().items()}
    assert {name: lines for name, lines in swallowed.items() if lines} == {}


def test_every_test_that_the_documents_name_is_there() -> None:
    there = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {
        f"{page.relative_to(ROOT)}: {name}": name
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`(test_\w+\.py::\w+)`", page.read_text())
    }
    assert len(named) > 150
    assert [where for where, name in named.items() if name not in there] == []


def test_every_decision_stands_once_among_its_topics() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    heads = {page.name: page.read_text().split("\n", 1)[0] for page in pages}
    listed = re.findall(
        r"^- \[(.*?)\]\((.*?)\)", (ROOT / "docs/decisions/README.md").read_text(), re.M
    )
    assert sorted(name for _, name in listed) == sorted(heads)
    assert {name: f"# {title}" for title, name in listed} == heads


@pytest.mark.parametrize("name", ["pump.md", "drainer.md"])
def test_every_log_line_that_a_page_translates_is_written(name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text()
    lines = page.split("## Log lines")[1].split("##")[0].splitlines()
    ours = [name for line in lines for name in re.findall(r"`([a-z_]+)`", line.split("|")[-2:][0])]
    written = "".join(path.read_text() for path in SOURCES)
    assert len(ours) > 10
    assert [name for name in ours if f'"{name}"' not in written] == []


def test_nothing_is_called_utils() -> None:
    corners = {"utils", "util", "helpers", "common", "misc", "base"}
    assert [_name(path) for path in SOURCES if path.stem in corners] == []


def test_every_ignored_rule_names_its_code() -> None:
    bare = [
        f"{_name(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ("# noqa" in line and "# noqa: " not in line)
        or ("# type: ignore" in line and "# type: ignore[" not in line)
    ]
    assert bare == []


def test_the_page_of_symptoms_has_each_alert_and_the_words_that_are_written() -> None:
    """Who looks for a message finds it; who changes one, or adds an alert, changes the page."""
    rows = (ROOT / "docs" / "howto" / "symptoms.md").read_text()
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "deploy" / "alerts.yml").read_text()))
    assert set(re.findall(r"`(Binlogd[A-Z]\w+)`", rows)) == alerts
    written = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in SOURCES)
    written = re.sub(r"\{[^{}\n]*\}", "…", written.replace("[/]", ""))
    shown = [
        each
        for row in re.findall(r"^\| ([^|]+) \|", rows, re.MULTILINE)
        for each in re.findall("`([^`]+)`", row)
    ]
    unsaid = [
        each
        for each in shown
        if each not in alerts and not re.search(re.escape(each).replace("…", ".+"), written)
    ]
    assert unsaid == []


def test_a_reader_is_led_to_every_page() -> None:
    """From README or the index; the site itself holds its navigation to be whole."""
    first, index = (ROOT / each for each in ("README.md", "docs/index.md"))
    led_to = {
        (page.parent / target).resolve()
        for page in (first, index)
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text())
    }
    pages = (
        page for room in ("howto", "reference") for page in (ROOT / "docs" / room).glob("*.md")
    )
    assert [_name(page) for page in pages if page not in led_to] == []


def test_the_oldest_of_a_dict_is_not_looked_for_at_its_front() -> None:
    """What was deleted there is passed over one by one: 14 us with 32,768 keys, where an
    OrderedDict takes 0.3."""
    front = re.compile(r"\[next\(iter\(|\.pop\(next\(iter\(")
    assert [_name(path) for path in SOURCES if front.search(path.read_text())] == []
