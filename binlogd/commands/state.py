"""`binlogd state`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status as Spinner

from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.output import say_reply
from binlogd.commands.running import get_status, put
from binlogd.errors import ConfigError, NotRunning, Unavailable
from binlogd.host import loop
from binlogd.log.directory import STORE_FILE
from binlogd.settings.setup import Setup
from binlogd.status import Status

_ACTIONS = ("pause", "close", "resume")
_POLL_S = 0.3
_ENDED = {
    "pause": "the node has ended, as it was asked to; `binlogd serve` starts it again",
    "close": "the node has ended; where somebody still needs it, it is paused and its log says who",
}
_SETTLED = {"pause": "paused", "close": "offline", "resume": "online"}


def state(
    action: Annotated[str, typer.Argument(help="pause, close or resume.")],
    drainer: Annotated[
        bool, typer.Option("--drainer", help="The replicating half alone; the Pump goes on.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, max=86_400, help="Seconds to wait for it, saying for what."),
    ] = 0.0,
    config_file: ConfigOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause or close a running node, or pause, close and resume its replication.

    pause stops the process in good order, so that you can start it again later. close removes the
    node for good: it first waits until every transaction has an outcome and every Drainer has read
    everything. --drainer pauses, closes or resumes the replication alone; the node continues to
    receive binlogs. resume needs --drainer.

        binlogd state pause --drainer --wait 60
        binlogd state resume --drainer
    """
    if action not in _ACTIONS or (action == "resume" and not drainer):
        raise ConfigError(
            f'"{action}": expected {", ".join(_ACTIONS)}'
            if action not in _ACTIONS
            else "a Pump that has ended is started with `binlogd serve`; resume goes with --drainer"
        )
    setup = load_asking(config_file, addr)
    before = get_status(setup)
    node_id = before.drainer.node_id if drainer else before.node_id
    if not node_id:
        raise ConfigError("there is no drainer in this node: it has not that role")
    answer = put(setup, f"/state/{node_id}/{action}")
    if answer["code"] == HTTPStatus.OK and wait:
        # SQLite has this file as long as the node has its database open
        wal = setup.data_dir / f"{STORE_FILE}-wal"
        is_open = wal.exists if config_file and not addr else bool
        answer["message"] = loop.run(wait_for(setup, action, is_open, drainer=drainer, wait_s=wait))
    say_reply(answer, as_json=as_json)


async def wait_for(
    setup: Setup, action: str, is_open: Callable[[], bool], *, drainer: bool, wait_s: float
) -> str:
    """Until the half is what it was asked to be; `is_open` tells whether a node that answers no
    more still has its files. Raises Unavailable when that takes too long."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + wait_s
    reason = ""
    with Console(stderr=True).status("waiting") as spinner:
        while clock() < until_s:
            try:
                now = get_status(setup)
            except NotRunning:
                if not is_open():
                    return f"{_ENDED[action]}{f'; {reason}' if reason else ''}"
                await asyncio.sleep(_POLL_S)
                continue
            if drainer and now.drainer.node_state == _SETTLED[action]:
                return f"the drainer is {_SETTLED[action]}"
            reason = _show(spinner, now)
            await asyncio.sleep(_POLL_S)
    raise Unavailable(f"not done after {wait_s:g} s: {reason or 'see `binlogd status`'}")


def _show(spinner: Spinner, now: Status) -> str:
    reason = now.close_waits_for or now.drainer.blocking
    spinner.update(f"{now.state}: {escape(reason)}" if reason else now.state)
    return f"it last waited for: {reason}" if reason else ""
