"""`binlogd health`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.running import asked
from binlogd.errors import NotRunning

ANSWER_S = 3.0
_OK = 200


def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Unhealthy also while no prewrite is taken.")
    ] = False,
    config_file: ConfigOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in one line whether a binlogd answers: exit code 0 if it does within 3 s, else 1.

    Made for a container's HEALTHCHECK. A node that has no room on its disk, or whose replication is
    stuck, is alive: a restart would not help it. With --ready it has to take prewrites, too.
    """
    setup = load_asking(config_file, addr)
    try:
        status, body = asked(setup, "GET", "/readyz", ANSWER_S)
        said = body.decode(errors="replace").strip()
        is_well = status == _OK or not ready
        line = "ready" if status == _OK else f"alive, not ready: {said}"
    except NotRunning as error:
        is_well, line = False, str(error)
    if as_json:
        line = json.dumps({"healthy": is_well, "said": line})
    sys.stdout.write(line + "\n")
    if not is_well:
        raise typer.Exit(1)
