"""`binlogd pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from binlogd.commands.beside import refuse_typed
from binlogd.commands.export_options import Catalog
from binlogd.commands.manner import SUBMITTED, LogLevelOption
from binlogd.commands.options import COUNT_MAX, ConfigOption, load_setup
from binlogd.errors import ConfigError
from binlogd.extras import importing
from binlogd.settings.setup import Setup

if TYPE_CHECKING:
    from binlogd.spark.submit import Arguments

_SUBMITTED_WHY = "not under spark-submit, which says what Spark takes of whom"
SourceOption = Annotated[
    str, typer.Option("--source", help="Data directory, archive, or binlogd://host:port.")
]
IntoOption = Annotated[
    str,
    typer.Option(
        "--into",
        help="delta:PLACE or iceberg:PLACE (a directory, s3://..., gs://..., abfss://...);"
        " or syncer: what [syncer] names.",
    ),
]
ModeOption = Annotated[
    str,
    typer.Option(
        "--mode",
        help="What the tables of a lake hold. upsert: the rows as they are upstream; changelog:"
        " every change as a row, only appended.",
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
    float,
    typer.Option(
        "--interval", min=0.0, max=86_400.0, help="With --follow: seconds between two batches."
    ),
]
BatchOption = Annotated[
    int,
    typer.Option("--batch", min=0, max=COUNT_MAX, help="Transactions of a batch; 0: no limit."),
]
TablesOption = Annotated[str, typer.Option("--tables", help="Take these only: names with * and ?.")]
ExceptOption = Annotated[str, typer.Option("--except", help="Leave these out: names with * and ?.")]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE of the data source: schemaHistory=FILE, sslCa=…"),
]
CoresOption = Annotated[
    int,
    typer.Option("--cores", min=1, max=1024, help="How many cores a Spark on this machine takes."),
]
MemoryOption = Annotated[
    int,
    typer.Option(
        "--memory-mb", min=1, max=COUNT_MAX, help="How much memory the JVM of that Spark takes."
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Keep a lake or a database that another pipeline kept before."
    ),
]
MetricsOption = Annotated[
    str,
    typer.Option(
        "--metrics-addr", help="HOST:PORT where GET /metrics answers Prometheus while it runs."
    ),
]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition-by",
        help="DATABASE.TABLE:COLUMN,... by whose values the rows of a table lie apart in the lake;"
        " in Iceberg also year, month, day or hour(COLUMN). For each table once.",
    ),
]
ClusterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-by",
        help="DATABASE.TABLE:COLUMN,... by which the rows are sorted in each new file.",
    ),
]
PackageOption = Annotated[
    Path | None,
    typer.Option(
        "--package", help="Only write binlogd.zip, pipeline.py and export.py for spark-submit."
    ),
]


def pipeline(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    source: SourceOption = "",
    into: IntoOption = "",
    mode: ModeOption = "upsert",
    checkpoint: CheckpointOption = "",
    begin: BeginOption = "",
    base: BaseOption = "",
    base_time_zone: BaseTimeZoneOption = "",
    follow: FollowOption = False,
    interval: IntervalOption = 10.0,
    batch: BatchOption = 100_000,
    tables: TablesOption = "",
    excluded: ExceptOption = "",
    option: SourceOptions = None,
    cores: CoresOption = 2,
    memory_mb: MemoryOption = 1024,
    take_over: TakeOverOption = False,
    metrics_addr: MetricsOption = "",
    catalog: Catalog = None,
    partition_by: PartitionOption = None,
    cluster_by: ClusterOption = None,
    package: PackageOption = None,
    config_file: ConfigOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run the Drainer's work on Spark: into Delta or Iceberg tables, or into what [syncer] names.

    Each batch is a range of commit_ts. If it is killed, run the same command again: nothing is lost
    or applied twice. With a new --checkpoint it continues where the target is. DDLs are applied
    too. In a lake, PLACE/tables.json names the versions that belong together. With --log-level
    debug you see what Spark itself writes.

        binlogd pipeline --source /var/lib/binlogd --into delta:/lake --checkpoint /lake/_checkpoint

        binlogd pipeline --package job/    # the same on a cluster: see docs/howto/spark-cluster.md
    """
    with importing("spark"):
        from binlogd.spark.submit import Arguments, write_package

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
        options=option or (),
        takes_over=take_over,
        base=base,
        base_time_zone=base_time_zone,
        mode=mode,
        metrics_addr=metrics_addr,
        catalog=catalog or "",
        partition_by=partition_by or (),
        cluster_by=cluster_by or (),
    )
    setup = load_setup(config_file, log_level=log_level)
    _run(context, arguments, setup, cores=cores, memory_mb=memory_mb)


def _run(
    context: typer.Context, arguments: Arguments, setup: Setup, *, cores: int, memory_mb: int
) -> None:
    from binlogd.spark.submit import run_here, run_submitted, with_history

    arguments = with_history(arguments, setup)
    if context.obj is not SUBMITTED:
        run_here(arguments, setup, cores=cores, memory_mb=memory_mb)
        return
    refuse_typed(context, {"cores", "memory_mb"}, _SUBMITTED_WHY)
    run_submitted(arguments, setup)
