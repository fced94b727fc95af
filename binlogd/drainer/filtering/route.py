"""What tables are called downstream: `table-migrate-rule` with a `target`.

A rule with a table pattern goes before one for the whole schema; a target without a table keeps the
table's name. Filters see upstream's names. Two tables of the upstream are never one downstream:
their DDL would come twice, and their rows would meet.

Source: tidb-tools pkg/table-router; the original routes for its Oracle sink only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial

import msgspec

from binlogd.drainer.filtering.pattern import glob
from binlogd.errors import ConfigError
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import TableAt
from binlogd.tidb.per_table import PerTable

KEPT_MAX = 20_000


class RouteRule(msgspec.Struct, frozen=True):
    """From what both patterns match (`table` "" is all of the schema) to a name."""

    schema: str
    table: str
    target_schema: str
    target_table: str = ""


class TableRouter:
    """Raises ConfigError when made of a pattern that is none."""

    def __init__(self, rules: Iterable[RouteRule] = (), *, is_case_sensitive: bool = False) -> None:
        read = partial(glob, is_case_sensitive=is_case_sensitive)
        compiled = [
            (read(rule.schema), read(rule.table) if rule.table else None, rule) for rule in rules
        ]
        self._of_tables = [(s, t, rule) for s, t, rule in compiled if t is not None]
        self._of_schemas = [(s, rule) for s, t, rule in compiled if t is None]
        self.has_rules = bool(compiled)
        self._named = lru_cache(KEPT_MAX)(self._routed)
        self.table = PerTable(self._table, KEPT_MAX).of
        """A table under its name downstream; the same object for the same one."""
        self._owners: dict[tuple[str, str], Named] = {}
        self._owners_max = KEPT_MAX

    def name(self, name: Named) -> Named:
        """What a table, or with `table` "" a database, is called downstream. Raises ConfigError
        where more than one rule of a kind matches."""
        return self._named(name) if self.has_rules and name.database else name

    def _table(self, table: TableAt) -> TableAt:
        name = self.name(Named(table.database, table.info.name))
        return replace(table, database=name.database, info=replace(table.info, name=name.table))

    def reserve(self, name: Named, exists: Callable[[Named], bool]) -> None:
        """Called for each table that comes; `exists` tells whether one is still upstream. Raises
        ConfigError for a second one with the same name downstream."""
        if len(self._owners) >= self._owners_max:
            self._owners = {key: owner for key, owner in self._owners.items() if exists(owner)}
            self._owners_max = max(KEPT_MAX, 2 * len(self._owners))
        target = self.name(name)
        key = target.database.lower(), target.table.lower()
        owner = self._owners.setdefault(key, name)
        if owner == name:
            return
        if exists(owner) and self.name(owner) == target:
            raise ConfigError(
                f"syncer.table-migrate-rule: {owner.database}.{owner.table} and"
                f" {name.database}.{name.table} would both be {target.database}.{target.table}"
                " downstream; give them targets of their own"
            )
        self._owners[key] = name

    def _routed(self, name: Named) -> Named:
        rules = [
            rule
            for schema, table, rule in self._of_tables
            if name.table and schema(name.database) and table(name.table)
        ] or [rule for schema, rule in self._of_schemas if schema(name.database)]
        if not rules:
            return name
        if len(rules) > 1:
            targets = ", ".join(f"{rule.target_schema}.{rule.target_table}" for rule in rules)
            raise ConfigError(
                f"syncer.table-migrate-rule: several rules of a kind match {name.database}."
                f"{name.table} (to {targets}); make their patterns exclude each other"
            )
        target_table = rules[0].target_table if rules[0].table else ""
        return Named(rules[0].target_schema or name.database, target_table or name.table)
