"""`binlogd adopt`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import BytesProgress
from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.host import loop
from binlogd.host.disk import PosixDisk
from binlogd.pump.checking.adopt import Adopted
from binlogd.pump.checking.adopt import adopt as adopt_directories
from binlogd.pump.checking.check import OnProgress
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.shard.options import ShardOptions
from binlogd.settings.setup import Setup


def adopt(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="data-dir of a stopped Go Pump.")
    ],
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out damaged stretches, and name them.")
    ] = False,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take over the data of Go Pumps: make a new data directory from theirs.

    Stop the Pumps first. Give all Pumps of a cluster at once: binlogd replaces all of them. Their
    directories stay as they are. With one Pump and pump.shards = 1, its sealed segments are linked,
    which needs no time and no space; otherwise every record is written again. Records that a crash
    cut off were never acknowledged; they are left out and named.

        binlogd adopt /data/pump-1 /data/pump-2 --data-dir /var/lib/binlogd
    """
    setup = load_setup(config_file, data_dir)
    with BytesProgress(Console(stderr=True)) as shown:
        done = loop.run(_adopted(setup, directories, shown.report, skip_damaged=skip_damaged))
    if as_json:
        say_json(done)
    else:
        _print(setup, done)


async def _adopted(
    setup: Setup, directories: list[Path], on_progress: OnProgress, *, skip_damaged: bool
) -> Adopted:
    settings = setup.config.pump
    with closing(PosixDisk(threads=2)) as disk:
        return await adopt_directories(
            directories,
            setup.data_dir,
            disk,
            on_progress,
            shards=settings.shards,
            options=ShardOptions(log=LogLimits(segment_bytes_max=settings.segment_size)),
            passes_over_damage=skip_damaged,
        )


def _print(setup: Setup, done: Adopted) -> None:
    for each in done.passed_over:
        if each.kind == "append":
            say(str(each), "left out, unfinished append:", "")
        else:
            say(str(each), "left out, damaged:", "red")
    how = "linked" if done.is_linked else "written"
    say(
        f"{setup.data_dir / 'pump'}: {done.records} binlogs of {len(done.sources)} Pumps,"
        f" {how} into {done.shards} shards, {done.size_bytes / 1e6:.1f} MB,"
        f" up to commit_ts {done.max_commit_ts}"
    )
    if done.open_prewrites:
        say(
            f"{done.open_prewrites} prewrites have no outcome yet; what committed behind them waits"
            " for it"
        )
    if done.gc_ts:
        say(
            f"the Pumps had deleted older segments: a Drainer must start above commit_ts"
            f" {done.gc_ts}"
        )
    say(
        "next: copy the [syncer] part of the Drainer's configuration (its checkpoint is read where"
        " it is), set upstream.cluster-id, and start `binlogd serve`; delete the Pumps' directories"
        " when it has caught up"
    )
