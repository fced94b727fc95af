"""`binlogd health`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.running import asked
from binlogd.errors import NotRunning
from binlogd.host.again import again_within
from binlogd.settings.setup import Setup

ANSWER_S = 3.0
_AGAIN_S = 0.2
_OK, _NOT_READY = 200, 503


def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Unhealthy also while no prewrite is taken.")
    ] = False,
    wait_s: Annotated[
        float,
        typer.Option("--wait", max=86_400, help="Ask again for so many seconds, until it is well."),
    ] = 0.0,
    config_file: ConfigOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in one line whether a binlogd answers: exit code 0 if it does within 3 s, else 1.

    Use it as HEALTHCHECK of a container. A node is alive even if its disk is full or its
    replication is stuck: a restart would not help. With --ready it must also accept prewrites.

        binlogd health --wait 20 --config binlogd.toml
    """
    setup = load_asking(config_file, addr)
    for _ in again_within(wait_s, _AGAIN_S):
        is_well, line = _asked(setup, ready=ready)
        if is_well:
            break
    if as_json:
        line = json.dumps({"healthy": is_well, "said": line})
    sys.stdout.write(line + "\n")
    if not is_well:
        raise typer.Exit(1)


def _asked(setup: Setup, *, ready: bool) -> tuple[bool, str]:
    """Whether it is well, and what there is to say."""
    try:
        status, body = asked(setup, "GET", "/readyz", ANSWER_S)
    except NotRunning as error:
        return False, str(error)
    if status not in (_OK, _NOT_READY):
        return False, str(NotRunning("/readyz", f"an answer {status} that is none of binlogd"))
    said = body.decode(errors="replace").strip()
    return status == _OK or not ready, "ready" if status == _OK else f"alive, not ready: {said}"
