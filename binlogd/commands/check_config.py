"""`binlogd check-config`."""

from __future__ import annotations

from rich.console import Console

from binlogd.commands.options import ConfigOption, load_setup


def check_config(config_file: ConfigOption = None) -> None:
    """Read the configuration and say whether it is right."""
    setup = load_setup(config_file)
    Console().print(
        f"{config_file or 'built-in defaults'}: right; data in {setup.config.data_dir},"
        f" {setup.config.pump.shards} shards, into {setup.config.syncer.db_type}",
        highlight=False,
    )
