"""What of the changes is replicated, and by which rules, as a configuration says it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from binlogd.drainer.filtering.event_filter import EventFilter, EventRule
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.filtering.pattern import regular
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.settings import config
from binlogd.settings.config import SyncerConfig
from binlogd.settings.setup import Setup
from binlogd.tso import Tso, compose


def table_filter(syncer: SyncerConfig, skipped: Container[Tso] = ()) -> TableFilter:
    """What is replicated; `skipped` is asked again for each transaction.

    Raises ConfigError for a pattern that is no regular expression.
    """

    def patterns(names: tuple[config.TableNameConfig, ...]) -> list[TablePattern]:
        return [TablePattern(name.db_name, name.tbl_name) for name in names]

    _check(syncer)
    return TableFilter(
        do_databases=syncer.replicate_do_db,
        do_tables=patterns(syncer.replicate_do_table),
        ignored_databases=_ignored(syncer),
        ignored_tables=patterns(syncer.ignore_table),
        ignored_commit_ts=_Either(frozenset(syncer.ignore_txn_commit_ts), skipped),
        events=_event_filter(syncer),
        routes=_router(syncer),
        loop=loop_control(syncer),
        executes_ddl=syncer.sync_ddl,
    )


def _ignored(syncer: SyncerConfig) -> list[str]:
    return [name.strip() for name in syncer.ignore_schemas.split(",") if name.strip()]


def _check(syncer: SyncerConfig) -> None:
    """Raises ConfigError that names the key, also where the pattern of a shape is none."""
    if not all(sql for rule in syncer.binlog_filter_rule.values() for sql in rule.ignore_sql):
        raise ConfigError("syncer.binlog-filter-rule: an ignore-sql is empty: .* is every DDL")
    tables = {
        "syncer.replicate-do-table": syncer.replicate_do_table,
        "syncer.ignore-table": syncer.ignore_table,
        "syncer.to.original-shape-table": syncer.to.original_shape_table,
    }
    named = [("syncer.replicate-do-db", name) for name in syncer.replicate_do_db]
    named += [("syncer.ignore-schemas", name) for name in _ignored(syncer)]
    for key, found in tables.items():
        named += [(key, name) for each in found for name in (each.db_name, each.tbl_name)]
    for key, name in named:
        if not name:
            raise ConfigError(f"{key}: a name is empty: leave it out, or write ~.* for all")
        if name.startswith("~"):
            regular(name[1:], f"{key}: ")


def _router(syncer: SyncerConfig) -> TableRouter:
    rules = [
        RouteRule(each.source.schema, each.source.table, each.target.schema, each.target.table)
        for each in syncer.table_migrate_rule
        if each.target is not None
    ]
    return TableRouter(rules, is_case_sensitive=syncer.case_sensitive)


@dataclass(frozen=True, slots=True)
class _Either(Container[Tso]):
    """What one of two holds, at the moment of asking."""

    one: Container[object]
    other: Container[object]

    def __contains__(self, commit_ts: object) -> bool:
        return commit_ts in self.one or commit_ts in self.other


def keeps_transactions_whole(syncer: SyncerConfig) -> bool:
    """Whether each source transaction is one downstream, in source order.

    Without dispatch the original applies each transaction alone, one after the other; this is what
    was asked for by it.
    """
    has_dispatch = syncer.enable_dispatch and not syncer.disable_dispatch
    return syncer.consistency == "transaction" or not has_dispatch


def loop_control(syncer: SyncerConfig) -> LoopControl | None:
    """The channel of a pair that replicates both ways; None where there is no loop."""
    return LoopControl(syncer.channel_id) if syncer.loopback_control else None


def _event_filter(syncer: SyncerConfig) -> EventFilter:
    rules = [
        EventRule(each.source.schema, each.source.table, named.ignore_event, named.ignore_sql)
        for each in syncer.table_migrate_rule
        for named in (syncer.binlog_filter_rule[name] for name in each.binlog_filter_rule)
    ]
    return EventFilter(rules, is_case_sensitive=syncer.case_sensitive)


def newest_ts(setup: Setup) -> Tso:
    """Nothing that is committed by now is above: a Pump would refuse it."""
    ahead_ms = int(setup.config.pump.timestamp_ahead_max * 1000)
    return compose(WallClock().wall_ms() + ahead_ms)


def tells_missing(syncer: SyncerConfig) -> bool:
    """Whether the log alone tells which rows the downstream holds: nobody else writes there, and
    no kind of change is left out."""
    leaves_out = any(each.binlog_filter_rule for each in syncer.table_migrate_rule)
    is_shared = syncer.loopback_control or not syncer.sync_ddl
    return not (leaves_out or is_shared or syncer.safe_mode)
