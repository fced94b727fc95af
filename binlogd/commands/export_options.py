"""The options of `binlogd export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from binlogd.commands.options import COUNT_MAX
from binlogd.snapshot.spec import FORMATS, Layout

Out = Annotated[
    str | None,
    typer.Option(
        "--out", help="Directory that holds the snapshots, or an object store: s3://bucket/prefix."
    ),
]
AsOf = Annotated[
    str,
    typer.Option("--as-of", "--at", help="latest, latest-5m, a TSO, or an ISO 8601 time."),
]
Wait = Annotated[
    str,
    typer.Option(
        "--wait",
        help="Wait up to so many seconds, or 10m, for the moment to be decided.",
    ),
]
Base = Annotated[
    str,
    typer.Option(
        "--base", help="Build on: auto, none, a snapshot (s3://... too), or a Dumpling dump."
    ),
]
BaseTimeZone = Annotated[
    str, typer.Option("--base-time-zone", help="Of the TIMESTAMPs in a dump: UTC, +08:00.")
]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
LayoutName = Annotated[
    Layout,
    typer.Option("--layout", help="plain, or dumpling: files as TiDB Lightning imports them."),
]
Catalog = Annotated[
    str | None,
    typer.Option("--catalog", help="Iceberg: a catalog of your own, by its name in pyiceberg."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an export that was killed.")]
Force = Annotated[
    bool, typer.Option("--force", help="Make another one of a moment that has its snapshot.")
]
Keep = Annotated[
    int,
    typer.Option(
        "--keep", min=0, max=COUNT_MAX, help="Remove all but so many of the latest afterwards."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be exported, and how long it takes.")
]
Check = Annotated[
    Path | None,
    typer.Option("--check", help="Export nothing: see whether this snapshot is whole."),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="With --check, compare with mysql://user:password@host:port as it is now;"
        " with --as-of snapshot, with a TiDB as it was at the snapshot's moment.",
    ),
]
Archive = Annotated[
    str,
    typer.Option("--archive", help="Read this archive (path or URL), or files of a file sink."),
]
SchemaHistory = Annotated[
    str | None, typer.Option("--schema-history", help="File or URL; overrides the configured.")
]
Types = Annotated[
    list[str],
    typer.Option("--type", help="How a type comes out: tinyint1=boolean. May be repeated."),
]
Package = Annotated[
    Path | None,
    typer.Option(
        "--package", help="Only write binlogd.zip, export.py and pipeline.py for spark-submit."
    ),
]
Via = Annotated[
    str,
    typer.Option(
        "--via",
        help="Let the binlogd that runs at http://host:8250 make it, into its export.dir; only"
        " --as-of, --format and --base are yours to say.",
    ),
]
