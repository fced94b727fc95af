"""Which kinds of changes are left out for which tables: `table-migrate-rule` and its filter rules.

A rule has a pattern for the schema and one for the table, a list of events and a list of regular
expressions. The events are walked in order and the first that decides, decides: `none` ends the
walk, an equal name or `all` ignores. What the events did not ignore of a DDL is searched for the
expressions, which know no case. One rule that ignores is enough. A statement that is none of the
events (`event_of` says "") can only be caught by an expression.

Patterns are those of `glob`. A rule without a table pattern holds for the schema and all that is in
it; one with a table pattern does not hold for CREATE, ALTER and DROP DATABASE.

Source: tidb-binlog pkg/binlogfilter, tidb-tools pkg/binlog-filter and pkg/table-rule-selector.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial

import msgspec

from binlogd.drainer.filtering.pattern import glob, regular
from binlogd.errors import ConfigError
from binlogd.tidb.ddl_text import words
from binlogd.tidb.kinds import DELETE, INSERT, UPDATE
from binlogd.wire.mutation import Mutation

_ROW_EVENTS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_THINGS = {
    "CREATE": ("DATABASE", "SCHEMA", "TABLE", "INDEX", "VIEW"),
    "DROP": ("DATABASE", "SCHEMA", "TABLE", "INDEX", "VIEW"),
    "ALTER": ("DATABASE", "SCHEMA", "TABLE"),
    "TRUNCATE": ("TABLE",),
    "RENAME": ("TABLE",),
}
_DDL_EVENTS = {f"{verb} {thing}".lower() for verb, things in _THINGS.items() for thing in things}
_OF_PARTITIONS = {f"{verb} table partition" for verb in ("add", "drop", "truncate")}
_GROUPS = frozenset({"all", "all ddl", "all dml", "none", "none ddl", "none dml", ""})
_ALIASES = {
    "create schema": "create database",
    "drop schema": "drop database",
    "alter schema": "alter database",
}
EVENTS = frozenset({*_ROW_EVENTS, *_DDL_EVENTS, *_OF_PARTITIONS, *_GROUPS})
"""Every event name that a rule may list."""

_WORDS_BEFORE_THE_THING_MAX = 12
_ANSWERS_KEPT_MAX = 10_000
_IGNORE_SQL = "syncer.binlog-filter-rule: ignore-sql "


class EventRule(msgspec.Struct, frozen=True):
    """What is ignored of the tables that both patterns match; `table` "" stands for the schema."""

    schema: str
    table: str
    events: tuple[str, ...] = ()
    sql_patterns: tuple[str, ...] = ()


class EventFilter:
    """Asked for every DDL and every table of a transaction. Raises ConfigError when made."""

    def __init__(self, rules: Iterable[EventRule] = (), *, is_case_sensitive: bool = False) -> None:
        self._rules = [_Rule(rule, is_case_sensitive=is_case_sensitive) for rule in rules]
        self.has_rules = bool(self._rules)
        """Without any, everything is kept."""
        self._ignored_kinds = lru_cache(_ANSWERS_KEPT_MAX)(self._ignored_row_kinds)

    def ignores_ddl(self, database: str, table: str, query: str) -> bool:
        """Whether a statement, as its user typed it, is left out."""
        if not self._rules:
            return False
        event = event_of(query)
        return any(
            rule.decides(event, is_ddl=True) or rule.finds(query)
            for rule in self._rules
            if rule.matches(database, table)
        )

    def kept(self, database: str, table: str, mutation: Mutation) -> Mutation:
        """The mutation without the rows that are left out; itself when it keeps all."""
        ignored = self._ignored_kinds(database, table)
        if not ignored.intersection(mutation.sequence):
            return mutation
        return Mutation(
            mutation.table_id,
            [] if INSERT in ignored else mutation.inserted,
            [] if UPDATE in ignored else mutation.updated,
            [] if DELETE in ignored else mutation.deleted,
            mutation.sequence.translate(None, delete=bytes(ignored)),
        )

    def _ignored_row_kinds(self, database: str, table: str) -> frozenset[int]:
        rules = [rule for rule in self._rules if rule.matches(database, table)]
        return frozenset(
            kind
            for event, kind in _ROW_EVENTS.items()
            if any(rule.decides(event, is_ddl=False) for rule in rules)
        )


def event_of(query: str) -> str:
    """The event that a DDL's text is, such as "create table"; "" for what has no name here."""
    said = [word.text.upper() for word in words(query) if word.kind == "bare"]
    things = _THINGS.get(said[0], ()) if said else ()
    for word in said[1:_WORDS_BEFORE_THE_THING_MAX]:
        if word in things:
            event = f"{said[0]} {word}".lower()
            return _ALIASES.get(event, event)
    return "truncate table" if said[:1] == ["TRUNCATE"] else ""


class _Rule:
    def __init__(self, rule: EventRule, *, is_case_sensitive: bool) -> None:
        read = partial(glob, is_case_sensitive=is_case_sensitive)
        self._schema = read(rule.schema)
        self._table = read(rule.table) if rule.table else None
        self._events = [_event(name) for name in rule.events]
        self._expressions = [regular(each, _IGNORE_SQL) for each in rule.sql_patterns]

    def matches(self, database: str, table: str) -> bool:
        if not self._schema(database):
            return False
        return self._table is None or (bool(table) and self._table(table))

    def decides(self, event: str, *, is_ddl: bool) -> bool:
        """Whether the event is among those of the rule: the first of its names that covers it says
        so. "" is no event."""
        if not event:
            return False
        group = "ddl" if is_ddl else "dml"
        for name in self._events:
            if name in ("none", f"none {group}"):
                return False
            if name in ("all", f"all {group}") or name == event:
                return True
        return False

    def finds(self, query: str) -> bool:
        return any(holds(query) for holds in self._expressions)


def _event(name: str) -> str:
    lowered = name.strip().lower()
    if lowered not in EVENTS:
        known = ", ".join(sorted(EVENTS - {""}))
        raise ConfigError(f'syncer.binlog-filter-rule: unknown event "{name}"; known: {known}')
    return _ALIASES.get(lowered, lowered)
