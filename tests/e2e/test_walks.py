"""An operator who does everything at once: commands in any order, several at a time, on one node
that is written to. No command ends in a stack or in silence, and at the end every row is there."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.drainer.sqlite.replica import storer_of
from binlogd.errors import Refused
from binlogd.tidb.model import Table
from binlogd.tso import physical_ms
from tests.support.appliance import READY_S, Appliance, run
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.model import Contents, TableName
from tests.workload.replica import differences
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

CLUSTER = 7
NODE_ID = "pump0"
TABLES = (
    '[upstream]\nschema-history = "history.json"\n'
    '[syncer]\ndb-type = "sqlite"\n[syncer.to]\ndir = "replica"\n'
)
CLOSE_TIMEOUT = "close-timeout = 5\n"
LOOKS: tuple[tuple[str, ...], ...] = (
    *(("status",), ("status", "--json"), ("health",), ("nodes",), ("ctl", "pumps"), ("skip",)),
    *(("dump", "--limit", "20"), ("dump", "--from", "TS", "--json"), ("txn", "TS"), ("base",)),
    *(
        ("undo", "--from", "TS"),
        ("check",),
        ("archive", "archive"),
        ("archive", "archive", "--check"),
    ),
    *(("archive", "archive", "--with-open"), ("adopt", "data"), ("restore",), ("checkpoint",)),
    *(("check-config", "--ask"), ("base", "mine", "--at", "TS"), ("base", "mine", "--withdraw")),
    *(("export", "--out", "snapshots", "--dry-run"), ("replay", "data/drainer")),
)
ACTS: tuple[tuple[str, ...], ...] = (
    *(("state", each, "--drainer", "--wait", "20") for each in ("pause", "close", "resume")),
    *(("state", each, "--drainer") for each in ("pause", "resume")),
    *(("state", "pause", "--wait", "20"), ("state", "close", "--wait", "20")),
    *(("ctl", each, "--node-id", NODE_ID) for each in ("pause-pump", "offline-pump")),
    *(
        ("ctl", each, "--node-id", f"{NODE_ID}-drainer")
        for each in ("pause-drainer", "offline-drainer")
    ),
    ("ctl", "update-pump", "--node-id", NODE_ID, "--state", "paused"),
)
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXITS = (0, 1, 2)
ENDS_AS = (0, -signal.SIGKILL)
WELL = ((1, "close_given_up"), (2, "is in use by process"))
"""What else a node may end by, and what it says then: `check` has the directory to itself."""


class Walk:
    """One node, and who does what to it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = Random(seed)
        self._history = directory / "history.json"
        write_history(self._history, b"[]")
        self._node = Appliance(directory)
        self._node.configure(TABLES, f'node-id = "{NODE_ID}"\n')
        with self._node.config_file.open("a") as config:
            config.write(CLOSE_TIMEOUT)
        self._workload = Workload(
            Options(seed=seed, transactions=1 << 40, ddl_every=60, rows_max=100, history=False)
        )
        self._commits: list[int] = [1]
        self._starting = asyncio.Lock()
        self._is_over = False

    async def run(self, steps: int) -> None:
        """So many moments with up to four things at once, and the comparison."""
        with closing(self._node):
            await asyncio.to_thread(self._node.start)
            limits = ClientLimits(prewrite_retry_s=READY_S, outcome_retry_interval_s=0.1)
            async with PumpClient(*self._node.target, cluster_id=CLUSTER, limits=limits) as client:
                self._client = client
                async with asyncio.TaskGroup() as group:
                    feeder = Feeder([self], in_flight=16, patience_s=READY_S)
                    group.create_task(feeder.feed(self._records()))
                    for _ in range(steps):
                        acts = [self._act() for _ in range(self._rng.randint(1, 4))]
                        await asyncio.gather(*acts)
                        await self._be_up()
                    self._is_over = True
                    self._workload.end()
            await asyncio.to_thread(self._come_to_rest)
        assert self._differences() == []
        checked = self._said("check", *self._config)
        assert checked[0] == 0, checked

    # --- traffic ---------------------------------------------------------------------------------

    async def write(self, payload: bytes) -> None:
        """As a TiDB that has no other Pump: what is refused while this one ends is sent again."""
        while True:  # until the node is back
            with suppress(Refused):
                return await self._client.write(payload)
            await asyncio.sleep(0.1)

    async def _records(self) -> AsyncIterator[Record]:
        jobs, ms = 0, 0
        for record in self._workload.records():
            if self._workload.job_count != jobs:
                jobs = self._workload.job_count
                write_history(self._history, self._workload.history())
            if not self._is_over and physical_ms(record.ts) > ms:
                await asyncio.sleep((physical_ms(record.ts) - ms) / 1000 if ms else 0)
                ms = physical_ms(record.ts)
            if record.fate.commit_ts:
                self._commits.append(record.fate.commit_ts)
            yield record

    # --- what is done ----------------------------------------------------------------------------

    async def _act(self) -> None:
        kind = self._rng.random()
        if kind < 0.25:
            number = self._rng.choice(SIGNALS)
            async with self._starting:
                await asyncio.to_thread(self._signal, number)
            return
        words = self._rng.choice(ACTS if kind < 0.5 else LOOKS)
        back = min(self._rng.randrange(100), len(self._commits) - 1)
        words = tuple(str(self._commits[-1 - back]) if each == "TS" else each for each in words)
        code, said = await asyncio.to_thread(self._said, *words, *self._config)
        assert code in EXITS, (words, code, said)
        assert "Traceback" not in said, (words, said)
        assert said.strip() or not code, words

    def _signal(self, number: signal.Signals) -> None:
        if self._node.exit_code is None:
            self._node.signal(number)
            if number != signal.SIGHUP:
                self._node.end()
                self._start()

    def _start(self) -> None:
        """Whatever an operator has ended is started again; it ends by nothing else."""
        code, said = self._node.exit_code, self._node.log()
        assert code in ENDS_AS or any(code == each and why in said for each, why in WELL), said
        self._node.start(is_ready=False)
        with suppress(AssertionError):  # a command that runs beside this ends it at once
            self._node.wait(lambda _: True)

    async def _be_up(self) -> None:
        while self._node.exit_code is not None:  # until no command is in its way
            await asyncio.to_thread(self._start)

    # --- the end ---------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        if self._node.exit_code is None:
            assert self._node.stop() == 0
        self._node.start()
        self._said("state", "resume", "--drainer", *self._config)
        last = self._workload.model.last_commit_ts
        self._node.wait(lambda now: now["max_commit_ts"] >= last and now["lag_s"] == 0)
        assert self._said("health", "--ready", *self._config)[0] == 0
        assert self._node.stop() == 0
        assert "Traceback" not in self._node.log_file.read_text()

    def _differences(self) -> list[str]:
        model = self._workload.model
        tables = model.tables()
        path = self._node.directory / "replica" / "replica.db"
        expected = {name: _stored(each, tables[name]) for name, each in model.contents().items()}
        return differences(expected, _held(path, expected))

    @property
    def _config(self) -> tuple[str, str]:
        return "--config", "binlogd.toml"

    def _said(self, *words: str) -> tuple[int, str]:
        done = run(self._node.directory, *words)
        return done.returncode, done.stdout + done.stderr


