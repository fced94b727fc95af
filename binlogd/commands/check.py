"""`binlogd check`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import BytesProgress
from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_json, say_table
from binlogd.host import loop
from binlogd.host.disk import PosixDisk
from binlogd.pump.checking.check import CheckReport, OnProgress, ShardReport
from binlogd.pump.checking.repair import Checked, Repaired, check_and_repair
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.shard.options import ShardOptions
from binlogd.settings.setup import Setup

_SHOWN_MAX = 40


def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Make a wrong index again from the log.")
    ] = False,
    copy_to: Annotated[
        Path | None,
        typer.Option(
            "--copy-to",
            help="With --repair: copy damaged segments into this directory, then write them anew"
            " without what is unreadable.",
        ),
    ] = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a stopped binlogd's log and index: every record, footer, index row and mark.

    Names every part of the log that cannot be read, by file and offsets, and changes nothing.
    --repair makes an index that contradicts its log again. It changes the log itself only with
    --copy-to, which names a place for a copy first: the unreadable part is lost then, and the rest
    can be used. The exit code is 1 if something is still wrong at the end.

        binlogd check --data-dir /var/lib/binlogd
    """
    setup = load_setup(config_file, data_dir)
    with BytesProgress(Console(stderr=True)) as shown:
        checked = loop.run(_checked(setup, shown.report, repairs=repair, copy_to=copy_to))
    if as_json:
        say_json(_document(checked))
    else:
        _print(checked)
    raise typer.Exit(0 if checked.report.is_clean else 1)


async def _checked(
    setup: Setup, on_progress: OnProgress, *, repairs: bool, copy_to: Path | None
) -> Checked:
    with closing(PosixDisk(threads=2)) as disk:
        return await check_and_repair(
            setup.data_dir,
            disk,
            on_progress,
            repairs=repairs,
            copy_to=copy_to,
            options=ShardOptions(log=LogLimits(segment_bytes_max=setup.config.pump.segment_size)),
        )


def _document(checked: Checked) -> dict[str, object]:
    report = checked.report
    return {
        "directory": report.directory,
        "is_clean": report.is_clean,
        "findings": report.findings,
        "shards": [
            {
                "name": shard.name,
                "segments": shard.segments,
                "records": shard.records,
                "size_bytes": shard.size_bytes,
                "index_rows": shard.index_rows,
                "torn_bytes": shard.torn_bytes,
                "findings_left_out": shard.left_out,
            }
            for shard in report.shards
        ],
        "repaired": checked.repaired,
        "found_before": None if checked.before is None else checked.before.findings,
    }


def _print(checked: Checked) -> None:
    report = checked.report
    if checked.before is not None:
        _print_findings(checked.before)
    if checked.repaired is not None:
        _print_repair(checked.repaired)
    names = ("shard", "segments", "records", "bytes", "index rows", "findings")
    say_table(names, map(_row, report.shards))
    for shard in report.shards:
        if shard.torn_bytes:
            say(
                f"{shard.name} ends in {shard.torn_bytes} bytes of an unfinished append, which the"
                " next start cuts off; nobody was told that they were written"
            )
    if report.is_clean:
        say("", "everything verifies", "green")
        return
    _print_findings(report)
    if checked.repaired is None:
        say(
            "`binlogd check --repair` makes an index again. A damaged log needs `--repair --copy-to"
            " DIR`; better, if there is one: restore the file from a copy of the disk, or start"
            " again from a new full copy of the data."
        )


def _row(shard: ShardReport) -> tuple[str, ...]:
    numbers = (shard.segments, shard.records, shard.size_bytes, shard.index_rows)
    return shard.name, *map(str, numbers), str(len(shard.findings) + shard.left_out)


def _print_findings(report: CheckReport) -> None:
    findings = report.findings
    for finding in findings[:_SHOWN_MAX]:
        say(str(finding), finding.kind, "red")
    if len(findings) > _SHOWN_MAX:
        say(f"… and {len(findings) - _SHOWN_MAX} more: --json lists them")


def _print_repair(repaired: Repaired) -> None:
    for path in repaired.copies:
        say(f"copied, then written anew: {path}")
    for path in repaired.emptied:
        say(f"was missing, now empty: {path}")
    if repaired.copies or repaired.emptied:
        say(
            "What was unreadable is lost. A Drainer stops at a transaction whose rows were in it,"
            " and goes on with pump.skip-orphan-commits; of one whose commit was in it, the fate is"
            " asked for. To lose nothing, start again from a new full copy of the data."
        )
    for path in repaired.indexes:
        say(f"made again: {path}")
    for name in repaired.refused:
        say(f"{name}, its log is damaged; name a place for a copy by --copy-to", "left alone:")
    for path in repaired.in_the_way:
        say(f"with all of its shard: {path}; move that file away", "left alone,")
