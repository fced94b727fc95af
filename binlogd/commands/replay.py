"""`binlogd replay`."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from binlogd.commands.console import ReadingProgress
from binlogd.commands.output import say, say_json, warn
from binlogd.commands.reading import FromOption, JsonLinesOption, ToOption, show_chosen, window_of
from binlogd.drainer.filtering.filter import DEFAULT_IGNORED_SCHEMAS, TableFilter
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.named_apply import NamedCounters
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.tools.chosen import table_patterns
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.replay import Replayed, only_named
from binlogd.tools.replay import replay as replay_into
from binlogd.tso import MAX_TS, Tso

_TABLES_SHOWN_MAX = 5


def replay(  # noqa: PLR0913 - typer makes each parameter an option
    paths: Annotated[list[Path], typer.Argument(help="Directories or files: binlog-*.")],
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="mysql://user:password@host:3306; a password may stand in MYSQL_PSWD. Without"
            " it, what would be applied is printed.",
        ),
    ] = None,
    start: FromOption = None,
    stop: ToOption = None,
    do_table: Annotated[
        list[str] | None,
        typer.Option("--do", help="Only these: DB or DB.TABLE, names or ~expressions."),
    ] = None,
    ignore_table: Annotated[
        list[str] | None,
        typer.Option("--ignore", help="None of these: DB or DB.TABLE, names or ~expressions."),
    ] = None,
    ignore_commit_ts: Annotated[
        list[int] | None,
        typer.Option("--ignore-commit-ts", min=1, max=MAX_TS, help="Pass over a transaction."),
    ] = None,
    safe_mode: Annotated[
        bool,
        typer.Option("--safe-mode", help="Some of it may be applied already: REPLACE, not INSERT."),
    ] = False,
    time_zone: Annotated[
        str,
        typer.Option(
            help="The zone of TIMESTAMP values in the files: UTC, or for files of a Go Drainer that"
            " of its process."
        ),
    ] = "+00:00",
    as_json: JsonLinesOption = False,
) -> None:
    """Apply files of a file sink to MySQL, MariaDB or TiDB, or print them, as TiDB Binlog's reparo.

    Reads the binlog-* files of binlogd and of a Go Drainer, its relay log too, compressed or not.
    Several directories are merged into one commit order. Transactions are applied whole and in
    order. If it stops, it says how far it came and how to continue.

        binlogd replay /var/lib/binlogd/files --into mysql://binlogd@replica:3306
    """
    wanted = TableFilter(
        do_tables=table_patterns(do_table or (), "--do"),
        ignored_databases=DEFAULT_IGNORED_SCHEMAS,
        ignored_tables=table_patterns(ignore_table or (), "--ignore"),
        ignored_commit_ts=[Tso(ts) for ts in ignore_commit_ts or ()],
    )
    window, sources = window_of(start, stop), find_sources(paths)
    only_named(sources)
    with ReadingProgress(Console(stderr=True)) as shown:
        found = transactions(sources, window, meter=shown.meter)
        if into is None:
            show_chosen(found, wanted, shown, as_json=as_json)
            return
        done = loop.run(
            replay_into(
                found,
                wanted,
                server_of(into, time_zone),
                is_safe=safe_mode,
                progress=lambda _: shown.advance(),
            )
        )
    _say(done, as_json=as_json)
    end_of(done.counters)


def _say(done: Replayed, *, as_json: bool) -> None:
    counters = done.counters
    if as_json:
        say_json({"commit_ts": done.to_ts, **msgspec.to_builtins(counters)})
        return
    say(
        f"applied up to commit_ts {done.to_ts}: {counters.transactions} transactions,"
        f" {counters.rows} rows, {counters.ddls} DDL"
    )
    if counters.rows_missing:
        tables = ", ".join(name for name, _ in counters.missing_in.most_common(_TABLES_SHOWN_MAX))
        say(
            "the target was not what the files begin with, or a DDL gave its rows other values than"
            " TiDB gave them (docs/howto/tools.md)",
            f"{counters.rows_missing} updates or deletes found no row, most of them of {tables}:",
        )


def end_of(counters: NamedCounters) -> None:
    """Says which columns the target lacks. Raises Exit where it did not take all."""
    if counters.columns_missing:
        names = ", ".join(counters.columns_missing[:_TABLES_SHOWN_MAX])
        warn(f"the target lacks columns, and what they hold was left out: {names}")
    if counters.columns_missing or counters.rows_missing:
        raise typer.Exit(1)


def server_of(url: str, time_zone: str, option: str = "--into") -> MySqlServer:
    """The server that a URL names, which `option` gave. Raises ConfigError."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port or 3306
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("mysql", "mariadb", "tidb"):
        raise ConfigError(f"{option}: expected mysql://user:password@host:port")
    if behind := parts._replace(scheme="", netloc="").geturl().strip("/"):
        raise ConfigError(
            f"{option}: expected mysql://user:password@host:port, and nothing behind it: {behind}"
            " would be passed over (in a user or password, write / ? # as %2F %3F %23)"
        )
    if parts.password:
        warn(
            f"others on this machine may see the password in {option}; leave it out there, and set"
            " MYSQL_PSWD"
        )
    password = os.environ.get("MYSQL_PSWD", "")
    if parts.password is not None:
        password = urllib.parse.unquote(parts.password)
    return MySqlServer(
        host=host,
        port=port,
        user=urllib.parse.unquote(parts.username or "binlogd"),
        password=password,
        time_zone=time_zone,
    )
