"""`binlogd pipeline`."""

from __future__ import annotations

import typer

from binlogd.commands.manner import LogLevelOption
from binlogd.commands.options import ConfigOption, load_setup
from binlogd.commands.pipeline_options import (
    BaseOption,
    BaseTimeZoneOption,
    BatchOption,
    BeginOption,
    CheckpointOption,
    CoresOption,
    ExceptOption,
    FollowOption,
    IntervalOption,
    IntoOption,
    MemoryOption,
    PackageOption,
    SourceOption,
    SourceOptions,
    TablesOption,
    TakeOverOption,
)
from binlogd.errors import ConfigError
from binlogd.extras import importing


def pipeline(  # noqa: PLR0913 - typer makes each parameter an option
    source: SourceOption = "",
    into: IntoOption = "",
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
        base=base,
        base_time_zone=base_time_zone,
    )
    setup = load_setup(config_file, log_level=log_level)
    run_here(arguments, setup, cores=cores, memory_mb=memory_mb)
