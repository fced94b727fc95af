"""Random logs of three tables (an integer key, a clustered text key, none), and what they hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import TableEntry
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, table_to_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import Mutation, encode_mutations


def column(number: int, name: str, tp: int, flag: int = 0, **kind: Any) -> Column:
    return Column(number, name, number - 1, FieldType(tp, flag, charset="utf8mb4", **kind))


KEY = FLAG_PRIMARY_KEY | FLAG_NOT_NULL
PRIMARY = (Index(1, "PRIMARY", (IndexColumn("a", 0),), is_unique=True, is_primary=True),)
NOTE = column(2, "note", Tp.VARCHAR, flen=20)
TABLES = {
    100: Table(100, "numbers", (column(1, "a", Tp.LONGLONG, KEY), NOTE), pk_is_handle=True),
    101: Table(
        101,
        "names",
        (column(1, "a", Tp.VARCHAR, KEY, flen=20, collate="utf8mb4_bin"), NOTE),
        indexes=PRIMARY,
        is_common_handle=True,
    ),
    102: Table(102, "loose", (column(1, "a", Tp.LONGLONG), NOTE)),
}
LOOSE = 102
"""A table without a key of its own: rows are told apart by their hidden row id."""
MOVES = -2
Row = dict[int, Value]
Operation = tuple[int, int, int]
"""Table id, key, and what becomes of the row."""
JOBS: list[dict[str, Any]] = [
    {"id": 1, "type": 1, "schema_id": 2, "binlog": {"SchemaVersion": 1}, "schema_name": "s"},
    *(
        {
            "id": table_id,
            "type": 3,
            "schema_id": 2,
            "table_id": table_id,
            "binlog": {"SchemaVersion": version, "TableInfo": json.loads(table_to_json(table))},
        }
        for version, (table_id, table) in enumerate(TABLES.items(), 2)
    ),
]
HISTORY = json.dumps(
    [{"state": 6, "schema_state": 5, "query": f"job {job['id']}", **job} for job in JOBS]
).encode()


def ddl() -> Iterator[bytes]:
    for ts, job in enumerate(JOBS, 1):
        told = {"ddl_query": b"x", "ddl_job_id": job["id"], "ddl_schema_state": 5}
        yield prewrite_binlog(Tso(ts * 10), **told)
        yield commit_binlog(Tso(ts * 10), Tso(ts * 10 + 5), **told)


class _Statements:
    """What a transaction does to one table: `held` is what that holds meanwhile."""

    def __init__(self, table: Table, held: dict[int, Row]) -> None:
        self.table, self.held = table, dict(held)
        self.told = ""
        self._rows: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
        self._order = bytearray()

    def mutation(self) -> Mutation:
        rows = self._rows
        return Mutation(self.table.id, rows[0], rows[1], rows[4], bytes(self._order))

    def take(self, key: int, note: int) -> None:
        old = self.held.get(key)
        if note == MOVES:
            self._move(key, old)
            return
        new: Row = {1: named(self.table.id, key), 2: None if note == 0 else b"%d" % note}
        if old is None and note >= 0:
            self._write(0, "I", encode_insert(self.table, new, handle=key))
        elif old is not None and note >= 0:
            self._write(1, "U", encode_update(self.table, old, new, handle=key))
        elif old is not None:
            self._write(4, "D", encode_delete(self.table, old, handle=key))
        if note >= 0:
            self.held[key] = new
        else:
            self.held.pop(key, None)

    def _move(self, key: int, old: Row | None) -> None:
        """To the next key, if that is free; a row without a key of its own keeps its row id."""
        is_loose = self.table.id == LOOSE
        moved = key if is_loose else key + 1
        if old is None or (moved in self.held and not is_loose):
            return
        new = {1: named(self.table.id, key + 1), 2: old[2]}
        self._write(1, "U" if is_loose else "DI", encode_update(self.table, old, new, handle=key))
        del self.held[key]
        self.held[moved] = new

    def _write(self, kind: int, told: str, row: bytes) -> None:
        self._rows[kind].append(row)
        self._order.append(kind)
        self.told += told


@dataclass
class Fold:
    """A log as it is generated, and what tables hold after each transaction."""

    payloads: list[bytes] = field(default_factory=lambda: list(ddl()))
    held: dict[int, dict[int, Row]] = field(
        default_factory=lambda: {table_id: {} for table_id in TABLES}
    )
    states: dict[int, dict[int, dict[int, Row]]] = field(default_factory=dict)
    told: dict[int, list[tuple[str, int]]] = field(
        default_factory=lambda: {table_id: [] for table_id in TABLES}
    )
    """Every change in commit order: what it was, and its commit_ts."""
    ts: int = 1000
    late: list[bytes] = field(default_factory=list)

    def transact(self, operations: Sequence[Operation], *, fate: str) -> None:
        """Operations are a table, a row and what its note says; -1 deletes it, `MOVES` gives it the
        next key, if that is free. What is sent `twice` is committed."""
        tables = {
            table_id: _Statements(table, self.held[table_id]) for table_id, table in TABLES.items()
        }
        for table_id, key, note in operations:
            tables[table_id].take(key, note)
        self.ts += 10
        start, commit = Tso(self.ts), Tso(self.ts + 5)
        mutations = [each.mutation() for each in tables.values() if each.told]
        value = encode_mutations(4, mutations)
        self.payloads += [prewrite_binlog(start, prewrite_value=value)] * (1 + (fate == "twice"))
        if fate == "rollback":
            self.payloads.append(rollback_binlog(start))
            return
        self.held = {table_id: each.held for table_id, each in tables.items()}
        self.states[commit] = self.held
        for table_id, each in tables.items():
            self.told[table_id] += [(op, commit) for op in each.told]
        (self.late if fate == "late" else self.payloads).append(commit_binlog(start, commit))
        if fate != "late":
            self.payloads += self.late
            self.late.clear()

    def rows(self, ts: int, table_id: int) -> Counter[tuple[Any, ...]]:
        return Counter(shown(row) for row in self.states[ts][table_id].values())


def named(table_id: int, key: int) -> Value:
    return b"key %d" % key if table_id == 101 else key


def shown(row: Row) -> tuple[Any, ...]:
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row.values())


def rows_of(snapshot: Path, table_id: int) -> Counter[tuple[Any, ...]]:
    entry = next(each for each in read_manifest(snapshot).tables if each.table_id == table_id)
    return held_in(snapshot, entry)


def held_in(directory: Path, entry: TableEntry) -> Counter[tuple[Any, ...]]:
    tables = (pq.read_table(directory / file.name) for file in entry.files)
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


FATES = ("commit", "commit", "commit", "late", "twice", "rollback")


def random_fold(seed: int, transactions: int, operations_max: int) -> Fold:
    """Rows come, change, move to other keys, go and come back, also within a transaction."""
    rng, fold = Random(seed), Fold()
    for _ in range(transactions):
        operations = [
            (rng.choice(sorted(TABLES)), rng.randint(-6, 6), rng.randint(MOVES, 5))
            for _ in range(rng.randint(1, operations_max))
        ]
        fold.transact(operations, fate=rng.choice(FATES))
    fold.transact([(table_id, 8, 8) for table_id in TABLES], fate="commit")
    return fold
