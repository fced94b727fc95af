"""The appliance from end to end: fed, killed in the middle, compared row by row.

`python -m tests.workload.demo` starts `binlogd serve` on its defaults in a temporary directory,
writes transactions to it over gRPC, kills it with SIGKILL while requests are in flight, starts it
again, waits until nothing lags, and compares the files that came out with what must be in them.
With `--mysql-url` a second appliance gets the same and replicates into that server, into databases
whose names begin with `binlogd_demo_`; those of an earlier run are dropped.

Lag is the time from the acknowledgement of a Commit to the moment its transaction is read from the
sink's file (looked at every 5 ms); transactions that were under way during the kill are left out.
Exit code 1 when anything differs, 2 for a wrong command. `showing` is the form that stays up.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from binlogd.binlog import BinlogType
from binlogd.client.directory import FixedPumps
from binlogd.client.pump_client import ClientLimits
from binlogd.client.pumps_client import PumpsClient, PumpsLimits
from binlogd.errors import BinlogdError, ConfigError, Unavailable
from tests.support.machine import Appliance
from tests.workload.feed import Feeder, Writer
from tests.workload.generator import Options, Workload
from tests.workload.mysql_check import MySqlReader, MySqlUrl, as_mysql_prints
from tests.workload.replica import Replica, differences
from tests.workload.sink_tail import SinkTail, replay
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

PREFIX = "binlogd_demo_"
CLUSTER_ID = 4711
LIMITS = PumpsLimits(
    each=ClientLimits(prewrite_retry_s=60, outcome_retry_s=60, outcome_retry_interval_s=0.1)
)
SESSIONS = 64
IN_FLIGHT = 64
_TAIL_EVERY_S = 0.005
CATCH_UP_S = 180.0
DIFFERENCES_MAX = 10


@dataclass(slots=True)
class Measured:
    """What a run showed."""

    feed_s: float = 0.0
    catch_up_s: float = 0.0
    killed_in_flight: int = 0
    down_from_s: float = 0.0
    down_until_s: float = 0.0
    applied_twice: int = 0


class Tee:
    """A Pump that is several: acknowledged when all have acknowledged."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers

    async def write(self, payload: bytes) -> None:
        """See `feed.Writer`."""
        for writer in self._writers:
            await writer.write(payload)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload made beforehand, so that making it costs the run no time.

    `histories` holds what `/ddl/history` answers from the n-th record on.
    """

    workload: Workload
    records: list[Record]
    histories: dict[int, bytes]
    outcomes: int

    @classmethod
    def of(cls, workload: Workload, progress: Progress, transactions: int) -> Prepared:
        """Makes all of it."""
        bar = progress.add_task("prepared", total=transactions)
        records: list[Record] = []
        histories: dict[int, bytes] = {}
        jobs = 0
        for record in workload.records():
            if workload.job_count != jobs:
                jobs = workload.job_count
                histories[len(records)] = workload.history()
            records.append(record)
            if len(records) % 100 == 0:
                made = workload.statistics()
                progress.update(bar, completed=made.committed + made.rolled_back)
        progress.update(bar, completed=transactions)
        outcomes = sum(map(_is_outcome, records))
        return cls(workload, records, histories, outcomes)


def _is_outcome(record: Record) -> bool:
    return record.kind != BinlogType.PREWRITE and not record.is_repeat


def into_mysql(url: MySqlUrl) -> str:
    """The part of a configuration that replicates into a server."""
    return (
        f'[syncer]\ndb-type = "mysql"\n\n[syncer.to]\nhost = "{url.host}"\nport = {url.port}\n'
        f'user = "{url.user}"\npassword = "{url.password}"\n\n'
        f'[syncer.to.checkpoint]\nschema = "{PREFIX}checkpoint"\n'
    )


class Demo:
    """One run."""

    def __init__(self, directory: Path, prepared: Prepared) -> None:
        self._prepared = prepared
        self._history = directory / "ddl_history.json"
        write_history(self._history, b"[]")
        self.file = Appliance(directory / "file", history=self._history)
        self._appliances = [self.file]
        self._acknowledged_at: dict[int, float] = {}
        self._seen_at: dict[int, float] = {}
        self._outcomes = 0
        self._fed, self._caught_up = asyncio.Event(), asyncio.Event()
        self.measured = Measured()

    def add_mysql(self, directory: Path, url: MySqlUrl) -> None:
        """A second appliance that replicates into a server."""
        self._appliances.append(
            Appliance(directory / "mysql", history=self._history, syncer=into_mysql(url))
        )

    async def run(self, progress: Progress) -> None:
        """Feeds, kills, restarts, waits and stops. Raises what BinlogdError there is."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for each in self._appliances:
                stack.push_async_callback(each.close)
                await each.start()
            clients = [
                await stack.enter_async_context(
                    PumpsClient(
                        FixedPumps((each.host, each.port)), cluster_id=CLUSTER_ID, limits=LIMITS
                    )
                )
                for each in self._appliances
            ]
            feeder = Feeder(
                [Tee(clients)], in_flight=IN_FLIGHT, acknowledged=self._note_acknowledged
            )
            begin_s = loop.time()
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(progress))
                group.create_task(self._kill_in_the_middle(feeder))
                await feeder.feed(self._records())
                self._fed.set()
                self.measured.feed_s = loop.time() - begin_s
                await self._catch_up()
                self.measured.catch_up_s = loop.time() - begin_s - self.measured.feed_s
                await watching
            for each in self._appliances:
                code = await each.stop()
                if code != 0:
                    raise Unavailable(f"binlogd ended with exit code {code} after SIGTERM")

    def lags_s(self) -> list[float]:
        """Of the transactions that were not under way during the kill, ascending."""
        down = (self.measured.down_from_s, self.measured.down_until_s)
        lags = []
        for commit_ts, acknowledged_at in self._acknowledged_at.items():
            seen_at = self._seen_at.get(commit_ts)
            if seen_at is not None and (seen_at < down[0] or acknowledged_at > down[1]):
                lags.append(max(0.0, seen_at - acknowledged_at))
        return sorted(lags)

    async def _records(self) -> AsyncIterator[Record]:
        """The workload's records; the history is published before the binlog that needs it."""
        for number, record in enumerate(self._prepared.records):
            history = self._prepared.histories.get(number)
            if history is not None:
                write_history(self._history, history)
            yield record

    def _note_acknowledged(self, record: Record) -> None:
        self._outcomes += _is_outcome(record)
        if record.kind == BinlogType.COMMIT:
            now_s = asyncio.get_running_loop().time()
            self._acknowledged_at.setdefault(record.ts, now_s)

    async def _kill_in_the_middle(self, feeder: Feeder) -> None:
        loop = asyncio.get_running_loop()
        while (
            self._outcomes < self._prepared.outcomes * 0.45
            or feeder.statistics().in_flight < IN_FLIGHT // 4
        ):
            if self._fed.is_set():
                raise Unavailable("there was no middle: nothing was in flight to be killed")
            await asyncio.sleep(_TAIL_EVERY_S)
        self.measured.killed_in_flight = feeder.statistics().in_flight
        self.measured.down_from_s = loop.time()
        for each in self._appliances:
            await each.kill()
        for each in self._appliances:
            await each.start()
        self.measured.down_until_s = loop.time()

    async def _catch_up(self) -> None:
        last = self._prepared.workload.model.last_commit_ts
        for each in self._appliances:
            await each.wait(
                lambda status: status["max_commit_ts"] >= last and status["lag_s"] == 0,
                timeout_s=CATCH_UP_S,
            )
        self._caught_up.set()

    async def _watch(self, progress: Progress) -> None:
        """Reads the sink's files as they grow, and moves the bars."""
        loop = asyncio.get_running_loop()
        commits = sum(
            record.kind == BinlogType.COMMIT and not record.is_repeat
            for record in self._prepared.records
        )
        written = progress.add_task("written", total=self._prepared.outcomes)
        replicated = progress.add_task("replicated", total=commits)
        tail = SinkTail(self.file.data_dir / "drainer")
        is_over = False
        while not is_over:
            is_over = self._caught_up.is_set()
            for commit_ts in tail.poll():
                self._seen_at.setdefault(commit_ts, loop.time())
            progress.update(written, completed=self._outcomes)
            progress.update(replicated, completed=len(self._seen_at))
            await asyncio.sleep(_TAIL_EVERY_S)
        progress.update(replicated, completed=commits)


