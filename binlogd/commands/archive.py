"""`binlogd archive`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from binlogd.archive.task import Archived, Keep, Removed, Task
from binlogd.commands.console import BytesProgress
from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.errors import ConfigError
from binlogd.extras import require
from binlogd.settings.quantities import retention_s, wall_clock, wall_clock_ms
from binlogd.tso import Tso

if TYPE_CHECKING:
    from binlogd.archive.upload import Verified


Url = Annotated[
    str, typer.Argument(help="Directory, or s3://, gs://, abfs://, hdfs://; else archive.url.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Read all of it and compare checksums instead.")
]
WithOpen = Annotated[
    bool, typer.Option("--with-open", help="The segments that still grow, too, as they are.")
]
History = Annotated[
    Path | None,
    typer.Option("--schema-history", help="File with TiDB's /ddl/history, if none was kept."),
]
KeepFor = Annotated[
    str, typer.Option("--keep", help="Remove what is older instead, as 30d or 12h; see above.")
]
Base = Annotated[
    str, typer.Option("--base", help="Snapshots that replace it; else archive.base or snapshots/.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="With --keep: say what would go, change nothing.")
]


def archive(  # noqa: PLR0913 - typer makes each parameter an option
    url: Url = "",
    check: Check = False,
    with_open: WithOpen = False,
    schema_history: History = None,
    keep: KeepFor = "",
    base: Base = "",
    dry_run: DryRun = False,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the sealed segments of a data directory, with an index, to a directory or object store.

    Spark can read an archive from any machine, also when binlogd is busy or gone. Segments that are
    in the archive already are not copied again; if it is stopped, the next run continues. It does
    not disturb a running binlogd, which does the same by itself with `[archive] url`. The exit code
    is 1 if --check finds something wrong.

    --keep removes segments of which all is older, counted back from the last moment that the
    archive has, if a snapshot of `binlogd export` replaces them. The first run says from where on
    reads begin; a run at least a day later deletes what lies before it, so that reads which were
    planned before come to their end. `[archive] keep` does the same every hour.

        binlogd archive s3://lake/binlogs --data-dir /var/lib/binlogd

        binlogd archive s3://lake/binlogs --check

        binlogd archive s3://lake/binlogs --keep 30d --base s3://lake/snapshots
    """
    setup = load_setup(config_file, data_dir)
    url = url or setup.config.archive.url
    if not url:
        raise ConfigError("binlogd archive: name where to, or set archive.url")
    require("archive", "pyarrow")
    from binlogd.archive import keep as retention  # need pyarrow, which is an extra
    from binlogd.archive import upload

    with BytesProgress(Console(stderr=True)) as shown:
        if keep:
            base = base or setup.config.archive.base
            asked = Keep(keep_s=retention_s("--keep", keep), base=base, is_dry=dry_run)
            done = retention.keep(url, asked, shown.report)
            _tell_kept(done, url, is_dry=dry_run, as_json=as_json)
        elif check:
            _tell(upload.verify(url, shown.report), url, as_json=as_json)
        else:
            history = str(schema_history or "")
            data = str(setup.data_dir)
            task = Task(data_dir=data, url=url, history=history, with_open=with_open)
            _tell_archived(upload.archive(task, shown.report), url, as_json=as_json)


def _tell_archived(done: Archived, url: str, *, as_json: bool) -> None:
    if as_json:
        say_json(done)
        return
    upto = f"complete up to commit_ts {done.resolved_ts} ({wall_clock(Tso(done.resolved_ts))})"
    if not done.resolved_ts:
        upto = "nothing is complete yet: no segment is sealed, and --with-open copies others"
    say(
        f"{url}: {done.segments} segments, {done.size_bytes / 1e6:.1f} MB,"
        f" {done.transactions} transactions; {upto}"
    )


def _tell_kept(kept: Removed, url: str, *, is_dry: bool, as_json: bool) -> None:
    if as_json:
        say_json(kept)
        return
    would = "would be " if is_dry else ""
    said = [f"{kept.files} files of removed segments {would}deleted"]
    if kept.leaving:
        said.append(
            f"{kept.leaving} segments ({kept.leaving_bytes / 1e6:.1f} MB) {would}announced to go"
        )
    if kept.leaving_ms:
        said.append(
            f"what is announced goes by a run after {wall_clock_ms(kept.leaving_ms)}, reads begin"
            f" behind commit_ts {kept.leaving_ts} ({wall_clock(Tso(kept.leaving_ts))})"
        )
    said += [kept.held] if kept.held else []
    say(f"{url}: {'; '.join(said)}")


def _tell(verified: Verified, url: str, *, as_json: bool) -> None:
    if as_json:
        say_json(verified)
    else:
        for problem in verified.problems:
            say(problem, "wrong", "red")
        say(
            f"{url}: {verified.segments} segments, {verified.size_bytes / 1e6:.1f} MB,"
            f" {len(verified.problems)} problems"
        )
    raise typer.Exit(1 if verified.problems else 0)
