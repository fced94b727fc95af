"""`binlogd export-changes`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from binlogd.commands.export import made, resolved_ts, waited
from binlogd.commands.export_options import SchemaHistory, Types
from binlogd.commands.options import AddrOption, ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.errors import ConfigError
from binlogd.exporting import ExportRequest
from binlogd.settings.quantities import wait_s
from binlogd.snapshot.export import ExportOptions
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import MANIFEST_NAME, ChangesOptions, moment, type_options
from binlogd.tso import Tso


def export_changes(  # noqa: PLR0913 - typer makes each parameter an option
    out: Annotated[Path, typer.Option("--out", help="Directory that holds the changes.")],
    from_: Annotated[
        str,
        typer.Option("--from", help="A TSO, an ISO 8601 time, or the directory of a snapshot."),
    ],
    to: Annotated[
        str, typer.Option("--to", help="latest, latest-5m, a TSO, or an ISO 8601 time.")
    ] = "latest",
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Every change, not only what each row came to.")
    ] = False,
    before: Annotated[
        bool, typer.Option("--before", help="With the row as it was, in a column _before.")
    ] = False,
    wait: Annotated[
        str,
        typer.Option("--wait", help="Wait up to so many seconds, or 10m, for --to to be decided."),
    ] = "",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    schema_history: SchemaHistory = None,
    types: Types = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Export the rows that changed between two commit_ts, from the log.

    Writes OUT/changes-FROM-TO: for each table the changed rows, with _op (I, U or D) and
    _commit_ts. Applied to a snapshot of FROM, they give the snapshot of TO.

        binlogd export-changes --from snapshots/LATEST --out changes
        binlogd export-changes --from 2026-01-01T00:00:00Z --all-versions --before --out changes
    """
    setup = load_setup(config_file, data_dir, addr, schema_history)
    chosen = type_options(types)
    known_ts = resolved_ts(setup)
    if wait:
        known_ts = asyncio.run(waited(setup, moment(to, "--to").ts, wait_s("--wait", wait)))
    request = ExportRequest(
        out=str(out),
        options=ExportOptions(
            as_of=to,
            resolved_ts=known_ts,
            base="none",
            types=chosen,
            changes=ChangesOptions(_from_ts(from_), all_versions, before),
        ),
    )
    made(setup, request, "changes", as_json=as_json)


def _from_ts(text: str) -> Tso:
    if (Path(text) / MANIFEST_NAME).exists():
        try:
            return Tso(read_manifest(Path(text)).commit_ts)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--from {text}: its manifest does not read: {error}") from error
    begin = moment(text, "--from")
    if not begin.ts:
        raise ConfigError(f"--from {text}: a TSO, a time or the directory of a snapshot is wanted")
    return begin.ts