async def differences_of(
    files: Appliance, workload: Workload, url: MySqlUrl | None
) -> tuple[list[str], int]:
    """Everything that is not as it must be, in the files and in the server; and how many
    transactions the files have twice."""
    expected, tables = workload.model.contents(), workload.model.tables()
    replica = Replica()
    _, applied_twice = replay(files.data_dir / "drainer", replica)
    found = [f"files: {line}" for line in replica.problems]
    found += [f"files: {line}" for line in differences(expected, replica.contents())]
    if url is not None:
        async with MySqlReader.connected(url) as reader:
            held = await reader.contents(tables, PREFIX)
        held = {name: each for name, each in held.items() if name[0] != f"{PREFIX}checkpoint"}
        printed = {name: as_mysql_prints(each, tables[name]) for name, each in expected.items()}
        found += [f"mysql: {line}" for line in differences(printed, held)]
    return found, applied_twice


def tell_verdict(console: Console, found: Sequence[str]) -> None:
    """The last lines of a run."""
    for line in found[:DIFFERENCES_MAX]:
        console.print(f"[red]differs[/] {line}", highlight=False, markup=True)
    if not found:
        console.print("[green]every row is what it must be[/]")


async def clear(url: MySqlUrl) -> None:
    """Drops what an earlier run has left in the server."""
    async with MySqlReader.connected(url) as reader:
        for name in await reader.databases(PREFIX):
            await reader.drop_database(name)


