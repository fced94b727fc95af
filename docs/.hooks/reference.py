"""What the site shows and no file holds: keys from config/binlogd.toml, commands from typer.

Called by mkdocs (`hooks` in mkdocs.yml). Decisions, and pages that the navigation does not name,
are added to it, so that a new one can be found without being entered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from binlogd.cli import command_line

ROOT = Path(__file__).parents[2]
_KEY = re.compile(r"^(?:# )?([\w.-]+) = (.+?)(?:\s+# ?(.*))?$")
_HEADING = re.compile(r"^# --- (.+) ---$")
_PAGE = re.compile(r"\(docs/([\w/-]+\.md)\)")
_TABLE = re.compile(r"^\[([\w.-]+)\](?:\s+# ?(.*))?$")
_MORE = re.compile(r"^\s+# ?(.*)$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Completes the navigation: the last two sections are reference and explanation."""
    reference, explanation = (next(iter(section.values())) for section in config.nav[-2:])
    named = (ROOT / "mkdocs.yml").read_text()
    reference += [page.name for page in _pages("docs") if page.name not in named]
    pages = [f"decisions/{page.name}" for page in _pages("docs/decisions")]
    explanation.append({"Decisions": sorted(pages, key=lambda name: "README" not in name)})
    return config


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Keeps decisions out of the search: who looks for a key wants to set it."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    return markdown


def _pages(directory: str) -> list[Path]:
    return sorted((ROOT / directory).glob("*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    files.append(File.generated(config, "reference/config.md", content=config_page()))
    files.append(File.generated(config, "reference/cli.md", content=cli_page()))
    return files


# --- keys ---------------------------------------------------------------------------------


def config_page() -> str:
    """Every key with its default and meaning, table by table."""
    lines = (ROOT / "config" / "binlogd.toml").read_text().splitlines()
    out = [
        "# Configuration",
        "",
        "This page is made of `config/binlogd.toml`. Your file needs only the keys that you change."
        " `binlogd check-config` tells whether a file is right. An unknown key is refused, and the"
        " nearest name is told. Most installations set the ten keys that are marked with ★.",
        "",
        "A relative path counts from the directory of the file. A size is a number of bytes, or"
        ' text such as "512 MiB". A duration is text such as "90s" or "8h"; a plain number is in'
        " the unit that the table names.",
        "",
        "Each key has a variable. The variable of `syncer.to.password` is"
        " `BINLOGD_SYNCER__TO__PASSWORD`. With `_FILE` at its end, it names a file that holds the"
        " value. Variables win over the file, and the command line wins over both.",
        "",
    ]
    is_open = False
    for line in _joined(lines):
        if table := _TABLE.match(line):
            out += ["", f"## `[{table[1]}]`", "", _linked(table[2] or ""), ""]
            is_open = False
        elif heading := _HEADING.match(line):
            out += ["", f"## {heading[1]}", ""]
            is_open = False
        elif key := _KEY.match(line):
            if not is_open:
                out += ["| key | default | |", "|---|---|---|"]
                is_open = True
            out.append(f"| `{key[1]}` | `{_escaped(key[2])}` | {_linked(key[3] or '')} |")
    return "\n".join(out) + "\n"


def _linked(text: str) -> str:
    """A comment with the pages that it names as links, by their titles."""

    def link(page: re.Match[str]) -> str:
        title = (ROOT / "docs" / page[1]).read_text().partition("\n")[0].removeprefix("# ")
        return f"([{title}](../{page[1]}))"

    return _PAGE.sub(link, _escaped(text))


def _joined(lines: list[str]) -> Iterator[str]:
    """Lines with the comments that go on below them."""
    last = ""
    for line in lines:
        if last and (more := _MORE.match(line)):
            last += f" {more[1]}"
            continue
        if last:
            yield last
        last = line
    yield last


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- commands -----------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(command_line())
    out = [
        "# Commands",
        "",
        str(group.help),
        "",
        "`binlogd --install-completion` sets up completion for the shell."
        " [Exit codes](exit-codes.md) are the same for all.",
        "",
    ]
    for name, command in group.commands.items():
        out += _command(name, command)
    return "\n".join(out) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield from ("", f"## binlogd {name}", "", _prose(command.help or ""), "")
        for below, each in command.commands.items():
            yield from _command(f"{name} {below}", each)
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = "".join(f" {_argument(each)}" for each in arguments)
    yield from ("", f"## binlogd {name}", "", f"    binlogd {name} [OPTIONS]{words}", "")
    yield from (_prose(command.help or ""), "")
    if arguments or options:
        yield from ("| option | default | |", "|---|---|---|")
    for each in arguments:
        yield f"| `{_argument(each)}` | | {_escaped(each.help or '')} |"
    for each in options:
        spelled = ", ".join(f"`{word}`" for word in each.opts)
        is_shown = each.default not in (None, False, "", ()) and not callable(each.default)
        default = "required" if each.required else f"`{each.default}`" if is_shown else ""
        yield f"| {spelled} | {default} | {_escaped(each.help or '')} |"


def _prose(text: str) -> str:
    return text.replace("\f", "").replace("\b", "")


def _argument(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper().strip("{}[]. ")
    return name if argument.required else f"[{name}]"
