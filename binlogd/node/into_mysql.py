"""Into a MySQL, a MariaDB or a TiDB, as a configuration says it."""

from __future__ import annotations

import random
from collections.abc import Set
from contextlib import closing

from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.mysql.trash import TrashOptions
from binlogd.drainer.rows.conflict import lanes_for
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.sink import RowNotFoundRule
from binlogd.errors import ConfigError
from binlogd.node.replicated import keeps_transactions_whole, loop_control, newest_ts, tells_missing
from binlogd.settings.config import SyncerConfig
from binlogd.settings.quantities import retention_s
from binlogd.settings.setup import Setup, plain_tls
from binlogd.tso import Tso


def mysql_sink(setup: Setup, cluster_id: int, skipped: Set[Tso]) -> MySqlSink:
    """Not opened yet."""
    server, of_rows = downstream_server(setup), mysql_options(setup, skipped)
    return MySqlSink(server, cluster_id, of_rows, random.Random())


async def reach_mysql(setup: Setup) -> str:
    """Opens a session, also where the checkpoint is, and tells what its user lacks."""
    server, elsewhere = downstream_server(setup), _checkpoint_server(setup)
    with closing(await SqlSession.connect(server)) as session:
        is_lacking = await catalog.lacks_process(session)
    if elsewhere is not None:
        (await SqlSession.connect(elsewhere)).close()
    if not is_lacking:
        return ""
    return (
        f"the downstream's user {server.user} lacks the PROCESS privilege: an interrupted swap of"
        " tables or EXCHANGE PARTITION will stop and ask; see deploy/grants.sql"
    )


def mysql_options(setup: Setup, skipped: Set[Tso] = frozenset()) -> MySqlSinkOptions:
    """Of a sink that is a database with a server. Raises ConfigError."""
    syncer = setup.config.syncer
    return MySqlSinkOptions(
        lanes=lanes_for(syncer.worker_count),
        is_transactional=keeps_transactions_whole(syncer),
        has_positions=syncer.db_type == "tidb",
        loop=loop_control(syncer),
        schema=syncer.to.checkpoint.schema,
        checkpoint_table=syncer.to.checkpoint.table,
        checkpoint_server=_checkpoint_server(setup),
        limits=_limits(syncer),
        shapes=_shapes(syncer),
        row_not_found=RowNotFoundRule(syncer.row_not_found),
        tells_missing=tells_missing(syncer),
        passed_over=syncer.ignore_txn_commit_ts or skipped,
        now_ts=newest_ts(setup),
        trash=_trash_options(setup),
    )


def _shapes(syncer: SyncerConfig) -> Shapes:
    """Which tables are written in the original's words. Raises ConfigError for a bad pattern."""
    to = syncer.to
    leaves_out = to.sync_mode == 2
    if to.sql_shape == "original":
        tables = TableFilter(ignored_databases=())
    elif to.original_shape_table:
        patterns = [TablePattern(each.db_name, each.tbl_name) for each in to.original_shape_table]
        tables = TableFilter(do_tables=patterns, ignored_databases=())
    else:
        return Shapes(leaves_out_columns=leaves_out)
    return Shapes(tables, syncer.safe_mode, to.merge, leaves_out_columns=leaves_out)


def _limits(syncer: SyncerConfig) -> Limits:
    """`txn-batch` counts where all tables are written a statement a row."""
    if syncer.to.sql_shape != "original" or syncer.to.merge:
        return Limits()
    return Limits(changes_max=syncer.txn_batch)


def downstream_server(setup: Setup) -> MySqlServer:
    """Where the database downstream is."""
    to = setup.config.syncer.to
    return MySqlServer(
        host=to.host,
        port=to.port,
        user=to.user,
        password=to.password,
        sql_mode=setup.config.syncer.sql_mode,
        params=to.params,
        tls=plain_tls(to.security),
    )


def make_store(setup: Setup, cluster_id: int | None) -> MySqlStore:
    """The checkpoint and progress rows downstream. Raises ConfigError where there are none."""
    syncer = setup.config.syncer
    if syncer.db_type not in ("mysql", "tidb"):
        raise ConfigError(
            f'syncer.db-type "{syncer.db_type}" keeps its checkpoint with its files in'
            f" {setup.sink_dir}: they go back together, from a copy"
        )
    return store_at(setup, downstream_server(setup), cluster_id, _checkpoint_server(setup))


def store_at(
    setup: Setup, server: MySqlServer, cluster_id: int | None, elsewhere: MySqlServer | None = None
) -> MySqlStore:
    """The same on a server; `elsewhere` has the checkpoint, where that is another one."""
    place = setup.config.syncer.to.checkpoint
    return MySqlStore(server, place.schema, cluster_id or 0, place.table, elsewhere)


def _checkpoint_server(setup: Setup) -> MySqlServer | None:
    """None where the checkpoint is with the data."""
    place, table = setup.config.syncer.to.checkpoint, "syncer.to.checkpoint"
    if not place.host:
        return None
    tls = plain_tls(place.security)
    return MySqlServer(place.host, place.port, place.user, place.password, tls=tls, table=table)


def _trash_options(setup: Setup) -> TrashOptions | None:
    settings = setup.config.drainer
    if not settings.trash_schema:
        return None
    keep_s = retention_s("drainer.trash-retention", settings.trash_retention)
    return TrashOptions(settings.trash_schema, keep_s)