def _stored(contents: Contents, table: Table) -> Contents:
    """A table as the replica has it."""
    columns = {each.name: storer_of(each) for each in table.columns}
    stores = [columns[name] for name in contents.columns]
    rows = tuple(
        tuple(store(value) for store, value in zip(stores, row, strict=True))
        for row in contents.rows
    )
    return Contents(contents.columns, rows)


def _held(path: Path, expected: Mapping[TableName, Contents]) -> dict[TableName, Contents]:
    found: dict[TableName, Contents] = {}
    with closing(sqlite3.connect(path)) as replica:
        for (label,) in replica.execute("SELECT name FROM _binlogd_tables").fetchall():
            database, name = label.split(".", 1)
            columns = expected.get((database, name), Contents((), ())).columns
            names = ", ".join(f'"{each}"' for each in columns) or "1"
            rows = replica.execute(f'SELECT {names} FROM "{label}"').fetchall()
            found[database, name] = Contents(columns, tuple(rows))
    return found


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 5), *(pytest.param(seed, 20, marks=pytest.mark.soak) for seed in range(10, 20))],
)
async def test_every_row_is_there_after_whatever_an_operator_did(
    tmp_path: Path, seed: int, steps: int
) -> None:
    await Walk(tmp_path, seed).run(steps)