async def _run(console: Console, options: Options, url: MySqlUrl | None) -> bool:
    workload = Workload(options)
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn())
    with tempfile.TemporaryDirectory(prefix="binlogd-demo-") as name:
        directory = Path(name)
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            demo = Demo(directory, Prepared.of(workload, progress, options.transactions))
            if url is not None:
                await clear(url)
                demo.add_mysql(directory, url)
            await demo.run(progress)
        found, demo.measured.applied_twice = await differences_of(demo.file, workload, url)
    console.print(_summary(demo, workload, lost=len(found)))
    tell_verdict(console, found)
    return not found


def _summary(demo: Demo, workload: Workload, *, lost: int) -> RichTable:
    made, measured, lags = workload.statistics(), demo.measured, demo.lags_s()
    table = RichTable(show_header=False)
    busy_s = measured.feed_s + measured.catch_up_s
    rows: tuple[tuple[str, str], ...] = (
        ("transactions", f"{made.committed:,} committed, {made.rolled_back:,} rolled back"),
        ("rows", f"{made.rows:,}"),
        ("DDL jobs", f"{made.ddl_jobs:,}"),
        ("binlogs out of order", f"{made.late:,} late, {made.lost:,} very late"),
        ("duplicates seen", f"{made.repeats:,} sent twice, {measured.applied_twice:,} came out"),
        ("killed", f"SIGKILL with {measured.killed_in_flight} requests in flight"),
        ("lost or different", f"{lost:,}"),
        ("throughput", f"{made.rows / busy_s:,.0f} rows/s, kill and restart included"),
        (
            "lag p50 / p99 at full speed",
            f"{_percentile_ms(lags, 0.5)} / {_percentile_ms(lags, 0.99)}",
        ),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _percentile_ms(ascending: Sequence[float], share: float) -> str:
    if not ascending:
        return "-"
    return f"{ascending[int(share * (len(ascending) - 1))] * 1000:,.0f} ms"


def _main(
    transactions: Annotated[int, typer.Option(min=100, help="How many to write.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The same seed writes the same bytes.")] = 1,
    ddl_every: Annotated[
        int, typer.Option(min=0, help="Transactions between two DDL statements; 0: some hundred.")
    ] = 0,
    mysql_url: Annotated[
        str, typer.Option(help="mysql://user:password@host:port to replicate into as well.")
    ] = "",
) -> None:
    """Runs the appliance from end to end and compares what comes out, row by row."""
    options = Options(
        seed=seed,
        transactions=transactions,
        sessions=SESSIONS,
        ddl_every=ddl_every or max(120, transactions // 100),
        prefix=PREFIX,
    )
    main(_run, options, mysql_url)


def main(
    run: Callable[[Console, Options, MySqlUrl | None], Coroutine[object, object, bool]],
    options: Options,
    mysql_url: str,
) -> NoReturn:
    """Ends the process: by 0 where every row is what it must be."""
    console = Console()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        url = MySqlUrl.parse(mysql_url) if mysql_url else None
    except ConfigError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        sys.exit(2)
    is_equal = False
    try:
        is_equal = asyncio.run(run(console, options, url))
    except* BinlogdError as group:
        for sentence in _sentences(group):
            console.print(f"[red]{sentence}[/]", highlight=False)
    sys.exit(0 if is_equal else 1)


def _sentences(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _sentences(error)
        else:
            yield str(error)


if __name__ == "__main__":
    typer.run(_main)
