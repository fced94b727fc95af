"""`binlogd check-config`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from binlogd.assembly import table_filter
from binlogd.commands.options import (
    AddrOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    load_settings,
)
from binlogd.settings import Settings, flattened, shown
from binlogd.setup import Setup, server_tls

_DEFAULT = "default"


def check_config(
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Every key, not only those that are given.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read the configuration, say whether it is right, and what it comes to.

    Shows what differs from the defaults and where each value comes from: the file, a variable
    BINLOGD_..., a file of a secret, the command line. Secrets are shown as ***. With --json it is
    the whole configuration, with the origins beside it.
    """
    found = load_settings(config_file, data_dir=data_dir, addr=addr)
    setup = Setup(found.config, Path.cwd() if config_file is None else config_file.resolve().parent)
    table_filter(found.config.syncer)
    server_tls(setup)
    if as_json:
        sys.stdout.write(json.dumps(_document(found)) + "\n")
        return
    console = Console()
    console.print(
        f"{config_file or 'built-in defaults'}: right; data in {found.config.data_dir},"
        f" {found.config.pump.shards} shards, into {found.config.syncer.db_type}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None)
    for name in ("key", "value", "from"):
        table.add_column(name, overflow="fold")
    for key, value in flattened(found.config):
        if is_whole or key in found.origins:
            text = json.dumps(shown(key, value), ensure_ascii=False)
            table.add_row(key, text, found.origins.get(key, _DEFAULT))
    if table.row_count:
        console.print(table, highlight=False, markup=False, soft_wrap=True)


def _document(found: Settings) -> dict[str, Any]:
    values = {key: shown(key, value) for key, value in flattened(found.config)}
    return {"config": values, "origins": dict(found.origins)}
