"""A partitioned table and a plain one, with random rows and DDL: what TiDB holds, and what it logs.

The model holds rows by the physical id that TiDB keeps them under; the log names tables only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, ActionType, PartitionKind, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, table_to_json
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations

KEYS = 60
LETTERS = "abcdef"
KEY = FLAG_PRIMARY_KEY | FLAG_NOT_NULL
A = Column(1, "a", 0, FieldType(Tp.LONGLONG, KEY))
C = Column(2, "c", 1, FieldType(Tp.VARCHAR, KEY, 8, -1, "utf8mb4", "utf8mb4_bin"))
NOTE = Column(3, "note", 2, FieldType(Tp.VARCHAR, 0, 20, -1, "utf8mb4", "utf8mb4_bin"))
CLUSTERED = (
    Index(
        1, "PRIMARY", (IndexColumn("a", 0), IndexColumn("c", 1)), is_unique=True, is_primary=True
    ),
)

Row = tuple[int, str, str]
Key = tuple[int, str]


@dataclass
class Part:
    """A partition: its id, and what lies in it: numbers up to a bound, or letters."""

    id: int
    below: int = 0
    letters: frozenset[str] = frozenset()

    def holds(self, row: Row) -> bool:
        return row[1] in self.letters if self.letters else row[0] < self.below

    def told(self) -> Partition:
        if self.letters:
            return Partition(
                self.id, in_values=tuple((f"'{each}'",) for each in sorted(self.letters))
            )
        return Partition(self.id, (str(self.below) if self.below < KEYS else "MAXVALUE",))


@dataclass
class Partitioned:
    """Tables `s.parts`, partitioned by range of `a` or by list of `c`, and `s.plain`."""

    rng: Random
    is_list: bool
    jobs: list[dict[str, Any]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    states: dict[int, dict[str, dict[Key, Row]]] = field(default_factory=dict)
    """What both tables held at a commit_ts."""
    held: dict[int, dict[Key, Row]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    _ts: int = 1000
    _id: int = 100
    _version: int = 1
    _is_settled: bool = True

    def __post_init__(self) -> None:
        self._job(ActionType.CREATE_SCHEMA, 0, None)
        self.table_id, self.plain_id = self._new_id(), self._new_id()
        if self.is_list:
            self.parts = [Part(self._new_id(), 0, frozenset(two)) for two in ("ab", "cd", "ef")]
        else:
            self.parts = [Part(self._new_id(), below) for below in (20, 40, KEYS)]
        for table_id in (*(each.id for each in self.parts), self.plain_id):
            self.held[table_id] = {}
        self._job(ActionType.CREATE_TABLE, self.table_id, self._parts_info())
        self._job(ActionType.CREATE_TABLE, self.plain_id, self._plain_info())

    @property
    def history(self) -> bytes:
        return json.dumps(self.jobs).encode()

    def step(self) -> None:
        """A transaction, or a DDL."""
        if self.rng.random() < 0.6:
            self.transact()
            return
        changes = [self.drop, self.truncate, self.reorganize, self.exchange, self.exchange]
        self.rng.choice([*changes, self.repartition])()

    # --- rows --------------------------------------------------------------------------------

    def transact(self, version: int = 0) -> None:
        """Some rows of both tables come, change and go."""
        mutations = [self._changed("parts"), self._changed("plain")]
        found = [each for each in mutations if each.sequence]
        if found:
            self._commit(encode_mutations(version or self._version, found))

    def _changed(self, name: str) -> Mutation:
        info = self._parts_info() if name == "parts" else self._plain_info()
        made: dict[int, list[bytes]] = {0: [], 1: [], 4: []}
        order = bytearray()
        for _ in range(self.rng.randrange(4)):
            row = (
                self.rng.randrange(KEYS),
                self.rng.choice(LETTERS),
                str(self.rng.randrange(1000)),
            )
            place = self._place(row)
            if name == "plain":
                if place != self._place(next(iter(self.held[self.plain_id].values()), row)):
                    continue  # so that it fits a partition more often than not
                place = self.plain_id
            if place is None:
                continue
            held = self.held[place]
            known = self._namesake(held, row)
            if known is None:
                held[row[:2]] = row
                made[0].append(encode_insert(info, _values(row), handle=row[0]))
                order.append(0)
            elif self.rng.random() < 0.6:
                new = (*known[:2], row[2])
                held[known[:2]] = new
                made[1].append(encode_update(info, _values(known), _values(new), handle=row[0]))
                order.append(1)
            else:
                del held[known[:2]]
                made[4].append(encode_delete(info, _values(known), handle=row[0]))
                order.append(4)
        return Mutation(info.id, made[0], made[1], made[4], bytes(order))

    def _namesake(self, held: dict[Key, Row], row: Row) -> Row | None:
        if self.is_list:
            return held.get(row[:2])
        return next((each for each in held.values() if each[0] == row[0]), None)

    def _place(self, row: Row) -> int | None:
        return next((part.id for part in self.parts if part.holds(row)), None)

    # --- DDL ---------------------------------------------------------------------------------

    def drop(self) -> None:
        """DROP PARTITION; rows that come while it is at work go to the next partition."""
        if len(self.parts) < 2:
            return
        began_ts = self._ts + 8
        gone = self.parts.pop(self.rng.randrange(len(self.parts)))
        kept, self.held[gone.id] = self.held[gone.id], {}
        if self.rng.random() < 0.5:
            self._version += 1
            self._is_settled = False
            self.transact()
            self._version -= 1
        del kept, self.held[gone.id]
        self._version += 2
        info = self._parts_info()
        self._job(ActionType.DROP_TABLE_PARTITION, self.table_id, info, began_ts=began_ts)
        self._is_settled = True

    def truncate(self) -> None:
        """TRUNCATE PARTITION."""
        part = self.rng.choice(self.parts)
        del self.held[part.id]
        part.id = self._new_id()
        self.held[part.id] = {}
        self._job(ActionType.TRUNCATE_TABLE_PARTITION, self.table_id, self._parts_info())

    def reorganize(self) -> None:
        """REORGANIZE PARTITION: two become one, or one becomes two."""
        at = self.rng.randrange(len(self.parts))
        old = self.parts[at : at + 2]
        rows = [row for part in old for row in self.held.pop(part.id).values()]
        letters = frozenset[str]().union(*(part.letters for part in old))
        below = old[-1].below
        if self.is_list and len(letters) > 2 and self.rng.random() < 0.5:
            half = frozenset(sorted(letters)[:2])
            new = [Part(self._new_id(), 0, half), Part(self._new_id(), 0, letters - half)]
        elif not self.is_list and below - 7 > (self.parts[at - 1].below if at else 0):
            new = [Part(self._new_id(), below - 7), Part(self._new_id(), below)]
        else:
            new = [Part(self._new_id(), below, letters)]
        self.parts[at : at + len(old)] = new
        self.held |= {part.id: {} for part in new}
        for row in rows:
            place = self._place(row)
            assert place is not None
            self.held[place][row[:2]] = row
        self._version += 4
        self._job(ActionType.REORGANIZE_PARTITION, self.table_id, self._parts_info())

    def exchange(self) -> None:
        """EXCHANGE PARTITION, where every row of the plain table fits."""
        part = self.rng.choice(self.parts)
        fitting = [
            each for each in self.held[self.plain_id].values() if self._place(each) == part.id
        ]
        if len(fitting) != len(self.held[self.plain_id]):
            return
        part.id, self.plain_id = self.plain_id, part.id
        self._version += 1
        self._job(
            ActionType.EXCHANGE_TABLE_PARTITION, part.id, self._parts_info(), query="EXCHANGE"
        )

    def lose(self, name: str) -> None:
        """DROP TABLE."""
        info = self._plain_info() if name == "plain" else self._parts_info()
        self._job(ActionType.DROP_TABLE, info.id, info)

    def recover(self, name: str) -> None:
        """RECOVER TABLE."""
        info = self._plain_info() if name == "plain" else self._parts_info()
        self._job(ActionType.RECOVER_TABLE, info.id, info)

    def repartition(self) -> None:
        """PARTITION BY: the table and its partitions get new ids, and the rows go along."""
        old_id, self.table_id = self.table_id, self._new_id()
        for part in self.parts:
            rows = self.held.pop(part.id)
            part.id = self._new_id()
            self.held[part.id] = rows
        self._version += 4
        self._job(ActionType.ALTER_TABLE_PARTITIONING, old_id, self._parts_info())

    # --- what is written ---------------------------------------------------------------------

    def _new_id(self) -> int:
        self._id += 1
        return self._id

    def _parts_info(self) -> Table:
        columns = () if not self.is_list else ("c",)
        told = Partitioning(
            PartitionKind.LIST if self.is_list else PartitionKind.RANGE,
            "" if self.is_list else "`a`",
            columns,
            tuple(part.told() for part in self.parts),
        )
        ids = tuple(part.id for part in self.parts)
        info = replace(self._plain_info(), id=self.table_id, name="parts")
        return replace(info, partition_ids=ids, partitioning=told)

    def _plain_info(self) -> Table:
        if self.is_list:
            return Table(
                self.plain_id, "plain", (A, C, NOTE), indexes=CLUSTERED, is_common_handle=True
            )
        letters = replace(C, field_type=replace(C.field_type, flag=0))
        return Table(self.plain_id, "plain", (A, letters, NOTE), pk_is_handle=True)

    def _job(
        self,
        kind: ActionType,
        table_id: int,
        info: Table | None,
        query: str = "",
        began_ts: int = 0,
    ) -> None:
        self._version += 1
        job_id = self._new_id()
        self._ts += 10
        binlog: dict[str, Any] = {"SchemaVersion": self._version, "FinishedTS": self._ts + 7}
        if info is not None:
            binlog["TableInfo"] = json.loads(table_to_json(info))
        self.jobs.append(
            {
                "id": job_id,
                "type": int(kind),
                "schema_id": 2,
                "schema_name": "s",
                "table_id": table_id,
                "state": 6,
                "schema_state": 5,
                "start_ts": began_ts or self._ts - 1,
                "query": query or f"job {job_id}",
                "binlog": binlog,
            }
        )
        told: dict[str, Any] = {"ddl_query": b"x", "ddl_job_id": job_id, "ddl_schema_state": 5}
        self.payloads.append(prewrite_binlog(Tso(self._ts), **told))
        self.payloads.append(commit_binlog(Tso(self._ts), Tso(self._ts + 5), **told))
        self._keep(self._ts + 5)

    def _commit(self, value: bytes) -> None:
        self._ts += 10
        self.payloads.append(prewrite_binlog(Tso(self._ts), prewrite_value=value))
        self.payloads.append(commit_binlog(Tso(self._ts), Tso(self._ts + 5)))
        if self._is_settled:
            self._keep(self._ts + 5)

    def _keep(self, ts: int) -> None:
        plain = self.held.get(self.plain_id, {}) if self.held else {}
        parts = {key: row for part in self.parts for key, row in self.held[part.id].items()}
        self.states[ts] = {"parts": parts, "plain": dict(plain)}


def _values(row: Row) -> dict[int, Value]:
    return {1: row[0], 2: row[1].encode(), 3: row[2].encode()}


def moments(history: Partitioned) -> Iterator[int]:
    """Every commit_ts at which both tables are there."""
    created = 2
    yield from sorted(history.states)[created + 1 :]
