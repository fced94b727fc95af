"""The documentation builds without a warning, is whole, and loads nothing from elsewhere."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from binlogd.cli import command_line
from binlogd.settings.config import Config
from binlogd.status import Status
from tests.support.browser import Browser

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]*?\s(?:src|href)=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` makes: strict, so that dead links, anchors and pages outside the
    navigation end it."""
    place = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (made.returncode, made.stdout + made.stderr) == (0, "")
    return place


def test_nothing_is_loaded_from_elsewhere_and_all_that_is_loaded_is_there(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for target in LOADED.findall(page.read_text()):
            if target.startswith("data:"):
                continue
            assert "//" not in target, f"{page.name}: {target}"
            if page.name != "404.html":  # its links count from the root of a server
                assert (page.parent / target.split("?")[0]).exists(), f"{page.name}: {target}"


def test_the_search_finds_things_in_pages_on_a_disk(site: Path, browser: Browser) -> None:
    browser.driver.get((site / "howto" / "tidb.html").as_uri())
    browser.one("input.md-search__input").send_keys("BINLOGD_SYNCER__TO__PASSWORD")
    found = "a.md-search-result__link[href*='/reference/config.html']"
    browser.wait(lambda: browser.all(found))
    browser.driver.get(str(browser.one(found).get_attribute("href")))
    assert "BINLOGD_SYNCER__TO__PASSWORD" in browser.text("article")
    assert browser.complaints() == []


def test_every_key_is_in_the_reference(site: Path) -> None:
    page = html.unescape((site / "reference" / "config.html").read_text())
    for key in _keys(Config):
        assert re.search(rf"<code>([\w.-]+\.)?{key}</code></td>|{key}]</code>", page), key
    assert "(docs/" not in page, "a page that a comment names is a link"


def _keys(table: type[msgspec.Struct]) -> set[str]:
    found: set[str] = set()
    for field in msgspec.structs.fields(table):
        is_table = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        found |= _keys(field.type) if is_table else {field.encode_name}
    return found


NO_KEYS = {"upstream.db", "pump.toml"}


def test_every_key_that_a_page_names_is_one() -> None:
    """Or a field of the status, which has tables of the same names."""
    keys = _paths(Config) | _paths(Status) | NO_KEYS
    tables = "|".join({key.split(".")[0] for key in _paths(Config) if "." in key})
    named = re.compile(rf"`\[*((?:{tables})\.[a-z][\w.-]*)\]*(?: = [^`]*)?`")
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if page.parent.name != "decisions":  # which say what was
            unknown = set(named.findall(page.read_text())) - keys
            assert not unknown, page.relative_to(ROOT)


def _paths(table: type[msgspec.Struct], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field in msgspec.structs.fields(table):
        found.add(prefix + field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found |= _paths(field.type, f"{prefix}{field.encode_name}.")
    return found


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    page = html.unescape((site / "reference" / "cli.html").read_text())
    for name, command in _commands("", typer.main.get_command(command_line())):
        assert re.search(rf"<h2[^>]*>binlogd {name}<", page), name
        for option in command.params:
            if option.param_type_name == "option":
                assert f"<code>{option.opts[0]}</code>" in page, f"{name} {option.opts[0]}"


def _commands(prefix: str, group: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        found += _commands(f"{prefix}{name} ", command) if is_group else [(prefix + name, command)]
    return found


PROSE = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs" / "howto").glob("*.md"),
]
WORDS = re.compile(
    r"(?:^    |^\$ |`|&& |exec )(?:\.venv/bin/)?binlogd (?=[a-z-])([^`\n#>|&;]*)", re.MULTILINE
)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_and_has_the_options(page: Path) -> None:
    known = dict(_commands("", typer.main.get_command(command_line())))
    for line in WORDS.findall(page.read_text()):
        words = line.split()
        assert words[0] in known, f"binlogd {line}"
        options = {option for each in known[words[0]].params for option in each.opts}
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= options | {"--help"}, f"binlogd {line}"


def test_every_figure_of_the_first_page_is_among_the_figures() -> None:
    first, figures = ((ROOT / each).read_text() for each in ("README.md", "docs/PERFORMANCE.md"))
    shown = re.findall(r"│ [^│]+│ ([^│]+?) +│", first)
    shown += re.findall(r"[\d.]+ to [\d.]+(?= (?:of a|times))", first)
    assert len(shown) > 10
    assert [each for each in shown if each not in figures] == []


def test_the_links_of_the_first_page_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert len(targets) > 15
    assert [each for each in targets if not (ROOT / each).exists()] == []
