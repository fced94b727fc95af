"""TiDBs in miniature: sessions that write what they draw, and the owner of the DDL.

What they promise is what a TiDB promises a Pump: the prewrite is acknowledged before a commit_ts is
asked for; an outcome may come late, twice or never; a transaction whose prewrite was not taken does
not commit. The model learns of a commit in the moment of its commit_ts.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from binlogd.binlog import BinlogType
from binlogd.client.directory import PumpNode
from binlogd.client.pump_client import ClientLimits
from binlogd.client.pumps_client import PumpsClient, PumpsLimits
from binlogd.errors import PumpUnavailable, Refused, UpstreamUnavailable
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.entry import PUMP
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from tests.sim.upstream import CLUSTER_ID, SimPd, SimTikv
from tests.workload.catalogue import Catalogue
from tests.workload.ddl import DdlSession, Script
from tests.workload.draft import Draft
from tests.workload.generator import Options, Workload
from tests.workload.model import Model
from tests.workload.schema import TableDef
from tests.workload.statements import Statements
from tests.workload.store import Store
from tests.workload.timeline import DdlMark, Fate, Habits, Record, Timeline

LIMITS = PumpsLimits(
    each=ClientLimits(deadline_s=5.0, prewrite_retry_s=15.0, outcome_retry_s=60.0),
    probe_every_s=5.0,
    look_every_s=2.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What sessions do, as shares of transactions."""

    sessions: int = 4
    transactions: int = 60
    pause_s: float = 1.0
    rollbacks: float = 0.1
    lost: float = 0.05
    late: float = 0.2
    repeats: float = 0.1
    large: float = 0.02
    large_rows: int = 120
    ddl_every: int = 0
    changes_columns: bool = False
    tables: tuple[TableDef, ...] = ()


@dataclass(slots=True)
class Ledger:
    """What was told to writers: the truth that no fault may change."""

    acknowledged: dict[Tso, str] = field(default_factory=dict)
    """By start_ts of a prewrite, which Pump took it; others may have it too."""
    committed: dict[Tso, Tso] = field(default_factory=dict)
    """commit_ts by start_ts, DDL too."""
    perhaps_unseen: set[Tso] = field(default_factory=set)
    """commit_ts of what may change nothing: a DDL that was rolled back or is only announced, and
    rows of tables that were gone by then."""
    values: dict[Tso, bytes] = field(default_factory=dict)
    """By commit_ts, the rows of a transaction as its prewrite has them."""
    rolled_back: set[Tso] = field(default_factory=set)
    refused: int = 0


class _RegisteredAddresses:
    """The directory that a TiDB has by watching PD."""

    def __init__(self, pd: SimPd) -> None:
        self._pd = pd

    async def pumps(self) -> Sequence[PumpNode]:
        try:
            nodes = await self._pd.nodes(PUMP)
        except UpstreamUnavailable as error:
            raise PumpUnavailable(str(error)) from error
        found = []
        for each in nodes:
            host, _, port = each.host.rpartition(":")
            found.append(PumpNode(each.node_id, (host, int(port)), each.state, each.score))
        return found


class _LiveTimeline(Timeline):
    """That of the DDL scripts, with PD's time; what leaves is sent by whoever runs them."""

    def __init__(self, pd: SimPd, tikv: SimTikv, ledger: Ledger) -> None:
        super().__init__(random.Random(0), Habits(repeats=0, late=0, lost=0), begin_ms=1)
        self._pd, self._tikv, self._ledger = pd, tikv, ledger

    def next_ts(self) -> Tso:
        return self._pd.handed_out()

    def prewrite(
        self,
        fate: Fate,
        key: bytes,
        value: bytes | None = None,
        *,
        ddl: DdlMark | None = None,
        rows: int = 0,
    ) -> None:
        self._tikv.lock(fate.start_ts, math.inf)  # whoever owns the DDL comes back to it
        super().prewrite(fate, key, value, ddl=ddl, rows=rows)

    def commit(self, fate: Fate, key: bytes, *, ddl: DdlMark | None = None) -> None:
        self._tikv.commit(fate.start_ts, fate.commit_ts)
        self._ledger.committed[fate.start_ts] = fate.commit_ts
        self._ledger.perhaps_unseen.add(fate.commit_ts)
        super().commit(fate, key, ddl=ddl)


