"""What a person sees on a terminal of how a node stands: one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from binlogd.status import (
    OFF,
    DrainerStatus,
    SavedCheckpoint,
    ShardStatus,
    SourceStatus,
    Status,
    UpstreamStatus,
)
from binlogd.tso import Tso, physical_ms


def _drainer_state(drainer: DrainerStatus) -> str:
    """What it does; and what an operator has made of it, where that is not the ordinary."""
    if drainer.node_state in ("", "online"):
        return drainer.state
    return f"{drainer.node_state} ({drainer.node_id})"


def _lag(lag_s: float | None, drainer: DrainerStatus) -> str:
    if lag_s is not None:
        return f"{lag_s:.3f} s"
    return "not replicating" if drainer.state == OFF else "nothing is applied yet"


def _checkpoint(saved: SavedCheckpoint) -> str:
    """Where nothing is saved, nothing is said to be inconsistent."""
    ts = saved.commit_ts
    return f"{ts}, consistent: {saved.consistent}" if ts else "nothing yet"


def _lanes(lane_ts: Sequence[Tso]) -> str:
    """How many, and how far the last one is behind the first."""
    first, last = max(lane_ts), min(lane_ts)
    apart_s = (physical_ms(first) - physical_ms(last)) / 1000 if last else 0.0
    return f"{len(lane_ts)}, from {last} to {first} ({apart_s:.3f} s apart)"


def upstream_text(upstream: UpstreamStatus) -> str:
    """Who tells what this node does not know by itself."""
    named = [
        " ".join(filter(None, (part.name, part.version, part.leader, at)))
        for part in upstream.parts
        for at in [part.address and f"at {part.address}"]
    ]
    tso = upstream.tso
    if tso is not None and tso.age_s is not None:
        named.append(f"its time {tso.last_ts}, told {tso.age_s:.0f} s ago")
    return ", ".join([upstream.kind, *named])


def _upstream_troubles(upstream: UpstreamStatus) -> list[tuple[str, str]]:
    found = [(part.name, part.trouble) for part in upstream.parts if part.trouble]
    tso = upstream.tso
    if not found and tso is not None and tso.trouble:
        return [("the source of time", tso.trouble)]
    return found


class StatusScreen:
    """The same screen again and again, in one place of a terminal, while a `with` lasts."""

    def __init__(self) -> None:
        console = Console()
        self._live = Live(console=console, screen=console.is_terminal, auto_refresh=False)
        self._console = console

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, status: Status | None, reason: str = "") -> None:
        """How it stands now; without a status, why there is none."""
        with self._console.capture() as captured:
            if status is None:
                self._console.print(f"[bold red]no answer:[/] {escape(reason)}", soft_wrap=True)
            else:
                print_status(status, self._console)
            self._console.print("[dim]Ctrl-C leaves[/]")
        self._live.update(Text.from_ansi(captured.get()), refresh=True)


def print_status(status: Status, console: Console | None = None) -> None:
    """One screen: lag, watermarks, checkpoint, lanes, who blocks."""
    console = console or Console()
    checkpoint, drainer = status.checkpoint, status.drainer
    overview = Table(show_header=False, box=None, pad_edge=False)
    rows: list[tuple[str, str]] = [
        ("node", f"{status.node_id} ({status.state})"),
        ("cluster", str(status.cluster_id or "not known yet")),
        ("everything up to", str(status.max_commit_ts)),
        ("applied up to", str(drainer.applied_ts or "nothing yet")),
        ("saved up to", _checkpoint(checkpoint)),
        ("lag", _lag(status.lag_s, drainer)),
        ("drainer", _drainer_state(drainer)),
        ("upstream", upstream_text(status.upstream)),
    ]
    if drainer.lanes:
        rows.append(("lanes", _lanes(drainer.lanes)))
    for name, value in rows:
        overview.add_row(f"[dim]{name}[/]", value)
    console.print(overview, highlight=False)
    if status.close_waits_for:
        waits_for = status.close_waits_for
        console.print(f"[yellow]closing:[/] {waits_for}", highlight=False, soft_wrap=True)
    for who, trouble in _upstream_troubles(status.upstream):
        console.print(f"[yellow]{who}:[/] {trouble}", highlight=False, soft_wrap=True)
    if status.blocked_by:
        console.print(f"[yellow]waiting:[/] {status.blocked_by}", highlight=False)
    _print_kept(console, status)
    for source in drainer.sources:
        if source.trouble or (source.name == drainer.blocking and source.silent_s > 10):
            console.print(
                f"[yellow]source {source.name}[/] ({source.state}): silent for"
                f" {source.silent_s:.0f} s, everything waits for what it has"
                f" {'(' + source.trouble + ')' if source.trouble else ''}",
                highlight=False,
                soft_wrap=True,
            )
    if status.late_commits:
        console.print(
            f"[bold red]too late:[/] {status.late_commits} commits came below the watermark; is the"
            " clock of upstream.tso ahead of the writers? They are in the log, and downstream only"
            " if they came by another Pump:"
            f" commit_ts {', '.join(str(each.commit_ts) for each in status.first_late)}",
            highlight=False,
            soft_wrap=True,
        )
    _print_drainer(console, drainer)
    _print_shards(console, status.shards, drainer.sources)


def _print_shards(
    console: Console, own: Sequence[ShardStatus], sources: Sequence[SourceStatus]
) -> None:
    """Of this Pump, where there is one; and the Pumps elsewhere that are pulled."""
    if own:
        shards = Table(
            "shard", "up to", "open prewrites", "queued", "chaser", "log bytes", box=None
        )
        for shard in own:
            shards.add_row(*(str(getattr(shard, name)) for name in _SHARD_COLUMNS))
        console.print(shards, highlight=False)
    names = {shard.name for shard in own}
    _print_sources(console, [each for each in sources if each.name not in names])


def _print_sources(console: Console, sources: Sequence[SourceStatus]) -> None:
    """Pumps elsewhere that are pulled."""
    if not sources:
        return
    shown = Table("pump", "state", "up to", "behind", "silent", "trouble", box=None)
    for source in sources:
        shown.add_row(
            source.name,
            source.state,
            str(source.resolved_ts),
            "-" if source.lag_s is None else f"{source.lag_s:.3f} s",
            f"{source.silent_s:.0f} s",
            escape(source.trouble),
        )
    console.print(shown, highlight=False)


def _print_kept(console: Console, status: Status) -> None:
    """Why no prewrite is taken, and who keeps binlogs that are old enough to go."""
    gc = status.gc
    for label, text in (
        ("[bold red]refusing writes:[/]", status.refuses_because),
        ("[yellow]old binlogs are kept for:[/]", ", ".join(gc.held_by)),
        ("[bold red]nothing is deleted:[/]", gc.failed),
        ("[yellow]the registry does not answer:[/]", status.registry_error),
    ):
        if text:
            console.print(label, escape(text), highlight=False, soft_wrap=True)


_SHARD_COLUMNS = ("name", "max_commit_ts", "open_prewrites", "queued", "chaser", "log_bytes")


def _print_drainer(console: Console, drainer: DrainerStatus) -> None:
    """What the replication waits for: a DDL at work, another attempt, or an operator."""
    ddl = drainer.ddl
    if ddl:
        stage = f", {ddl.stage}" if ddl.stage else ""
        done = f" {ddl.percent:.0f} %" if ddl.percent else ""
        console.print(
            f"[yellow]DDL at work[/] for {ddl.elapsed_s:.0f} s{stage}{done} (commit_ts"
            f" {ddl.commit_ts}): {escape(ddl.statement)}",
            highlight=False,
            soft_wrap=True,
        )
    if not drainer.error:
        return
    if drainer.state == "retrying":
        console.print(
            f"[yellow]retrying[/] in {drainer.retry_in_s:.0f} s, {drainer.failed_in_a_row}"
            f" failed in a row: {escape(drainer.error)}",
            highlight=False,
            soft_wrap=True,
        )
    else:
        console.print(
            f"[bold red]{drainer.state}:[/] {escape(drainer.error)}",
            highlight=False,
            soft_wrap=True,
        )
