"""`binlogd restore`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from binlogd import app
from binlogd.commands.console import ReadingProgress
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.commands.reading import show_chosen
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.node.replicated import table_filter
from binlogd.settings.quantities import last_ts
from binlogd.settings.setup import Setup
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.restoring import decided_skips, read_checkpoint
from binlogd.tools.transaction import CommitWindow
from binlogd.tso import MAX_TS, Tso


def restore(
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    to_ts: Annotated[
        str | None,
        typer.Option(
            "--to-ts", help="Apply up to this commit_ts and no further: a TSO, or a time (UTC)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be applied, and change nothing.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="For machines: a JSON document; of a dry run a line per row."),
    ] = False,
) -> None:
    """Bring the downstream to a consistent state from the relay log alone.

    Applies what the relay log contains after the checkpoint, and then marks the checkpoint as
    consistent. `serve` does the same if the upstream does not answer for syncer.relay.restore-after
    seconds. Transactions that you skipped with `binlogd skip` are skipped here too. The relay log
    may be that of a Go Drainer. With --to-ts it also applies to a consistent downstream.

        binlogd restore --config binlogd.toml --dry-run
        binlogd restore --config binlogd.toml --to-ts 2026-01-01T03:00:00Z
    """
    setup = load_setup(config_file, data_dir)
    end = None if to_ts is None else last_ts(to_ts, "--to-ts")
    if dry_run:
        _print_plan(setup, end, as_json=as_json)
        return
    done = app.restore(setup, end)
    if as_json:
        say_json(done)
        return
    if done.was_consistent:
        say(f"nothing to do: consistent at commit_ts {done.to_ts}")
        return
    say(
        f"restored from commit_ts {done.from_ts} to {done.to_ts}: {done.transactions}"
        f" transactions, {done.rows} rows; the checkpoint is consistent"
    )
    if done.values_in_doubt:
        say(
            f"{done.values_in_doubt} times values of columns, or rows, are in doubt; see"
            " values_of_a_coming_column_in_doubt, rows_of_a_partition_in_doubt and"
            " values_cut_by_a_ddl in the log"
        )


def _print_plan(setup: Setup, end: Tso | None, *, as_json: bool) -> None:
    if setup.relay_dir is None:
        raise ConfigError("syncer.relay.log-dir is not set: there is no relay log to restore from")
    checkpoint = loop.run(read_checkpoint(setup))
    if checkpoint is None:
        raise ConfigError("the downstream has no checkpoint, so nobody knows from where to restore")
    errors = Console(stderr=True)
    if checkpoint.consistent and end is None:
        say(f"nothing to do: consistent at commit_ts {checkpoint.commit_ts}", console=errors)
        return
    window = CommitWindow(Tso(checkpoint.commit_ts + 1), MAX_TS if end is None else end)
    wanted = table_filter(setup.config.syncer, asyncio.run(decided_skips(setup)))
    with ReadingProgress(errors) as shown:
        found = transactions(find_sources([setup.relay_dir]), window, meter=shown.meter)
        show_chosen(found, wanted, shown, as_json=as_json)
    say(
        f"{shown.count} transactions after the checkpoint {checkpoint.commit_ts}; nothing was"
        " changed. Of these, the downstream may have some already: they are not applied twice",
        console=errors,
    )
