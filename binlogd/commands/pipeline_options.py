"""The options of `binlogd pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SourceOption = Annotated[
    str, typer.Option("--source", help="Data directory, archive, or binlogd://host:port.")
]
IntoOption = Annotated[
    str,
    typer.Option(
        "--into",
        help="delta:PLACE or iceberg:PLACE (a directory, s3://...); or syncer: what [syncer]"
        " names.",
    ),
]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", help="Directory in which Spark keeps how far it is.")
]
BeginOption = Annotated[
    str, typer.Option("--from", help="The first time: behind which TSO or time.")
]
BaseOption = Annotated[
    str,
    typer.Option(
        "--base",
        help="The first time, where the log begins late: a snapshot of `binlogd export`, or a"
        " Dumpling dump, that comes first.",
    ),
]
BaseTimeZoneOption = Annotated[
    str, typer.Option("--base-time-zone", help="The zone of TIMESTAMPs in a dump: UTC, +08:00, …")
]
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on with what comes; else end with what is there.")
]
IntervalOption = Annotated[
    float, typer.Option("--interval", help="With --follow: seconds between two batches.")
]
BatchOption = Annotated[int, typer.Option("--batch", help="Transactions of a batch, at most.")]
TablesOption = Annotated[str, typer.Option("--tables", help="Take these only: names with * and ?.")]
ExceptOption = Annotated[str, typer.Option("--except", help="Leave these out: names with * and ?.")]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE of the data source: schemaHistory=FILE, sslCa=…"),
]
CoresOption = Annotated[
    int, typer.Option("--cores", help="How many cores a Spark on this machine takes.")
]
MemoryOption = Annotated[
    int, typer.Option("--memory-mb", help="How much memory the JVM of that Spark takes.")
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Keep a lake or a database that another pipeline kept before."
    ),
]
PackageOption = Annotated[
    Path | None,
    typer.Option(
        "--package", help="Only write binlogd.zip, pipeline.py and export.py for spark-submit."
    ),
]
