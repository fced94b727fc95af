"""The Drainer's downstream as a transactional MySQL, and what each of its states must hold.

The server is `SimMySql`, the sink the product's own. Every state that a reader could see is judged
by the progress rows in it: where all lanes stand at one commit_ts it equals the upstream at that
moment; where they stand apart, each row is one that the upstream had in between; while a DDL is
noted, each table is as before it or as after it. A checkpoint raises the lanes that were idle, so
one that is ahead of the rows is found by the same comparison.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.rows.progress import DDL_LANE, SAVED_LANE
from binlogd.drainer.sink import Sink
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import FieldType, Table
from binlogd.tso import NO_TS, Tso
from tests.sim.mysql import Committed, Faults, SimMySql
from tests.sim.mysqld.server import TableImage
from tests.sim.tidb import Tidb
from tests.sim.upstream import CLUSTER_ID
from tests.workload.model import Model, StoredRow, TableName

SCHEMA = "tidb_binlog"
ORIGIN = "drainer"
_STATES_KEPT = 200
_SEEN_MAX = 20_000

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """What kind of server, and which sinks write to it: each life of a Drainer takes the next of
    `lives` (connections, and whether transactions stay whole), and then the last one again and
    again. Times in seconds, least and most."""

    lives: tuple[tuple[int, bool], ...] = ((1, True),)
    changes_max: int = 2_000
    cut_changes_max: int = 50_000
    latency_s: tuple[float, float] = (0.0001, 0.001)
    ddl_s: tuple[float, float] = (0.0, 0.01)
    linger_s: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class Progress:
    """What the rows of a state say about how far it is."""

    lanes: list[tuple[Tso, int]]
    saved_ts: Tso
    ddl_ts: Tso
    """NO_TS: none is at work."""
    checkpoint: Checkpoint | None

    @property
    def low_ts(self) -> Tso:
        """Everything up to here must be there."""
        whole = min(Tso(ts - 1) if piece else ts for ts, piece in self.lanes)
        return max(whole, self.saved_ts)

    @property
    def high_ts(self) -> Tso:
        """Nothing beyond may be there."""
        return max(*(ts for ts, _ in self.lanes), self.saved_ts)


class Replica:
    """A `Downstream`; see the module."""

    dialect = Dialect.MYSQL
    changes_columns = True

    def __init__(self, rng: random.Random, database: Database) -> None:
        self._rng, self.database = rng, database
        faults = Faults(
            latency_s=database.latency_s, ddl_s=database.ddl_s, linger_s=database.linger_s
        )
        self.server = SimMySql(rng, faults, _STATES_KEPT)
        self.server.on_commit.append(self._seen)
        self._unjudged: deque[Committed] = deque()
        self.on_visible: Callable[[Tso], None] = lambda _: None
        self._lives = 0
        self._held: dict[tuple[int, int], tuple[TableImage, Counter[Row]]] = {}
        self._shown: dict[tuple[int, int], Row] = {}
        self.judged = 0

    def _seen(self, state: Committed) -> None:
        assert len(self._unjudged) < _SEEN_MAX, "states that nobody looks at"
        self._unjudged.append(state)
        progress = _progress_of(state)
        if progress is not None:
            self.on_visible(max(Tso(ts) for ts, _ in progress.lanes))

    # --- for the Drainer -------------------------------------------------------------------------

    def sink(self) -> Sink:
        lives = self.database.lives
        lanes, is_transactional = lives[min(self._lives, len(lives) - 1)]
        self._lives += 1
        options = MySqlSinkOptions(
            lanes=lanes,
            is_transactional=is_transactional,
            limits=Limits(
                changes_worth=min(500, self.database.changes_max),
                changes_max=self.database.changes_max,
                cut_changes_max=self.database.cut_changes_max,
            ),
        )
        rng = random.Random(self._rng.randrange(1 << 30))
        return MySqlSink(self.server.server(ORIGIN), CLUSTER_ID, options, rng)

    def writer_died(self) -> None:
        self.server.cut(ORIGIN)

    def heal(self) -> None:
        server = self.server
        server.faults.quiet()
        server.is_down = server.inside.is_read_only = False
        server.faults.latency_s = self.database.latency_s
        server.hurry()

    def may_lose(self, lost: int, *, can_pull_again: bool) -> int:
        """How many of the last states a failover may lose: what it leaves must say where it is, and
        the Pumps must still have what is missing."""
        lineage = self.server.inside.lineage
        lost = min(lost, len(lineage) - 1) if can_pull_again else 0
        while lost and not _says_where(lineage[-1 - lost]):
            lost -= 1
        return lost

    # --- what holds ------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint | None:
        return _checkpoint_of(self.server.inside.state)

    def look(self, tidb: Tidb) -> None:
        while self._unjudged:
            self._judge(self._unjudged.popleft(), tidb.model)
            self.judged += 1

    def look_at_saved(self, checkpoint: Checkpoint, tidb: Tidb) -> None:
        self.look(tidb)
        there = self.checkpoint
        assert there is not None, f"I10: checkpoint {checkpoint.commit_ts} is not there"

    def look_at_rest(self, tidb: Tidb) -> None:
        self.look(tidb)

    def differences(self, model: Model, commit_ts: Tso) -> list[str]:
        return self._differences(self.server.inside.state, model, commit_ts)

    def _judge(self, state: Committed, model: Model) -> None:
        progress = _progress_of(state)
        if progress is None:
            assert not _tables(state), "tables, and nothing says how far they are"
            return
        low_ts, high_ts = progress.low_ts, progress.high_ts
        saved = progress.checkpoint
        if saved is not None and saved.consistent:
            assert high_ts <= saved.commit_ts, (
                f"I14: consistent at {saved.commit_ts}, and lanes stand at {progress.lanes}"
            )
        if progress.ddl_ts:
            found = self._neither(state, model, Tso(progress.ddl_ts - 1), progress.ddl_ts)
        elif low_ts == high_ts:
            found = self._differences(state, model, low_ts)
        else:
            found = self._never_had(state, model, low_ts, high_ts)
        assert not found, (
            f"state {state.number} ({state.cause[:60]}), lanes {progress.lanes}, checkpoint"
            f" {saved.commit_ts if saved else None}: {found[0][:500]}"
        )

    def _differences(self, state: Committed, model: Model, commit_ts: Tso) -> list[str]:
        tables = model.tables(commit_ts)
        found = [f"there is {name}" for name in _tables(state) if name not in tables]
        for name, table in tables.items():
            image = state.state.get(name)
            difference = self._difference(image, model, table, commit_ts)
            if difference:
                found.append(f"{'.'.join(name)} at {commit_ts}: {difference}")
        return found

    def _difference(
        self, image: TableImage | None, model: Model, table: Table, commit_ts: Tso
    ) -> str:
        if image is None:
            return "the table is missing"
        expected = Counter(row for row, _ in self._versions(model, table, commit_ts, commit_ts))
        held = self._rows(image, table)
        return "" if expected == held else _told(expected - held, held - expected)

    def _neither(self, state: Committed, model: Model, before: Tso, after: Tso) -> list[str]:
        """Tables that are neither as before a DDL nor as after it."""
        one, other = model.tables(before), model.tables(after)
        found = []
        for name in sorted({*_tables(state), *one, *other}):
            image = state.state.get(name)
            said = []
            for tables, moment in ((one, before), (other, after)):
                table = tables.get(name)
                if table is None:
                    said.append("there is such a table" if image is not None else "")
                else:
                    said.append(self._difference(image, model, table, moment))
            if all(said):
                found.append(f"{'.'.join(name)} in a DDL, before: {said[0]}; after: {said[1]}")
        return found

    def _never_had(self, state: Committed, model: Model, low: Tso, high: Tso) -> list[str]:
        """Rows that the upstream never had in between, or had all the time and are missing."""
        found = []
        for name, table in model.tables(low).items():
            image = state.state.get(name)
            if image is None:
                found.append(f"{'.'.join(name)}: the table is missing")
                continue
            versions = list(self._versions(model, table, low, high))
            steady = Counter(row for row, is_steady in versions if is_steady)
            moving = Counter(row for row, is_steady in versions if not is_steady)
            held = self._rows(image, table)
            if steady - held or (held - steady) - moving:
                told = _told(steady - held, (held - steady) - moving)
                found.append(f"{'.'.join(name)} between {low} and {high}: {told}")
        return found

    def _rows(self, image: TableImage, table: Table) -> Counter[Row]:
        """By the public columns of the upstream, as values that compare."""
        known = self._held.get((image.number, id(table)))
        if known is not None and known[0] is image:
            return known[1]
        names = {column.name.lower(): n for n, column in enumerate(image.definition.columns)}
        public = [column for column in table.columns if column.is_public]
        lacking = [column.name for column in public if column.name.lower() not in names]
        if lacking:
            return Counter({(f"no column {lacking[0]}",): 1})
        at = [(names[column.name.lower()], column.field_type) for column in public]
        rows = Counter(
            tuple(_comparable(kind, values[n]) for n, kind in at) for values in image.rows.values()
        )
        self._held[image.number, id(table)] = image, rows
        return rows

    def _versions(
        self, model: Model, table: Table, low: Tso, high: Tso
    ) -> Iterator[tuple[Row, bool]]:
        """The rows of a table from one moment to another, and whether one is there all the time."""
        of_table = model._rows.get(table.id)
        for versions in of_table.versions.values() if of_table else ():
            at_low: StoredRow | None = None
            later: list[StoredRow] = []
            is_steady = True
            for ts, row in versions:
                if ts <= low:
                    at_low = row
                elif ts <= high:
                    is_steady = False
                    later += [row] if row is not None else []
            for row in ([at_low] if at_low is not None else []) + later:
                yield self._shown_of(model, table, row), is_steady

    def _shown_of(self, model: Model, table: Table, row: StoredRow) -> Row:
        """As `_rows` has it. The model keeps tables and rows, so they are known by their ids."""
        shown = self._shown.get((id(table), id(row)))
        if shown is None:
            missing = model._missing.get(table.id, {})
            values = dict(zip(row.layout, row.values, strict=True))
            shown = self._shown[id(table), id(row)] = tuple(
                _comparable(column.field_type, values.get(column.id, missing.get(column.id)))
                for column in table.columns
                if column.is_public
            )
        return shown


def _comparable(kind: FieldType, value: Any) -> Any:
    """A value of the model or of the server, so that equal ones are equal."""
    if value is None or value.__class__ in _PLAIN:
        return value
    if kind.tp == Tp.NEW_DECIMAL:
        return Decimal(value)
    if kind.tp == Tp.JSON:
        return json.dumps(json.loads(value), sort_keys=True)
    if isinstance(value, str) and kind.tp not in _TEMPORAL:
        return value.encode("utf-8", "surrogateescape")
    return value


_PLAIN = frozenset({int, float, Decimal})
_TEMPORAL = (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION)


def _told(missing: Counter[Row], more: Counter[Row]) -> str:
    return f"missing {list(missing.elements())[:3]}, too many {list(more.elements())[:3]}"


def _tables(state: Committed) -> Sequence[TableName]:
    return [name for name in state.state if name[0] != SCHEMA]


def _progress_of(state: Committed) -> Progress | None:
    image = state.state.get((SCHEMA, "progress"))
    if image is None:
        return None
    rows = {row["lane"]: row for row in image.named()}
    lanes = [(Tso(row["commit_ts"]), row["piece"]) for lane, row in rows.items() if lane >= 0]
    if not lanes:
        return None

    def noted(lane: int) -> Tso:
        return Tso(rows[lane]["commit_ts"]) if lane in rows else NO_TS

    return Progress(lanes, noted(SAVED_LANE), noted(DDL_LANE), _checkpoint_of(state))


def _says_where(state: Committed) -> bool:
    """Whether a Drainer that comes back finds a checkpoint; else it stops for an operator."""
    checkpoint = _checkpoint_of(state)
    return checkpoint is not None and checkpoint.commit_ts > NO_TS


def _checkpoint_of(state: Committed) -> Checkpoint | None:
    image = state.state.get((SCHEMA, "checkpoint"))
    rows = image.named() if image is not None else []
    return Checkpoint.from_json(rows[0]["checkPoint"]) if rows else None
