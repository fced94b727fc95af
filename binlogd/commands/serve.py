"""`binlogd serve`."""

from __future__ import annotations

import sys

import typer

from binlogd import app
from binlogd.commands.manner import LogLevelOption
from binlogd.commands.options import AddrOption, ConfigOption, DataDirOption, load_setup
from binlogd.commands.running import page_address
from binlogd.settings.setup import Setup


def serve(
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run the appliance: receive binlogs and replicate them, until SIGTERM.

    SIGTERM and SIGINT finish what has been received, save a consistent checkpoint and end within
    ten seconds. SIGHUP reads the configuration again: filters, workers, log level and admin token
    change at once, the rest is named and waits for a restart. Nothing that was acknowledged is lost
    by kill -9.

        binlogd serve --config binlogd.toml
    """

    def read() -> Setup:
        return load_setup(config_file, data_dir, addr, log_level=log_level)

    setup = read()
    if sys.stdout.isatty():  # the log alone goes to files and collectors
        sys.stdout.write(f"page: {page_address(setup)}/\n")
    raise typer.Exit(app.serve(setup, read))
