"""Which tables, and which transactions, are replicated.

A pattern is a name or, behind `~`, a regular expression that is searched for; both ignore case. A
name is compared as it is, and, as the original takes every name for a regular expression of the
whole, in that way as well: `a.b` is the table `a.b` and also `axb`.

The allow lists come first: with any of them given, a table must match `replicate-do-table`, or its
schema `replicate-do-db`. Then what `ignore-table` or `ignore-schemas` matches is left out. Of what
remains, `events` may leave out kinds of changes; `routes` tells what tables are called downstream.

A transaction of `ignore-txn-commit-ts`, or one that an operator skips while it runs, is not
applied, but a DDL in it still moves the schema tracker: the original does not even note it, and
then stops at the first row of a table made so.
Source: tidb-binlog pkg/filter/filter.go, drainer/syncer.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container
from functools import lru_cache

import msgspec

from binlogd.drainer.filtering.event_filter import EventFilter
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.filtering.pattern import Matches, regular
from binlogd.drainer.filtering.route import TableRouter
from binlogd.errors import ConfigError
from binlogd.tso import Tso

DEFAULT_IGNORED_SCHEMAS = ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql")
_ANSWERS_KEPT_MAX = 10_000


class TablePattern(msgspec.Struct, frozen=True):
    """A pattern for the schema and one for the table."""

    database: str
    table: str


class TableFilter:
    """Answers are kept: the same tables come again and again. Raises ConfigError when made."""

    def __init__(  # noqa: PLR0913 - one for each list of the configuration
        self,
        *,
        do_databases: Collection[str] = (),
        do_tables: Collection[TablePattern] = (),
        ignored_databases: Collection[str] = DEFAULT_IGNORED_SCHEMAS,
        ignored_tables: Collection[TablePattern] = (),
        ignored_commit_ts: Container[Tso] = (),
        events: EventFilter | None = None,
        routes: TableRouter | None = None,
        loop: LoopControl | None = None,
        executes_ddl: bool = True,
    ) -> None:
        self.routes = routes or TableRouter()
        self.events = events or EventFilter()
        self.loop = loop
        """The channel of which nothing is replicated; None: there is no loop."""
        self.executes_ddl = executes_ddl
        """Otherwise only rows are applied: the shape of the downstream is somebody else's."""
        self._allows_all = not do_databases and not do_tables
        self._is_allowed = _listed(do_databases, do_tables)
        self._is_ignored = _listed(ignored_databases, ignored_tables)
        self.ignores_transaction: Callable[[Tso], bool] = ignored_commit_ts.__contains__
        """Whether an operator chose to pass over a transaction."""
        self.replicates: Callable[[str, str], bool] = lru_cache(_ANSWERS_KEPT_MAX)(self._replicates)
        """Whether changes of a table are applied; `table` "" asks for the database itself."""

    def _replicates(self, database: str, table: str) -> bool:
        is_allowed = self._allows_all or self._is_allowed(database, table)
        return is_allowed and not self._is_ignored(database, table)


def _listed(
    databases: Collection[str], tables: Collection[TablePattern]
) -> Callable[[str, str], bool]:
    """Whether a table is in one of these databases, or is one of these tables."""
    of_databases = [_matcher(text) for text in databases]
    of_tables = [(_matcher(each.database), _matcher(each.table)) for each in tables]
    return lambda database, table: (
        any(matches(database) for matches in of_databases)
        or any(of_database(database) and of_table(table) for of_database, of_table in of_tables)
    )


def _matcher(pattern: str) -> Matches:
    if pattern.startswith("~"):
        return regular(pattern[1:])
    equals = regular(re.escape(pattern), is_whole=True)
    if re.escape(pattern) == pattern:
        return equals
    try:
        matches = regular(pattern, is_whole=True)
    except ConfigError:
        return equals
    return lambda name: equals(name) or matches(name)
