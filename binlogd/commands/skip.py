"""`binlogd skip`."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from binlogd import offline_commands
from binlogd.commands.options import (
    AddrOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    load_asking,
)
from binlogd.commands.output import say, say_json, say_reply, say_table
from binlogd.commands.running import document_at, put
from binlogd.errors import NotRunning
from binlogd.settings.quantities import wall_clock_ms
from binlogd.tso import MAX_TS, Tso
from binlogd.upstream.store import AGAIN, SkipEntry


def skip(
    commit_ts: Annotated[
        int | None, typer.Argument(min=1, max=MAX_TS, help="The commit_ts that the error names.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; it is kept with the decision.")
    ] = "",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Skip a transaction or DDL at which the replication is stuck, or list the skips.

    The decision and its reason are kept in the data directory. A running binlogd continues at once,
    a stopped one at its next start. A skipped DDL still counts as done upstream: make the same
    change downstream by hand. First look at the transaction with `binlogd txn`.

        binlogd skip 445644800000000001 --reason "the row is in the archive database"
    """
    setup = load_asking(config_file, addr, data_dir)
    if commit_ts is None:
        try:
            decided = document_at(setup, "/skips", list[SkipEntry])
        except NotRunning:
            decided = offline_commands.decided_skips(setup)
        _show(decided, as_json=as_json)
        return
    try:
        answer = put(setup, f"/skips/{commit_ts}?reason={quote(reason)}")
    except NotRunning:
        is_new = offline_commands.skip(setup, Tso(commit_ts), reason)
        when = " from the next start on" if is_new else AGAIN
        said = f"commit_ts {commit_ts} is passed over{when}"
        answer = {"message": said, "code": HTTPStatus.OK}
    say_reply(answer, as_json=as_json)


def _show(decided: Sequence[SkipEntry], *, as_json: bool) -> None:
    if as_json:
        say_json(decided)
        return
    if not decided:
        say("nothing is skipped")
        return
    rows = (
        (str(each.commit_ts), wall_clock_ms(each.decided_ms), escape(each.reason))
        for each in decided
    )
    say_table(("commit_ts", "decided", "reason"), rows)
