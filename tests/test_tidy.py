"""The repository checks itself: sizes, docstrings, no helpers' corner, no foreign words."""

from __future__ import annotations

import ast
import re
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
PRODUCT_LINES_MAX = 85_752
ROOMS_MAX = 50
FUNCTIONS_MAX = 5_589
"""A ratchet: whoever removes something lowers them; whoever adds says in the commit what pays."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_module_is_small_and_so_are_its_functions(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_the_product_does_not_grow_unnoticed() -> None:
    texts = [path.read_text() for path in SOURCES]
    functions = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for text in texts
        for node in ast.walk(ast.parse(text))
    )
    assert sum(len(text.splitlines()) for text in texts) <= PRODUCT_LINES_MAX
    assert len({path.parent for path in SOURCES}) <= ROOMS_MAX
    assert functions <= FUNCTIONS_MAX


def test_the_name_of_a_public_class_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(_name(path))
    assert {name: there for name, there in places.items() if len(there) > 1} == {}


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_module_says_what_it_is_and_swallows_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if path.name != "__init__.py":
        assert ast.get_docstring(tree), "a module says what it is"
    swallowed = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and all(isinstance(child, ast.Pass | ast.Continue) for child in node.body)
    ]
    assert swallowed == []


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
