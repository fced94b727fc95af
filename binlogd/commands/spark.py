"""`binlogd spark warmup`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.options import JsonOption
from binlogd.commands.output import say, say_json
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.snapshot.process.preflight import warm_up

WARMUP = "warmup"


def spark(
    action: Annotated[str, typer.Argument(help=WARMUP)],
    anew: Annotated[
        bool, typer.Option("--anew", help="Make it anew, also where there is one.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check whether exports can run here, and make Spark's class archive, so that they start
    faster.

    The archive (about 170 MB below $XDG_CACHE_HOME or ~/.cache) is valid for one build of Java and
    one PySpark; run this again after an update of either. Exports work without it, and start
    slower. Making it takes up to a minute. You may delete it at any time.

        binlogd spark warmup
    """
    if action != WARMUP:
        raise ConfigError(f"binlogd spark {action}: there is only {WARMUP}")
    console = Console(stderr=True)
    with console.status("starting Spark once, at low priority"):
        archive = loop.run(warm_up(anew=anew))
    if as_json:
        say_json(archive)
        return
    verb = "made" if archive.is_new else "there already"
    say(
        f"{archive.path}: {verb}, {archive.size_bytes / 1e6:.0f} MB, for PySpark {archive.pyspark}"
        f" and {archive.java}"
    )
