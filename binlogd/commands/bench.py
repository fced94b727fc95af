"""`binlogd bench`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.options import JsonOption
from binlogd.commands.output import say_json, say_table
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.tools.measure import Measured, Measurement, measure


def bench(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="On the disk to measure; what is made there is removed again."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=600, help="How long each stage takes.")
    ] = 2.0,
    writers: Annotated[
        int, typer.Option("--writers", min=1, max=1000, help="How many write at the same time.")
    ] = 64,
    row_bytes: Annotated[
        int,
        typer.Option(
            "--row-bytes", min=1, max=1 << 20, help="Bytes of the row that each transaction writes."
        ),
    ] = 512,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine: syncs of the disk, writes into a Pump, pulls out of it.

    Starts a binlogd of its own on loopback, in a new directory in --dir. Name a directory on the
    data disk to measure that disk. Writers and node share this machine, and the writers are in
    Python. So a rate is not the limit of the node: write_client_share says how much of the
    processor the writers took, and write_cpu what the node needs for a binlog.

        binlogd bench --dir /var/lib/binlogd --seconds 5
    """
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"--dir {directory}: is no directory")
    errors = Console(stderr=True)
    wanted = Measurement(seconds, writers, row_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="binlogd-bench-", dir=directory) as place,
        errors.status("beginning") as shown,
    ):
        found = loop.run(measure(Path(place), wanted, shown.update))
    if as_json:
        say_json({each.what: {"value": each.value, "unit": each.unit} for each in found})
    else:
        say_table(("", "", "", "what"), map(_row, found))


def _row(found: Measured) -> tuple[str, ...]:
    digits = 0 if found.value >= 100 else 2
    return found.what, f"{found.value:,.{digits}f}", found.unit, found.meaning
