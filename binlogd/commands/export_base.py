"""`binlogd base`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from rich.markup import escape

from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_table
from binlogd.errors import ConfigError
from binlogd.host.disk import PosixDisk
from binlogd.offline_commands import check_has_run
from binlogd.pump.bases import Bases
from binlogd.pump.log.gc import Hold
from binlogd.tso import MAX_TS, Tso


def base(
    name: Annotated[str | None, typer.Argument(help="The base; without it all are listed.")] = None,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", min=1, max=MAX_TS, help="Declare it: keep what is behind this commit_ts."
        ),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Nobody needs it any more.")] = False,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List, declare or withdraw export bases: snapshots that a later export builds on.

    binlogd keeps every binlog after the commit_ts of a declared base until you withdraw the base. A
    running binlogd sees the change within seconds.

        binlogd base nightly --at 445644800000000001
        binlogd base nightly --withdraw
    """
    if (at is not None or withdraw) and name is None:
        raise ConfigError("binlogd base: name the base to declare or withdraw")
    if at is not None and withdraw:
        raise ConfigError("binlogd base: --at goes without --withdraw")
    setup = load_setup(config_file, data_dir)
    check_has_run(setup)
    with closing(PosixDisk(threads=1)) as disk:
        bases = Bases(setup.data_dir, disk)
        holds = asyncio.run(_changed(bases, name, at, withdraw=withdraw))
    if as_json:
        typer.echo(json.dumps({hold.name: hold.ts for hold in holds}))
    elif not holds:
        say(f"no export base is declared in {setup.data_dir}")
    else:
        rows = ((escape(hold.name), str(hold.ts)) for hold in holds)
        say_table(("base", "keeps what is behind"), rows)


async def _changed(
    bases: Bases, name: str | None, at: int | None, *, withdraw: bool
) -> Sequence[Hold]:
    if name is not None and at is not None:
        await bases.declare(name, Tso(at))
    elif name is not None and withdraw and not await bases.withdraw(name):
        raise ConfigError(f'no export base is called "{name}"; `binlogd base` lists them')
    return [hold for hold in await bases.declared() if name is None or hold.name == name]
