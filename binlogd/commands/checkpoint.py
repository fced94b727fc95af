"""`binlogd checkpoint`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say
from binlogd.host import loop
from binlogd.tools.checkpoint import StoredCheckpoint, look, set_to
from binlogd.tso import MAX_TS, Tso


def checkpoint(
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    commit_ts: Annotated[
        int | None,
        typer.Option(
            "--set", min=0, max=MAX_TS, help="Begin behind this commit_ts at the next start."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the checkpoint in the database downstream, or set it to another commit_ts.

    --set moves the checkpoint and the progress of all lanes; binlogd must be stopped. It does not
    change the data: use it after you have restored a backup of the replica, with the position of
    that backup. If rows of tables without a key are still there, they are written once more.

        binlogd checkpoint --config binlogd.toml
        binlogd checkpoint --config binlogd.toml --set 445644800000000001
    """
    setup = load_setup(config_file, data_dir)
    if commit_ts is None:
        _show(loop.run(look(setup)), as_json=as_json)
        return
    before, after = loop.run(set_to(setup, Tso(commit_ts)))
    if not as_json:
        say(f"set from commit_ts {before.checkpoint.commit_ts} to {after.checkpoint.commit_ts}")
    _show(after, as_json=as_json)


def _show(stored: StoredCheckpoint, *, as_json: bool) -> None:
    document: dict[str, Any] = {
        "cluster_id": stored.cluster_id,
        "commit_ts": stored.checkpoint.commit_ts,
        "consistent": stored.checkpoint.consistent,
        "schema_version": stored.checkpoint.schema_version,
        "ts_map": dict(stored.checkpoint.ts_map),
        "lanes": [{"commit_ts": lane.commit_ts, "piece": lane.piece} for lane in stored.lanes],
        "ddl_begun": stored.ddl.commit_ts if stored.ddl else None,
        "set_by_hand": stored.is_set_back,
    }
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    for name, value in document.items():
        if name == "lanes":
            shown = ", ".join(
                f"{lane['commit_ts']}" + (f" + {lane['piece']} changes" if lane["piece"] else "")
                for lane in value
            )
        else:
            shown = "none" if value is None else str(value)
        say(f"{name:>15}  {shown}")
