"""`binlogd pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from binlogd.commands.options import ConfigOption, load_setup
from binlogd.errors import ConfigError


def pipeline(  # noqa: PLR0913 - typer makes each parameter an option
    source: Annotated[
        str, typer.Option("--source", help="Data directory, archive, or binlogd://host:port.")
    ] = "",
    into: Annotated[
        str,
        typer.Option(
            "--into",
            help="delta:PLACE or iceberg:PLACE (a directory, s3://...); or syncer: what [syncer]"
            " names.",
        ),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Directory in which Spark keeps how far it is.")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", help="The first time: behind which TSO or time.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes; else end with what is there.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", help="With --follow: seconds between two batches.")
    ] = 10.0,
    batch: Annotated[
        int, typer.Option("--batch", help="Transactions of a batch, at most.")
    ] = 100_000,
    tables: Annotated[str, typer.Option("--tables", help="Which, with * and ?; all.")] = "",
    excluded: Annotated[str, typer.Option("--except", help="Which not.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="NAME=VALUE of the data source: schemaHistory=FILE, sslCa=…"),
    ] = None,
    cores: Annotated[int, typer.Option("--cores", help="Of a Spark on this machine.")] = 2,
    memory_mb: Annotated[int, typer.Option("--memory-mb", help="Of that Spark's JVM.")] = 1024,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Keep a lake that another pipeline kept before."),
    ] = False,
    package: Annotated[
        Path | None,
        typer.Option("--package", help="Only write binlogd.zip and pipeline.py for spark-submit."),
    ] = None,
    config_file: ConfigOption = None,
) -> None:
    """Run the Drainer's work on Spark: into Delta or Iceberg tables, or into what [syncer] names.

    Each batch is a range of commit_ts. Killed at any moment, the same command goes on without loss
    or doubling; with a new --checkpoint it goes on where the target is. DDL is carried through. In
    a lake, PLACE/tables.json names the versions that belong together.

        binlogd pipeline --source /var/lib/binlogd --into delta:/lake --checkpoint /lake/_checkpoint

        binlogd pipeline --package job/    # the same on a cluster: see docs/howto/spark-cluster.md
    """
    from binlogd.spark.submit import Arguments, run_here, write_package

    if package is not None:
        for path in write_package(package):
            typer.echo(path)
        return
    if not (source and into and checkpoint):
        raise ConfigError("binlogd pipeline: needs --source, --into and --checkpoint")
    arguments = Arguments(
        source=source,
        into=into,
        checkpoint=checkpoint,
        begin=begin,
        interval_s=interval if follow else None,
        batch=batch,
        tables=tables,
        excluded=excluded,
        options=tuple(option or ()),
        config=str(config_file or ""),
        takes_over=take_over,
    )
    run_here(arguments, load_setup(config_file), cores=cores, memory_mb=memory_mb)
