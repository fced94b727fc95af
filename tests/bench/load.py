"""Three loads as committed binlogs, the shapes that a Go Drainer was measured with.

`inserts`: rows into one table, ten a transaction. `updates`: rows of random id among those of one
table, five a transaction. `mixed`: 20 % inserts, 60 % updates, 20 % deletes, four a transaction,
over ten tables. Rows are some 230 bytes: `id bigint` clustered, `k int not null` with an index,
`c char(120)`, `pad char(60)`, `dt datetime not null`. Same numbers, same bytes.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from binlogd.binlog import BinlogType, CommittedBinlog
from binlogd.tidb.datum import compact_bytes
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Table, jobs_from_json
from binlogd.tidb.times import packed_time
from binlogd.tidb.varint import uvarint, varint
from binlogd.tso import Tso, plus_ms
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.workload.draft import record_key
from tests.workload.generator import Options, Workload
from tests.workload.schema import ColumnDef, TableDef, char, integer, temporal
from tests.workload.timeline import Habits

DATABASE = "load"
_TAILS = 256  # different texts; a row points at one of them
_SETUP_ROWS_PER_TXN = 500


def table_def(name: str) -> TableDef:
    """The table of all three loads."""
    return TableDef(
        DATABASE,
        name,
        (
            ColumnDef("id", integer("BIGINT"), not_null=True),
            ColumnDef("k", integer(), not_null=True),
            ColumnDef("c", char(120)),
            ColumnDef("pad", char(60)),
            ColumnDef("dt", temporal(Tp.DATETIME), not_null=True),
        ),
        primary=("id",),
        keys=(("k",),),
    )


def wide_def(name: str, columns: int) -> TableDef:
    """A table of an id and many texts."""
    texts = tuple(ColumnDef(f"c{number}", char(120)) for number in range(columns))
    key = ColumnDef("id", integer("BIGINT"), not_null=True)
    return TableDef(DATABASE, name, (key, *texts), primary=("id",))


@dataclass(frozen=True, slots=True)
class Load:
    """`setup` makes the tables and their first rows, `binlogs` is what is measured.

    `history` is the answer of `/ddl/history`; `rows` counts the row changes of `binlogs`.
    """

    name: str
    history: bytes
    setup: list[CommittedBinlog]
    binlogs: list[CommittedBinlog]
    rows: int


def inserts(rows: int = 300_000) -> Load:
    """New rows into one empty table, ten a transaction."""
    maker = _Maker(1)
    tables = maker.tables
    changes = [maker.insert(tables[0], number) for number in range(1, rows + 1)]
    return maker.load("inserts", maker.transactions(changes, 10), rows)


def updates(rows: int = 200_000, table_rows: int = 300_000) -> Load:
    """One row each of random id, five a transaction."""
    maker = _Maker(1)
    maker.fill(table_rows)
    table = maker.tables[0]
    changes = [maker.update(table, maker.rng.randint(1, table_rows)) for _ in range(rows)]
    return maker.load("updates", maker.transactions(changes, 5), rows)


def mixed(rows: int = 400_000, tables: int = 10, table_rows: int = 20_000) -> Load:
    """20 % inserts, 60 % updates, 20 % deletes, four a transaction, over all tables."""
    maker = _Maker(tables)
    maker.fill(table_rows)
    changes = [maker.any_change(table_rows) for _ in range(rows)]
    return maker.load("mixed", maker.transactions(changes, 4), rows)


def deletes(rows: int = 200_000) -> Load:
    """Every row of one table, in random order, ten a transaction."""
    maker = _Maker(1)
    maker.fill(rows)
    numbers = list(range(1, rows + 1))
    maker.rng.shuffle(numbers)
    changes = [maker.delete(maker.tables[0], number) for number in numbers]
    return maker.load("deletes", maker.transactions(changes, 10), rows)


def hot_key(rows: int = 200_000) -> Load:
    """Updates of one row again and again, five a transaction."""
    maker = _Maker(1)
    maker.fill(10)
    changes = [maker.update(maker.tables[0], 1) for _ in range(rows)]
    return maker.load("hot_key", maker.transactions(changes, 5), rows)


def many_tables(rows: int = 100_000, tables: int = 1000) -> Load:
    """Inserts, updates and deletes as in `mixed`, over a thousand tables."""
    maker = _Maker(tables)
    maker.fill(20)
    changes = [maker.any_change(20) for _ in range(rows)]
    return maker.load("many_tables", maker.transactions(changes, 4), rows)


def wide_rows(rows: int = 8_000, columns: int = 100) -> Load:
    """Inserts of rows with many columns, some 6 KB each, ten a transaction."""
    maker = _Maker(1, wide_def("t0", columns))
    changes = [maker.wide_insert(number, columns) for number in range(1, rows + 1)]
    return maker.load("wide_rows", maker.transactions(changes, 10), rows)


def one_transaction(size_bytes: int) -> Load:
    """New rows into one table, all in one transaction of about so many bytes."""
    maker = _Maker(1)
    rows = size_bytes // 215
    changes = [maker.insert(maker.tables[0], number) for number in range(1, rows + 1)]
    return maker.load("one_transaction", maker.transactions(changes, rows), rows)


def wide_setup(columns: int) -> Load:
    """An empty table of `wide_def`, and no rows."""
    return _Maker(1, wide_def("t0", columns)).load("wide", [], 0)


class Stream:
    """New rows as they are wanted, for two tables `t0` and `t1`; `setup` makes these."""

    def __init__(self) -> None:
        self._maker = _Maker(2)
        self._last = [0, 0]
        self._now = plus_ms(self._maker.load("", [], 0).setup[-1].commit_ts, 10_000)

    @property
    def load(self) -> Load:
        """The tables, and nothing else."""
        return self._maker.load("stream", [], 0)

    def timestamp(self) -> Tso:
        """The next one, for a start or a commit."""
        self._now = Tso(self._now + 1)
        return self._now

    def rows(self, table: int, count: int) -> tuple[bytes, bytes, int]:
        """The key and the value of a Prewrite of so many new rows, and the id of the last."""
        of_table = self._maker.tables[table]
        first = self._last[table] + 1
        self._last[table] += count
        rows = [self._maker.insert(of_table, first + number)[3] for number in range(count)]
        mutation = Mutation(of_table.id, rows, [], [], bytes(count))
        value = encode_mutations(self._maker.version, [mutation])
        return record_key(of_table, first), value, self._last[table]


_Change = tuple[Table, int, int, bytes]  # table, id, kind, row bytes


class _Maker:
    def __init__(self, tables: int, definition: TableDef | None = None) -> None:
        self.rng = random.Random(20)
        names = [f"t{number}" for number in range(tables)]
        definitions = (definition,) if definition else tuple(map(table_def, names))
        self._workload = Workload(
            Options(
                transactions=0,
                tables=definitions,
                habits=Habits(repeats=0, late=0, lost=0),
            )
        )
        self._setup = list(_joined(self._workload))
        jobs = jobs_from_json(self._workload.history())
        self.tables = [job.table for job in jobs if job.table is not None]
        self.version = max(job.schema_version for job in jobs)
        self._now = plus_ms(self._setup[-1].commit_ts, 1000)
        self._rows: dict[int, dict[int, tuple[int, int]]] = {each.id: {} for each in self.tables}
        self._ids: dict[int, list[int]] = {each.id: [] for each in self.tables}
        self._tails = [self._tail() for _ in range(_TAILS)]

    def insert(self, table: Table, number: int) -> _Change:
        row = self._random_row()
        self._rows[table.id][number] = row
        self._ids[table.id].append(number)
        return table, number, 0, b"\x08" + varint(number) + self._columns(row)

    def wide_insert(self, number: int, columns: int) -> _Change:
        """A row of `wide_def`."""
        texts = b"".join(
            b"\x08" + varint(column_id) + b"\x02" + compact_bytes(self._text(60))
            for column_id in range(2, columns + 2)
        )
        return self.tables[0], number, 0, b"\x08" + varint(number) + texts

    def update(self, table: Table, number: int) -> _Change:
        rows = self._rows[table.id]
        old, new = rows[number], self._random_row()
        if new == old:
            new = (old[0] + 1, old[1])
        rows[number] = new
        handle = b"\x08\x02\x08" + varint(number)
        return table, number, 1, handle + self._columns(old) + handle + self._columns(new)

    def delete(self, table: Table, number: int) -> _Change:
        row = self._rows[table.id].pop(number)
        return table, number, 4, b"\x08\x02\x08" + varint(number) + self._columns(row)

    def any_change(self, first_new: int) -> _Change:
        table = self.rng.choice(self.tables)
        ids, rows = self._ids[table.id], self._rows[table.id]
        chance = self.rng.random()
        if chance < 0.2 or not rows:
            return self.insert(table, max(first_new, ids[-1]) + 1)
        while True:  # ends: most ids are there
            number = self.rng.choice(ids)
            if number in rows:
                break
        return self.update(table, number) if chance < 0.8 else self.delete(table, number)

    def fill(self, table_rows: int) -> None:
        for table in self.tables:
            changes = [self.insert(table, number) for number in range(1, table_rows + 1)]
            self._setup += self.transactions(changes, _SETUP_ROWS_PER_TXN)

    def transactions(self, changes: Iterable[_Change], size: int) -> list[CommittedBinlog]:
        made, pending = [], []
        for change in changes:
            pending.append(change)
            if len(pending) == size:
                made.append(self._transaction(pending))
                pending = []
        return [*made, self._transaction(pending)] if pending else made

    def load(self, name: str, binlogs: list[CommittedBinlog], rows: int) -> Load:
        return Load(name, self._workload.history(), self._setup, binlogs, rows)

    def _transaction(self, changes: list[_Change]) -> CommittedBinlog:
        rows: dict[int, dict[int, list[bytes]]] = {}
        kinds: dict[int, bytearray] = {}
        for table, _, kind, row in changes:
            rows.setdefault(table.id, {0: [], 1: [], 4: []})[kind].append(row)
            kinds.setdefault(table.id, bytearray()).append(kind)
        by_table = {
            table_id: Mutation(table_id, lists[0], lists[1], lists[4], bytes(kinds[table_id]))
            for table_id, lists in rows.items()
        }
        start_ts, commit_ts = Tso(self._now + 1), Tso(self._now + 2)
        self._now = plus_ms(commit_ts, 1)
        key = record_key(changes[0][0], changes[0][1])
        value = encode_mutations(self.version, list(by_table.values()))
        prewrite = prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value)
        commit = commit_binlog(start_ts, commit_ts, prewrite_key=key)
        return CommittedBinlog(start_ts, commit_ts, join(prewrite, commit))

    def _random_row(self) -> tuple[int, int]:
        return self.rng.randrange(1 << 20), self.rng.randrange(_TAILS)

    def _columns(self, row: tuple[int, int]) -> bytes:
        k, tail = row
        return b"\x08\x04\x08" + varint(k) + self._tails[tail]

    def _text(self, length: int) -> bytes:
        return "".join(self.rng.choices(string.ascii_letters + string.digits, k=length)).encode()

    def _tail(self) -> bytes:
        """The datums of `c`, `pad` and `dt`."""
        c = self._text(self.rng.randint(90, 120))
        pad = self._text(60)
        day = self.rng.randint(1, 28)
        moment = packed_time(f"2024-02-{day:02d} 12:{day:02d}:30")
        return b"".join(
            (
                b"\x08\x06\x02",
                compact_bytes(c),
                b"\x08\x08\x02",
                compact_bytes(pad),
                b"\x08\x0a\x09",
                uvarint(moment),
            )
        )


def _joined(workload: Workload) -> Iterator[CommittedBinlog]:
    prewrites: dict[int, bytes] = {}
    for record in workload.records():
        if record.kind == BinlogType.PREWRITE:
            prewrites[record.fate.start_ts] = record.payload
        else:
            prewrite = prewrites[record.fate.start_ts]
            payload = join(prewrite, record.payload)
            yield CommittedBinlog(record.fate.start_ts, record.fate.commit_ts, payload)
