"""What a person sees on a terminal of how a node stands: one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from binlogd.commands.output import say, say_facts, say_table, standard_output
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
        console = Console(emoji=False)
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
                say(reason, "no answer:", "bold red", console=self._console)
            else:
                print_status(status, self._console)
            self._console.print("[dim]Ctrl-C leaves[/]")
        self._live.update(Text.from_ansi(captured.get()), refresh=True)


def print_status(status: Status, console: Console | None = None) -> None:
    """One screen: lag, watermarks, checkpoint, lanes, who blocks."""
    console = console or standard_output()
    checkpoint, drainer = status.checkpoint, status.drainer
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
    say_facts(rows, console=console)
    if status.close_waits_for:
        say(status.close_waits_for, "closing:", console=console)
    for who, trouble in _upstream_troubles(status.upstream):
        say(trouble, f"{who}:", console=console)
    if status.blocked_by:
        say(status.blocked_by, "waiting:", console=console)
    _print_kept(console, status)
    for source in drainer.sources:
        if source.trouble or (source.name == drainer.blocking and source.silent_s > 10):
            say(
                f"({source.state}): silent for {source.silent_s:.0f} s, everything waits for what"
                f" it has {'(' + source.trouble + ')' if source.trouble else ''}",
                f"source {source.name}",
                console=console,
            )
    if status.late_commits:
        late = ", ".join(str(each.commit_ts) for each in status.first_late)
        say(
            f"{status.late_commits} commits came below the watermark; is the clock of upstream.tso"
            " ahead of the writers? They are in the log, and downstream only if they came by"
            f" another Pump: commit_ts {late}",
            "too late:",
            "bold red",
            console=console,
        )
    _print_drainer(console, drainer)
    _print_shards(console, status.shards, drainer.sources)


def _print_shards(
    console: Console, own: Sequence[ShardStatus], sources: Sequence[SourceStatus]
) -> None:
    """Of this Pump, where there is one; and the Pumps elsewhere that are pulled."""
    if own:
        columns = ("shard", "up to", "open prewrites", "queued", "chaser", "log bytes")
        rows = ([str(getattr(shard, name)) for name in _SHARD_COLUMNS] for shard in own)
        say_table(columns, rows, console=console)
    names = {shard.name for shard in own}
    pulled = [
        (
            escape(source.name),
            source.state,
            str(source.resolved_ts),
            "-" if source.lag_s is None else f"{source.lag_s:.3f} s",
            f"{source.silent_s:.0f} s",
            escape(source.trouble),
        )
        for source in sources
        if source.name not in names
    ]
    if pulled:
        columns = ("pump", "state", "up to", "behind", "silent", "trouble")
        say_table(columns, pulled, console=console)


def _print_kept(console: Console, status: Status) -> None:
    """Why no prewrite is taken, who keeps binlogs that are old enough to go, what else fails."""
    gc, parts = status.gc, status.stuck_parts
    for text, label, style in (
        (status.refuses_because, "refusing writes:", "bold red"),
        (", ".join(gc.held_by), "old binlogs are kept for:", "yellow"),
        (gc.failed, "nothing is deleted:", "bold red"),
        (status.registry_error, "the registry does not answer:", "yellow"),
        (status.checkpoint.error, "the checkpoint is not saved:", "bold red"),
        (status.log_error, "log lines cannot be written:", "bold red"),
        *((each.error, f"{each.part} failed, and is tried again:", "yellow") for each in parts),
    ):
        if text:
            say(text, label, style, console=console)


_SHARD_COLUMNS = ("name", "max_commit_ts", "open_prewrites", "queued", "chaser", "log_bytes")


def _print_drainer(console: Console, drainer: DrainerStatus) -> None:
    """What the replication waits for: a DDL at work, another attempt, or an operator."""
    ddl = drainer.ddl
    if ddl:
        stage = f", {ddl.stage}" if ddl.stage else ""
        done = f" {ddl.percent:.0f} %" if ddl.percent else ""
        since = f"for {ddl.elapsed_s:.0f} s{stage}{done} (commit_ts {ddl.commit_ts})"
        say(f"{since}: {ddl.statement}", "DDL at work", console=console)
    if not drainer.error:
        return
    if drainer.state == "retrying":
        when = f"{drainer.retry_in_s:.0f} s, {drainer.failed_in_a_row} failed in a row"
        say(f"{when}: {drainer.error}", "retrying in", console=console)
    else:
        say(drainer.error, f"{drainer.state}:", "bold red", console=console)
