"""Options that several commands share, and the configuration that they lead to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from binlogd.settings import sources
from binlogd.settings.setup import Setup
from binlogd.settings.sources import Settings

COUNT_MAX = (1 << 31) - 1
"""Of what is counted on the command line: more than anybody means."""
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar=sources.CONFIG_VARIABLE,
        help="TOML file; without it the defaults hold. Variables BINLOGD_… override either.",
    ),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", help="Overrides data-dir of the configuration.")
]
AddrOption = Annotated[
    str | None, typer.Option("--addr", help="host:port; overrides addr of the configuration.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: one JSON document.")]


def load_settings(path: Path | None, **words: str | None) -> Settings:
    """The configuration of a file, or the defaults, with what the environment says on top, and then
    the command line: `words` by key, with `_` for `-`.

    Raises ConfigError.
    """
    given = {key.replace("_", "-"): word for key, word in words.items() if word is not None}
    return sources.read(path, os.environ, given)


def load_setup(
    path: Path | None,
    data_dir: str | None = None,
    addr: str | None = None,
    schema_history: str | None = None,
    log_level: str | None = None,
) -> Setup:
    """The configuration with what the command line says. Raises ConfigError."""
    given = {"data_dir": data_dir, "addr": addr, "upstream.schema_history": schema_history}
    settings = load_settings(path, **given, log_level=log_level)
    return Setup(settings.config, is_elsewhere=addr is not None)


def load_asking(path: Path | None, addr: str | None, data_dir: str | None = None) -> Setup:
    """For a command that asks a running node: by the unix socket of the configuration, unless the
    command line names an address. Raises ConfigError."""
    setup = load_setup(path, data_dir, addr)
    if addr is None:
        return setup
    return replace(setup, config=msgspec.structs.replace(setup.config, binlog_socket=""))
