"""One table over time, and what the next DDL of it gives away.

`TableAt.aliases` and `may_lack_columns` come from two places: the DDLs that have been, and the one
that is coming (see schema.py for why rows run ahead of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from binlogd.tidb.ddl_text import changed_columns
from binlogd.tidb.model import Job, Table, TableAt, table_from_json, table_to_json

_OLDER_KEPT = 2
_SEEN_KEPT_MAX = 16
_NO_ALIASES: Mapping[int, int] = MappingProxyType({})


class RawTable(NamedTuple):
    """A table that was not looked at yet: decoding ten thousand of them takes seconds."""

    id: int
    name: str
    raw: bytes


def _decoded(kept: Table | RawTable) -> Table:
    return table_from_json(kept.raw) if isinstance(kept, RawTable) else kept


def _encoded(kept: Table | RawTable) -> msgspec.Raw:
    return msgspec.Raw(kept.raw if isinstance(kept, RawTable) else table_to_json(kept))


@dataclass(slots=True)
class Tracked:
    """A table, the schema version that made it so, and what it was before (newest first)."""

    schema_id: int
    kept: Table | RawTable
    version: int
    older: tuple[tuple[int, Table | RawTable], ...] = ()
    is_dropping_columns: bool = False
    _seen: dict[tuple[int, bool, int], TableAt] = field(default_factory=dict)

    @property
    def info(self) -> Table:
        """The table. Raises Corrupt the first time it is looked at."""
        if isinstance(self.kept, RawTable):
            self.kept = _decoded(self.kept)
        return self.kept

    @property
    def id(self) -> int:
        """Of the table, also without a look at it."""
        return self.kept.id

    @property
    def name(self) -> str:
        """Of the table, also without a look at it."""
        return self.kept.name

    def replaced(self, info: Table, version: int) -> Tracked:
        """The same table after a DDL."""
        older = ((self.version, self.kept), *self.older)[:_OLDER_KEPT]
        return Tracked(self.schema_id, info, version, older)

    def copy(self) -> Tracked:
        """The same, with answers of its own."""
        return replace(self, _seen={})

    def set_dropping(self, *, is_dropping_columns: bool) -> None:
        """Rows may lack columns from here on, or no longer."""
        self.is_dropping_columns = is_dropping_columns
        self._seen.clear()

    def at(self, schema_version: int, coming: Job | None) -> TableAt | None:
        """The answer given before to rows that see the same, if there was one."""
        return self._seen.get(self._key(schema_version, coming))

    def see(self, schema_version: int, database: str, coming: Job | None) -> TableAt:
        """What rows of a schema version see, `coming` being the next job they may run ahead of."""
        at_version, is_behind, _ = key = self._key(schema_version, coming)
        at_kept = next((kept for version, kept in self.older if version == at_version), None)
        at_info = _decoded(at_kept) if at_kept is not None else None
        after = coming.table if coming is not None else None
        answer = TableAt(
            database=database,
            info=self.info,
            version=self.version,
            defaults_from=at_info,
            aliases=_aliases(self.info, after, coming.query) if coming and after else _NO_ALIASES,
            may_lack_columns=is_behind or self.is_dropping_columns or _drops(self.info, after),
        )
        if len(self._seen) >= _SEEN_KEPT_MAX:
            self._seen.clear()
        self._seen[key] = answer
        return answer

    def _key(self, schema_version: int, coming: Job | None) -> tuple[int, bool, int]:
        """Which version was current (the oldest kept, if none), if it is past, and what comes."""
        coming_id = coming.id if coming is not None else 0
        if schema_version >= self.version:
            return self.version, False, coming_id
        versions = [version for version, _ in self.older]
        at = next((version for version in versions if version <= schema_version), None)
        return at if at is not None else (versions or [self.version])[-1], True, coming_id


def _aliases(now: Table, after: Table, query: str) -> Mapping[int, int]:
    """Ids that only the coming table has, to the columns they take the place of."""
    known = {column.id for column in now.columns}
    coming = {column.id for column in after.columns}
    vanishing = {
        column.name.lower(): column.id for column in now.columns if column.id not in coming
    }
    new = {column.name.lower(): column.id for column in after.columns if column.id not in known}
    if not (vanishing and new):
        return _NO_ALIASES
    old_names = changed_columns(query)
    return {
        new_id: vanishing[old]
        for name, new_id in new.items()
        for old in (old_names.get(name, name),)
        if old in vanishing
    }


def _drops(now: Table, after: Table | None) -> bool:
    if after is None:
        return False
    return not {column.id for column in now.columns} <= {column.id for column in after.columns}


class Coming(NamedTuple):
    """A job of the history whose turn has not come; rows above `after_version` may know it."""

    job: Job
    after_version: int


class TrackedJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table over time, as JSON."""

    schema_id: int
    version: int
    info: msgspec.Raw
    older: tuple[tuple[int, msgspec.Raw], ...] = ()
    is_dropping_columns: bool = False
    id: int = 0
    name: str = ""

    @classmethod
    def of(cls, tracked: Tracked) -> TrackedJson:
        """The JSON of a table."""
        return cls(
            tracked.schema_id,
            tracked.version,
            _encoded(tracked.kept),
            tuple((version, _encoded(kept)) for version, kept in tracked.older),
            tracked.is_dropping_columns,
            tracked.id,
            tracked.name,
        )

    def tracked(self) -> Tracked:
        """The table of the JSON, not looked at. Raises Corrupt."""
        raw = RawTable(self.id, self.name, bytes(self.info))
        return Tracked(
            self.schema_id,
            raw if self.id else _decoded(raw),
            self.version,
            tuple(
                (version, RawTable(self.id, self.name, bytes(raw))) for version, raw in self.older
            ),
            self.is_dropping_columns,
        )
