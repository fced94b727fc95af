"""`binlogd status`."""

from __future__ import annotations

import json
import sys
from math import inf
from typing import Annotated, Any

import typer

from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.running import document_at, get_status
from binlogd.errors import Unavailable
from binlogd.host.again import again_within
from binlogd.settings.setup import Setup


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it anew until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    fail_if_stuck: Annotated[
        bool,
        typer.Option("--fail-if-stuck", help="Exit code 1 where replication waits for somebody."),
    ] = False,
    config_file: ConfigOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a running binlogd: lag, watermarks, checkpoint, lanes, and what blocks it.

    --watch updates the screen until Ctrl-C, also while binlogd restarts. --watch --json prints one
    document on each line; where none answers, its `message` says why. --fail-if-stuck is for cron
    and scripts.

        binlogd status --fail-if-stuck || mail -s "replication is stuck" dba@example.com
    """
    setup = load_asking(config_file, addr)
    if watch:
        try:
            _watch_json(setup, interval) if as_json else _watch(setup, interval)
        except KeyboardInterrupt:
            return
    if as_json:
        found = document_at(setup, "/status", dict[str, Any])
        sys.stdout.write(json.dumps(found) + "\n")
        half = found.get("drainer")
        state = half.get("state") if isinstance(half, dict) else ""
    else:
        from binlogd.commands.status_screen import print_status  # JSON needs no rich

        shown = get_status(setup)
        print_status(shown)
        state = shown.drainer.state
    if fail_if_stuck and state == "stuck":
        raise typer.Exit(1)


def _watch(setup: Setup, interval_s: float) -> None:
    from binlogd.commands.status_screen import StatusScreen

    with StatusScreen() as screen:
        for _ in again_within(inf, interval_s):  # until Ctrl-C
            try:
                screen.show(get_status(setup))
            except Unavailable as error:
                screen.show(None, str(error))


def _watch_json(setup: Setup, interval_s: float) -> None:
    for _ in again_within(inf, interval_s):  # until Ctrl-C
        try:
            found = document_at(setup, "/status", dict[str, Any])
        except Unavailable as error:
            found = {"message": str(error)}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
