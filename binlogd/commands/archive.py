"""`binlogd archive`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from binlogd.archive.task import Task
from binlogd.commands.console import BytesProgress
from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.errors import ConfigError
from binlogd.extras import require
from binlogd.settings.moment import wall_clock
from binlogd.tso import Tso

if TYPE_CHECKING:
    from binlogd.archive.upload import Verified


def archive(  # noqa: PLR0913 - typer makes each parameter an option
    url: Annotated[
        str, typer.Argument(help="Directory, or s3://, gs://, abfs://, hdfs://; else archive.url.")
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Read all of it and compare checksums instead.")
    ] = False,
    with_open: Annotated[
        bool, typer.Option("--with-open", help="The segments that still grow, too, as they are.")
    ] = False,
    schema_history: Annotated[
        Path | None,
        typer.Option("--schema-history", help="File with TiDB's /ddl/history, if none was kept."),
    ] = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the sealed segments of a data directory, with an index, to a directory or object store.

    Spark can read an archive from any machine, also when binlogd is busy or gone. Segments that are
    in the archive already are not copied again; if it is stopped, the next run continues. It does
    not disturb a running binlogd, which does the same by itself with `[archive] url`. The exit code
    is 1 if --check finds something wrong.

        binlogd archive s3://lake/binlogs --data-dir /var/lib/binlogd

        binlogd archive s3://lake/binlogs --check
    """
    setup = load_setup(config_file, data_dir)
    url = url or setup.config.archive.url
    if not url:
        raise ConfigError("binlogd archive: name where to, or set archive.url")
    require("archive", "pyarrow")
    from binlogd.archive import upload  # needs pyarrow, which is an extra

    with BytesProgress(Console(stderr=True)) as shown:
        if check:
            _tell(upload.verify(url, shown.told), url, as_json=as_json)
            return
        task = Task(
            data_dir=str(setup.data_dir),
            url=url,
            history=str(schema_history or ""),
            with_open=with_open,
        )
        done = upload.archive(task, shown.told)
    if as_json:
        typer.echo(msgspec.json.encode(done))
        return
    Console().print(
        f"{url}: {done.segments} segments, {done.size_bytes / 1e6:.1f} MB,"
        f" {done.transactions} transactions; complete up to commit_ts {done.resolved_ts}"
        f" ({wall_clock(Tso(done.resolved_ts))})",
        highlight=False,
        soft_wrap=True,
    )


def _tell(verified: Verified, url: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(verified)))
    else:
        console = Console()
        for problem in verified.problems:
            console.print(f"[red]wrong[/] {problem}", highlight=False, soft_wrap=True)
        console.print(
            f"{url}: {verified.segments} segments, {verified.size_bytes / 1e6:.1f} MB,"
            f" {len(verified.problems)} problems",
            highlight=False,
            soft_wrap=True,
        )
    raise typer.Exit(1 if verified.problems else 0)
