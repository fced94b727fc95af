"""`binlogd restore`."""

from __future__ import annotations

from rich.console import Console

from binlogd import app
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup


def restore(config_file: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Bring the downstream to a consistent state from the relay log alone.

    Applies what the relay log holds after the checkpoint, then marks the checkpoint consistent. The
    same happens at the start of `serve` when the upstream cannot be reached.
    """
    done = app.restore(load_setup(config_file, data_dir))
    console = Console()
    if done.was_consistent:
        console.print(f"nothing to do: consistent at commit_ts {done.to_ts}", highlight=False)
        return
    console.print(
        f"restored from commit_ts {done.from_ts} to {done.to_ts}: {done.transactions}"
        f" transactions, {done.rows} rows; the checkpoint is consistent",
        highlight=False,
    )
