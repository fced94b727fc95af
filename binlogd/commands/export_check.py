"""What `binlogd export` says instead of exporting: what would be done, what was done well."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from binlogd.commands.console import BytesProgress
from binlogd.commands.output import say, say_json
from binlogd.commands.replay import server_of
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.extras import importing
from binlogd.host import loop
from binlogd.snapshot.estimate import Estimate
from binlogd.snapshot.spec import Manifest
from binlogd.tso import NO_TS, Tso


def say_package(directory: Path) -> None:
    """`--package`."""
    with importing("spark"):
        from binlogd.spark.submit import write_package
    for path in write_package(directory):
        typer.echo(path)


def check_snapshot(snapshot: Path, against: str | None, as_of: str, *, as_json: bool) -> None:
    """`--check`, and `--against`. Exit code 1 where something is not as it should be."""
    with importing("spark"):
        from binlogd.snapshot.check import CheckedSnapshot, TableCheck, check, opened
    server = server_of(against, "+00:00", "--against") if against is not None else None
    manifest = opened(snapshot)
    found: list[TableCheck] = []
    with BytesProgress(Console(stderr=True)) as shown:

        def told(step: CheckedSnapshot) -> None:
            shown.told(escape(step.table), step.done_bytes, step.total_bytes)

        found += check(snapshot, manifest, told)
    wrong = sum(1 for each in found if each.reason)
    if as_json:
        for each in found:
            say_json(each)
    else:
        _show([(f"{each.database}.{each.table}", each.rows, each.reason, ()) for each in found])
        unread = "" if all(each.is_read for each in found) else "; rows were not read back"
        say(f"{len(found) - wrong} of {len(found)} tables are whole{unread}")
    if not wrong and server is not None:
        wrong = _compare(snapshot, manifest, server, as_of, as_json=as_json)
    if wrong:
        raise typer.Exit(1)


def _compare(
    snapshot: Path, manifest: Manifest, server: MySqlServer, as_of: str, *, as_json: bool
) -> int:
    """How many tables differ. `--as-of snapshot` reads a TiDB at the snapshot's moment."""
    from binlogd.tools.against import Verdict, compare

    at_ts = Tso(manifest.commit_ts) if as_of == "snapshot" else NO_TS

    async def all_of_them() -> list[Verdict]:
        return [each async for each in compare(server, at_ts, snapshot, manifest)]

    found = loop.run(all_of_them())
    if as_json:
        for each in found:
            say_json(each)
    else:
        _show(
            [
                (f"{each.database}.{each.table}", each.rows, each.reason, each.left_out)
                for each in found
            ]
        )
        for verdict in found:
            for said in verdict.differences:
                say(f"{verdict.database}.{verdict.table}: {said}")
        when = f"as of commit_ts {at_ts}" if at_ts else "as it is now"
        equal = sum(1 for each in found if not each.reason)
        say(f"{equal} of {len(found)} tables are equal to those of {server}, {when}")
    return sum(1 for each in found if each.reason)


def _show(rows: list[tuple[str, int, str, tuple[str, ...]]]) -> None:
    shown = Table("table", Column("rows", justify="right"), "", box=None)
    for name, count, reason, left_out in rows:
        said = f"[bold red]{escape(reason)}[/]" if reason else "[green]good[/]"
        if left_out:
            said += f" [dim]without {escape(', '.join(left_out))}[/]"
        shown.add_row(escape(name.strip(".")), str(count), said)
    Console().print(shown, highlight=False)


def say_plan(estimate: Estimate, *, as_json: bool) -> None:
    """`--dry-run`."""
    if as_json:
        say_json(estimate)
        return
    shown = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("as of", f"{estimate.as_of} ({estimate.time})" if estimate.as_of else estimate.time),
        ("tables", f"about {len(estimate.tables)}"),
        ("log", f"{estimate.segments} files, {estimate.log_bytes / 1e6:.1f} MB"),
        ("row changes", f"about {estimate.changes:,}"),
        ("base", estimate.base),
        ("time", f"about {estimate.seconds:.0f} s {estimate.basis}"),
        ("free disk", f"{estimate.free_bytes / 1e9:.1f} GB"),
    ):
        shown.add_row(f"[dim]{name}[/]", escape(value))
    Console().print(shown, highlight=False)
    say("nothing was exported: this was a dry run")
