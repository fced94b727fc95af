"""Options that several commands share, and the configuration that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from binlogd import config
from binlogd.assembly import Setup

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="TOML file; without it the built-in defaults hold."),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", help="Overrides data-dir of the configuration.")
]
AddrOption = Annotated[
    str | None, typer.Option("--addr", help="host:port; overrides addr of the configuration.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: one JSON document.")]


def load_setup(
    path: Path | None,
    data_dir: str | None = None,
    addr: str | None = None,
    schema_history: str | None = None,
) -> Setup:
    """The configuration of a file, or the defaults, with what the command line says on top.

    Raises ConfigError.
    """
    loaded = config.Config() if path is None else config.load(path)
    if schema_history is not None:
        upstream = msgspec.structs.replace(loaded.upstream, schema_history=schema_history)
        loaded = msgspec.structs.replace(loaded, upstream=upstream)
    changes = {
        key: value for key, value in (("data_dir", data_dir), ("addr", addr)) if value is not None
    }
    loaded = msgspec.structs.replace(loaded, **changes)
    config.listen_address(loaded.addr)
    return Setup(loaded, Path.cwd() if path is None else path.resolve().parent)
