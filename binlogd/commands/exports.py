"""`binlogd exports`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from binlogd.commands.export_via import setup_for, show_exports
from binlogd.commands.options import ConfigOption, JsonOption, load_setup
from binlogd.commands.output import say, say_json, say_table
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.snapshot.estimate import Exported, listing
from binlogd.snapshot.publication import stored


def exports(
    out: Annotated[
        str,
        typer.Argument(
            help="The directory or object store of `binlogd export --out`.",
            show_default="export.dir of --config; without one, here",
        ),
    ] = "",
    named: Annotated[
        str, typer.Option("--out", help="The same, as `binlogd export` names it.")
    ] = "",
    via: Annotated[
        str, typer.Option("--via", help="What the binlogd at http://host:8250 was asked for.")
    ] = "",
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the exported snapshots and changes, the newest first.

    An arrow marks the snapshot that LATEST names. `binlogd export --check OUT/NAME` verifies one.

        binlogd exports snapshots
    """
    if via:
        show_exports(setup_for(via, config_file, None), as_json=as_json)
        return
    out = named or out or (load_setup(config_file).config.export.dir if config_file else "") or "."
    if "://" in out:
        found = loop.run(stored(out))
    elif Path(out).is_dir():
        found = listing(Path(out))
    else:
        raise ConfigError(f"{out} is no directory; name the one of `binlogd export --out`")
    if as_json:
        say_json(found)
        return
    if not found.exports:
        say(f"{out}: nothing was exported there yet")
    else:
        names = ("", "export", "as of", "format", "tables", "rows", "MB", "took")
        say_table(names, map(_row, found.exports))
    if found.unfinished:
        say(
            "at work, or killed; `binlogd export --resume` goes on with one",
            f"{found.unfinished} unfinished:",
        )


def _row(each: Exported) -> tuple[str, ...]:
    if each.problem:
        return "", escape(each.name), f"[bold red]{escape(each.problem)}[/]"
    layout = f", {each.layout}" if each.layout != "plain" else ""
    shown = (
        "→" if each.is_latest else "",
        each.name,
        each.time,
        each.data_format + layout,
        str(each.tables) + (f" ({each.left_out} left out)" if each.left_out else ""),
        f"{each.rows:,}",
        f"{each.size_bytes / 1e6:.1f}",
        f"{each.seconds:.1f} s",
    )
    return tuple(map(escape, shown))
