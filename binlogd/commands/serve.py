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

    SIGTERM and SIGINT stop it in good order: it applies what it has received, saves a consistent
    checkpoint, and ends within ten seconds. SIGHUP makes it read the configuration again: filters,
    workers, log level and admin token change at once; it names the keys that need a restart. kill
    -9 loses nothing that was acknowledged.

        binlogd serve --config binlogd.toml
    """

    def read() -> Setup:
        return load_setup(config_file, data_dir, addr, log_level=log_level)

    setup = read()
    if sys.stdout.isatty():  # the log alone goes to files and collectors
        sys.stdout.write(f"page: {page_address(setup)}/\n")
    raise typer.Exit(app.serve(setup, read))
