"""What messages and pages advise to type is there to be typed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from binlogd.cli import command_line
from binlogd.tso import MAX_TS

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")]
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OF_OTHERS = {
    *("--class", "--classdata", "--ignore"),  # ionice
    *("--consistency", "--params", "--statement-size"),  # Dumpling
    *("--conf", "--py-files", "--prefix"),  # spark-submit, etcdctl
}


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """By command."""
    program: Any = typer.main.get_command(command_line())
    return {
        name: {"--help", *(word for each in command.params for word in each.opts)}
        for name, command in program.commands.items()
    }


@pytest.fixture(scope="module")
def messages() -> list[tuple[str, str]]:
    """Every text of the program, with its module."""
    return [
        (path.name, text)
        for path in (ROOT / "binlogd").rglob("*.py")
        for text in texts(path.read_text())
    ]


def texts(source: str) -> Iterator[str]:
    """A value that stands in a text is a word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else "VALUE"
                for each in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_option_that_a_message_names_is_one_of_a_command(
    options: dict[str, set[str]], messages: list[tuple[str, str]]
) -> None:
    known = set.union(*options.values()) | OF_OTHERS | {"--version"}
    named = {(place, word) for place, text in messages for word in OPTION.findall(text)}
    assert {each for each in named if each[1] not in known} == set()
    assert len(named) > 100


@pytest.fixture(scope="module")
def lines(messages: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """What somebody may type of a page or a message: where it stands, the command, the rest."""
    pages = [(path.name, path.read_text().replace("\\\n", " ")) for path in PAGES]
    return [
        (place, name, rest)
        for place, text in [*pages, *messages]
        for name, rest in re.findall(r"binlogd ([a-z][a-z-]+)((?: [^\n`|;#&)]*)?)", text)
    ]


def test_every_command_line_of_a_page_or_a_message_is_understood(
    options: dict[str, set[str]], lines: list[tuple[str, str, str]]
) -> None:
    wrong = {
        (place, name, word)
        for place, name, rest in lines
        for word in OPTION.findall(rest)
        if name in options and word not in options[name]
    }
    assert wrong == set()


def test_every_number_that_a_page_or_a_message_gives_an_option_is_one_that_it_takes(
    lines: list[tuple[str, str, str]],
) -> None:
    given = [
        (f"{name} {word}", int(number))
        for _, name, rest in lines
        for word, number in re.findall(r"(--[a-z][a-z-]*)[ =](-?\d+)(?![\w.:-])", rest)
    ]
    ranges = whole_numbers()
    taken = [each for each in given if each[0] in ranges]
    assert ("pipeline --batch", 0) in taken
    assert [
        (word, number)
        for word, number in taken
        if not ranges[word].min <= number <= ranges[word].max
    ] == []


def test_every_event_of_the_log_that_is_explained_is_one_that_is_written(
    messages: list[tuple[str, str]],
) -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    _, _, table = page.partition("| event | meaning |\n")
    rows = re.findall(r"^\|([^|]*)\|", table.partition("\n\n")[0], re.MULTILINE)
    events = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(events) > 5
    assert events - {text for _, text in messages} == set()


def whole_numbers() -> dict[str, Any]:
    """The types of those that commands take, by command and option."""
    program: Any = typer.main.get_command(command_line())
    return {
        f"{name} {each.opts[0]}": each.type
        for name, command in program.commands.items()
        for each in command.params
        if isinstance(each.type.name, str) and each.type.name.startswith("int")
    }


def test_a_number_that_nobody_means_is_refused_before_anything_is_done() -> None:
    ranges = whole_numbers()
    assert ranges["txn ts"].max == MAX_TS
    bounds: dict[str, list[Any]] = {
        word: [getattr(kind, side, None) for side in ("min", "max")]
        for word, kind in ranges.items()
    }
    assert [word for word, sides in bounds.items() if None in sides or max(sides) > MAX_TS] == []
