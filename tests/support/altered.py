"""A table whose columns and name are altered, with rows in between: what TiDB logs and holds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from binlogd.tidb.defaults import missing_value
from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import Column, Table, table_to_json
from binlogd.tidb.row import Value, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support import snapshot_reader
from tests.support.data_directory import write_log
from tests.support.logged import Logged
from tests.support.recordings_reader import Row
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef, TableDef, build_column, build_table


@dataclass(frozen=True)
class Held:
    """The table at a moment: its rows as a reader should find them, in the order of its columns."""

    commit_ts: int
    table: str
    columns: tuple[Column, ...]
    rows: Counter[Row]


@dataclass
class Altered:
    """The table `s.t`, which begins with `rows` rows."""

    info: Table
    moments: list[Held] = field(default_factory=list)
    _jobs: list[dict[str, Any]] = field(default_factory=list)
    _payloads: list[bytes] = field(default_factory=list)
    _rows: dict[int, dict[int, Value]] = field(default_factory=dict)
    _ts: int = 1000
    _version: int = 1
    _column_id: int = 20

    @classmethod
    def of(cls, *columns: ColumnDef, rows: int) -> Altered:
        """With an integer key `id` before these columns."""
        key = ColumnDef("id", tidb.integer("BIGINT"), not_null=True)
        altered = cls(build_table(TableDef("s", "t", (key, *columns), ("id",)), 9))
        altered._job(ActionType.CREATE_SCHEMA, None)
        altered._job(ActionType.CREATE_TABLE, altered.info)
        altered.insert(*range(1, rows + 1))
        altered.end_batch()
        return altered

    def add(self, made: ColumnDef, *, is_first: bool = False) -> None:
        """ADD COLUMN, at the end or at the begin."""
        self._column_id += 1
        number, origin = self._column_id, made.default or None
        added = build_column(made, column_id=number, offset=0, origin_default=origin)
        rest = self.info.columns
        self._alter(ActionType.ADD_COLUMN, (added, *rest) if is_first else (*rest, added))
        for row in self._rows.values():
            row[number] = missing_value(added)

    def drop(self, name: str) -> None:
        """DROP COLUMN."""
        rest = tuple(each for each in self.info.columns if each.name != name)
        self._alter(ActionType.DROP_COLUMN, rest)

    def change(self, column: str, **to: Any) -> None:
        """MODIFY or CHANGE COLUMN that rewrites no row."""
        changed = (
            replace(each, **to) if each.name == column else each for each in self.info.columns
        )
        self._alter(ActionType.MODIFY_COLUMN, tuple(changed))

    def rename(self, name: str) -> None:
        """RENAME TABLE."""
        self.info = replace(self.info, name=name)
        self._job(ActionType.RENAME_TABLE, self.info)

    def insert(self, *ids: int) -> None:
        """New rows with a value in every column."""
        for number in ids:
            self._rows[number] = {each.id: _some(each, number) for each in self.info.columns}
        made = [encode_insert(self.info, self._rows[each], handle=each) for each in ids]
        self._write(Mutation(self.info.id, made, [], [], bytes(len(ids))))

    def touch(self, *ids: int) -> None:
        """New values in these rows."""
        old = [dict(self._rows[each]) for each in ids]
        for number in ids:
            self._rows[number] = {each.id: _some(each, number + 50) for each in self.info.columns}
            self._rows[number][self._id] = number
        pairs = zip(old, ids, strict=True)
        made = [encode_update(self.info, was, self._rows[each], handle=each) for was, each in pairs]
        self._write(Mutation(self.info.id, [], made, [], b"\1" * len(ids)))

    def end_batch(self) -> None:
        """What the table holds here is kept."""
        columns = self.info.columns
        rows = Counter(
            tuple(snapshot_reader.as_held(each, row.get(each.id)) for each in columns)
            for row in self._rows.values()
        )
        self.moments.append(Held(self._ts + 5, f"s.{self.info.name}", columns, rows))

    def logged(self, directory: Path) -> Logged:
        """All of it in a data directory."""
        write_log(directory / "data", self._payloads)
        (directory / "history.json").write_text(json.dumps(self._jobs))
        return Logged(directory / "data", directory / "history.json", None)  # type: ignore[arg-type]  # no workload

    @property
    def _id(self) -> int:
        return next(each.id for each in self.info.columns if each.name == "id")

    def _alter(self, kind: ActionType, columns: tuple[Column, ...]) -> None:
        placed = tuple(replace(each, offset=at) for at, each in enumerate(columns))
        self.info = replace(self.info, columns=placed)
        self._job(kind, self.info)

    def _job(self, kind: ActionType, info: Table | None) -> None:
        self._version += 1
        self._ts += 10
        binlog: dict[str, Any] = {"SchemaVersion": self._version, "FinishedTS": self._ts + 7}
        if info is not None:
            binlog["TableInfo"] = json.loads(table_to_json(info))
        job = {
            "id": self._ts,
            "type": int(kind),
            "schema_id": 2,
            "schema_name": "s",
            "table_id": info.id if info is not None else 0,
            "state": 6,
            "schema_state": 5,
            "start_ts": self._ts - 1,
            "query": f"job {self._ts}",
            "binlog": binlog,
        }
        self._jobs.append(job)
        told: dict[str, Any] = {"ddl_query": b"x", "ddl_job_id": self._ts, "ddl_schema_state": 5}
        self._payloads.append(prewrite_binlog(Tso(self._ts), **told))
        self._payloads.append(commit_binlog(Tso(self._ts), Tso(self._ts + 5), **told))

    def _write(self, mutation: Mutation) -> None:
        self._ts += 10
        value = encode_mutations(self._version, [mutation])
        self._payloads.append(prewrite_binlog(Tso(self._ts), prewrite_value=value))
        self._payloads.append(commit_binlog(Tso(self._ts), Tso(self._ts + 5)))


def _some(column: Column, number: int) -> Value:
    kind = tidb.type_sql(column.field_type)
    if kind.startswith("DATETIME"):
        return f"2026-01-{number % 28 + 1:02d} 00:00:00"
    if kind.startswith("VARCHAR"):
        return f"v{number}".encode()
    return float(number) if kind.startswith(("FLOAT", "DOUBLE")) else number
