"""`binlogd verify`."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import VerifyProgress
from binlogd.commands.options import ConfigOption, load_setup
from binlogd.commands.output import say, say_json, say_verdicts
from binlogd.commands.replay import server_of
from binlogd.drainer.filtering.filter import DEFAULT_IGNORED_SCHEMAS, TableFilter
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.node.into_mysql import downstream_server, make_store, store_at
from binlogd.node.replicated import table_filter
from binlogd.settings.setup import Setup
from binlogd.tools.chosen import table_patterns
from binlogd.tools.shown import printable
from binlogd.tools.verify import TableVerdict, VerifyRequest
from binlogd.tools.verify import verify as verify_tables
from binlogd.tso import NO_TS, Tso


def verify(
    upstream: Annotated[
        str, typer.Option("--upstream", help="mysql://user:password@host:4000, the TiDB.")
    ],
    downstream: Annotated[
        str | None,
        typer.Option("--downstream", help="The replica; without it that of the configuration."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="DB or DB.TABLE, names or ~expressions; may be repeated."),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            help="Read the TiDB as of: checkpoint (the replica's, if it is consistent), now, or a"
            " TSO.",
        ),
    ] = "checkpoint",
    config_file: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: a line of JSON per table.")
    ] = False,
) -> None:
    """Compare every replicated table of the replica with the upstream's, part by part.

    If the checkpoint is consistent (binlogd is stopped, or has applied everything), TiDB is read as
    of its commit_ts. Otherwise a part that differs is read again for some seconds. TiDB may be
    written to in both cases. The exit code is 1 if a table differs.

        binlogd verify --upstream mysql://reader@tidb:4000 --table shop
    """
    setup = load_setup(config_file)
    target, schema = _downstream(downstream, setup), setup.config.syncer.to.checkpoint.schema
    known_id = setup.config.upstream.cluster_id
    place = store_at(setup, target, known_id) if downstream else make_store(setup, known_id)
    source = server_of(upstream, "+00:00", "--upstream")
    wanted = table_filter(setup.config.syncer)
    if table:
        wanted = TableFilter(
            do_tables=table_patterns(table, "--table"),
            ignored_databases=DEFAULT_IGNORED_SCHEMAS,
            routes=wanted.routes,
        )
    at_ts = loop.run(_moment(at, place))
    own = tuple(each for each in (schema, setup.config.drainer.trash_schema) if each)
    request = VerifyRequest(source, target, wanted, at_ts, own)
    with VerifyProgress(Console(stderr=True)) as shown:
        verdicts = loop.run(_all(request, shown))
    if not verdicts:
        raise ConfigError(
            "neither server has a table that is replicated and that its user may see: check"
            " --table, the filters of the configuration, and the rights of both users"
        )
    differing = [each for each in verdicts if each.reason]
    if as_json:
        for each in verdicts:
            say_json(each)
    else:
        _say(verdicts, at_ts)
    if differing:
        raise typer.Exit(1)


def _downstream(url: str | None, setup: Setup) -> MySqlServer:
    if url is not None:
        return server_of(url, "+00:00", "--downstream")
    if setup.config.syncer.db_type not in ("mysql", "tidb"):
        raise ConfigError(
            f'the configured downstream is "{setup.config.syncer.db_type}", no database server;'
            " give --downstream mysql://user:password@host:port"
        )
    return downstream_server(setup)


async def _moment(at: str, place: MySqlStore) -> Tso:
    """The timestamp to read the upstream at; NO_TS is now."""
    if at == "now":
        return NO_TS
    if at.isascii() and at.isdigit():
        return Tso(int(at))
    if at != "checkpoint":
        raise ConfigError(f"--at {at}: expected checkpoint, now, or a TSO")
    with closing(place):
        checkpoint = await place.stored()
    return checkpoint.commit_ts if checkpoint is not None and checkpoint.consistent else NO_TS


async def _all(request: VerifyRequest, shown: VerifyProgress) -> list[TableVerdict]:
    return [each async for each in verify_tables(request, shown.report)]


def _say(verdicts: list[TableVerdict], at_ts: Tso) -> None:
    rows = ((f"{each.database}.{each.table}", each.rows, each.reason, ()) for each in verdicts)
    say_verdicts(rows, "equal")
    for each in verdicts:
        for example in each.examples:
            say(printable(f"{each.database}.{each.table} {example}"))
    when = f"as of commit_ts {at_ts}" if at_ts else "as it is now"
    equal = sum(1 for each in verdicts if not each.reason)
    say(f"{equal} of {len(verdicts)} tables are equal, {when}")