class _DdlScripts(Workload):
    """The choice of DDL statements that the generator has, over our own catalogue."""

    def __init__(self, options: Options, parts: _Parts) -> None:
        super().__init__(options)
        self.model, self._catalogue, self._store = parts.model, parts.catalogue, parts.store
        self._ddl = parts.ddl

    def beginning(self) -> Script:
        return self._bootstrap()

    def some(self, *, changes_columns: bool) -> Iterable[Script]:
        if changes_columns:
            return self._some_ddl()
        makers: list[Callable[[], Iterable[Script]]] = [
            self._rename,
            self._truncate,
            self._side_table,
            self._add_index,
            self._drop_index,
            self._add_unique,
            self._scratch_database,
        ]
        if not any(self._indexable()):
            makers = makers[:3]
        if any(table.partition_ids for _, table in self._tables()):
            makers += [self._empty_partition] * 3
        return self._rng.choice(makers)()


@dataclass(slots=True)
class _Parts:
    model: Model
    catalogue: Catalogue
    store: Store
    ddl: DdlSession


class Tidb:
    """A cluster of TiDB servers on one PD and one TiKV; each server may die and come back."""

    def __init__(self, rng: random.Random, pd: SimPd, tikv: SimTikv, habit: Habit) -> None:
        self._rng, self._pd, self._tikv, self._habit = rng, pd, tikv, habit
        self.ledger = Ledger()
        self.on_acknowledged: Callable[[str, bytes], None] = lambda *_: None
        """Called in the moment in which a Pump has taken a prewrite: its name, and the binlog."""
        self.model = Model()
        self.catalogue = Catalogue()
        self._store = Store()
        timeline = _LiveTimeline(pd, tikv, self.ledger)
        self._timeline = timeline
        self._ddl = DdlSession(rng, self.catalogue, self._store, timeline, self.model)
        parts = _Parts(self.model, self.catalogue, self._store, self._ddl)
        options = Options(seed=rng.randrange(1 << 30), tables=habit.tables)
        self._scripts = _DdlScripts(options, parts)
        self._statements = Statements(rng, self._store)
        self._begun = 0
        self._ddl_begun = 0
        self.is_set_up = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether no transaction is begun any more."""
        return self._begun >= self._habit.transactions

    async def run(self) -> None:
        """Until all transactions are over, and their outcomes sent or given up."""
        while not await self._has_pumps():  # noqa: ASYNC110 - as a TiDB that starts does
            await asyncio.sleep(0.5)
        async with self._client() as client, asyncio.TaskGroup() as group:
            following = group.create_task(client.run())
            async with asyncio.TaskGroup() as sessions:
                sessions.create_task(self._own_ddl(client))
                for _ in range(self._habit.sessions):
                    sessions.create_task(self._session(client))
            following.cancel()

    async def _has_pumps(self) -> bool:
        """False while PD does not answer, too."""
        try:
            return bool(await self._pd.nodes(PUMP))
        except UpstreamUnavailable:
            return False

    def _client(self) -> PumpsClient:
        directory = _RegisteredAddresses(self._pd)
        return PumpsClient(directory, cluster_id=CLUSTER_ID, limits=LIMITS)

    # --- sessions ----------------------------------------------------------------------------

    async def _session(self, client: PumpsClient) -> None:
        await self.is_set_up.wait()
        async with asyncio.TaskGroup() as late:
            while not self.is_over:
                await asyncio.sleep(self._rng.expovariate(1 / self._habit.pause_s))
                start_ts = await self._timestamp()
                draft = self._drawn(start_ts)
                if draft is not None:
                    self._begun += 1
                    await self._transact(client, late, start_ts, draft)

    def _drawn(self, start_ts: Tso) -> Draft | None:
        draft = Draft(self._store, start_ts, self.catalogue.version)
        usable = [
            table for table in self.catalogue.tables.values() if table.id not in self._ddl.blocked
        ]
        if usable and self._rng.random() < self._habit.large:
            table = self._rng.choice(usable)
            for _ in range(self._habit.large_rows):
                self._statements.insert(draft, table)
        else:
            for table in self._rng.sample(usable, min(len(usable), self._rng.choice((1, 1, 2, 3)))):
                for _ in range(self._rng.randint(1, 4)):
                    self._statements.run(draft, table)
        if draft.row_changes:
            return draft
        draft.end()
        return None

    async def _transact(
        self, client: PumpsClient, late: asyncio.TaskGroup, start_ts: Tso, draft: Draft
    ) -> None:
        key, value = draft.prewrite_key(), draft.prewrite_value()
        prewrite = prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value)
        await self._pause()
        is_locked = self._tikv.lock(start_ts)
        try:
            await client.write(prewrite)
        except (PumpUnavailable, Refused):
            self.ledger.refused += 1
            self._end(start_ts, draft)
            return
        self._acknowledged(client, start_ts, prewrite)
        if self._rng.random() < self._habit.repeats:
            late.create_task(self._said_later(client, prewrite))
        await self._pause()
        commit_ts = await self._timestamp() if is_locked else NO_TS
        gives_up = self._rng.random() < self._habit.rollbacks
        if gives_up or not is_locked or self._tikv.is_rolled_back(start_ts):
            self._end(start_ts, draft)
            outcome = rollback_binlog(start_ts, prewrite_key=key)
        else:
            commit_ts = self._pd.handed_out()
            self._commit(start_ts, commit_ts, draft)
            outcome = commit_binlog(start_ts, commit_ts, prewrite_key=key)
        self._say(client, late, outcome)

    def _say(self, client: PumpsClient, late: asyncio.TaskGroup, outcome: bytes) -> None:
        chance = self._rng.random()
        if chance < self._habit.lost:
            return
        delay_s = 0.0
        if chance < self._habit.lost + self._habit.late:
            delay_s = self._rng.expovariate(1 / 5.0)
        late.create_task(self._said_later(client, outcome, delay_s))
        if self._rng.random() < self._habit.repeats:
            late.create_task(self._said_later(client, outcome, delay_s + 1.0))

    async def _said_later(self, client: PumpsClient, payload: bytes, delay_s: float = 0.0) -> None:
        """A TiDB does not look at what becomes of it."""
        await asyncio.sleep(delay_s)
        try:
            await client.write(payload)
        except (PumpUnavailable, Refused):
            self.ledger.refused += 1

    def _commit(self, start_ts: Tso, commit_ts: Tso, draft: Draft) -> None:
        self._tikv.commit(start_ts, commit_ts)
        self.ledger.committed[start_ts] = commit_ts
        self.ledger.values[commit_ts] = draft.prewrite_value()
        if not any(map(self._store.exists, draft.changes())):
            self.ledger.perhaps_unseen.add(commit_ts)
        self.model.write(commit_ts, draft.changes())
        draft.commit()

    def _end(self, start_ts: Tso, draft: Draft) -> None:
        self._tikv.roll_back(start_ts)
        self.ledger.rolled_back.add(start_ts)
        draft.end()

    # --- DDL ---------------------------------------------------------------------------------

    async def _own_ddl(self, client: PumpsClient) -> None:
        await self._played(client, self._scripts.beginning())
        self.is_set_up.set()
        every = self._habit.ddl_every
        while every and not self.is_over:
            if self._begun < (self._ddl_begun + 1) * every:
                await asyncio.sleep(0.5)
                continue
            self._ddl_begun += 1
            for script in self._scripts.some(changes_columns=self._habit.changes_columns):
                await self._played(client, script)

    async def _played(self, client: PumpsClient, script: Script) -> None:
        """A step, what it sends, and the next step only when that is taken."""
        for _ in script:
            for record in list(self._timeline.leaving()):
                await self._insisted(client, record)
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))

    async def _insisted(self, client: PumpsClient, record: Record) -> None:
        """The owner of the DDL tries a step again until it is done."""
        while True:  # until it is taken
            try:
                await client.write(record.payload)
            except PumpUnavailable:
                self.ledger.refused += 1
                await asyncio.sleep(1.0)
            else:
                if record.kind == BinlogType.PREWRITE:
                    self._acknowledged(client, record.fate.start_ts, record.payload)
                return

    # --- inside ------------------------------------------------------------------------------

    def _acknowledged(self, client: PumpsClient, start_ts: Tso, prewrite: bytes) -> None:
        taken_by = client._wrote[start_ts]
        self.ledger.acknowledged[start_ts] = taken_by
        self.on_acknowledged(taken_by, prewrite)

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / 0.02))

    async def _timestamp(self) -> Tso:
        while True:  # until PD answers
            try:
                return await self._pd.next()
            except UpstreamUnavailable:
                await asyncio.sleep(0.5)


def small(tables: Iterable[TableDef], rng: random.Random, count: int) -> tuple[TableDef, ...]:
    """Some of the standard tables, in their order."""
    every = list(tables)
    chosen = sorted(rng.sample(range(len(every)), min(count, len(every))))
    return tuple(replace(every[n]) for n in chosen)
