"""The demo that stays up to be looked at: `make demo SERVE=1`.

A `binlogd serve` in a temporary directory gets some hundred binlogs a second until Ctrl-C. Whoever
looks at it may kill it: it is started again. At the end every row is compared, and nothing stays
behind. With `--mysql-url` a second one replicates the same into that server.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from binlogd.client.directory import FixedPumps
from binlogd.client.pumps_client import PumpsClient
from binlogd.tso import physical_ms
from tests.support.machine import Appliance
from tests.workload import demo
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.mysql_check import MySqlUrl
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

_AHEAD_S = 0.1
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Showing:
    """One run."""

    def __init__(self, directory: Path, workload: Workload, console: Console) -> None:
        self._directory, self._workload, self._console = directory, workload, console
        self._history = directory / "ddl_history.json"
        write_history(self._history, b"[]")
        self._appliances: list[Appliance] = []
        self._ending = asyncio.Event()
        self.restarts = 0
        self.files = self._add("file")

    def add_mysql(self, url: MySqlUrl) -> None:
        """A second one, that replicates into a server."""
        self._add("mysql", demo.into_mysql(url))

    def _add(self, name: str, syncer: str = "") -> Appliance:
        made = Appliance(
            self._directory / name, history=self._history, syncer=syncer, is_apart=True
        )
        self._appliances.append(made)
        return made

    async def run(self) -> None:
        """Until `end`, and then until everything is replicated."""
        async with AsyncExitStack() as stack:
            for each in self._appliances:
                stack.push_async_callback(each.close)
                await each.start()
            clients = [
                await stack.enter_async_context(
                    PumpsClient(
                        FixedPumps((each.host, each.port)),
                        cluster_id=demo.CLUSTER_ID,
                        limits=demo.LIMITS,
                    )
                )
                for each in self._appliances
            ]
            self._introduce()
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(each)) for each in self._appliances]
                feeder = Feeder([demo.Tee(clients)], in_flight=demo.IN_FLIGHT)
                await feeder.feed(self._records())
                await self._ending.wait()
                await self._catch_up()
                for keeper in keepers:
                    keeper.cancel()
            for each in self._appliances:
                await each.stop()

    def _introduce(self) -> None:
        command, config = ".venv/bin/binlogd", self.files.config
        lines = [
            ("its page", f"http://{self.files.host}:{self.files.port}/"),
            ("its state", f"{command} status --config {config}"),
            ("what commits", f"{command} dump --follow --config {config}"),
            ("kill it", f"kill -9 {self.files.pid}"),
            ("end it", "Ctrl-C"),
        ]
        self._console.print("binlogd runs, and is written to.\n", highlight=False)
        for name, text in lines:
            self._console.print(f"  {name:<14}{text}", highlight=False, soft_wrap=True)
        self._console.print()

    async def _records(self) -> AsyncIterator[Record]:
        """At the pace of the clock; the history is published before the binlog that needs it."""
        jobs = 0
        for record in self._workload.records():
            ahead_s = physical_ms(record.ts) / 1000 - time.time()
            if ahead_s > _AHEAD_S and not self._ending.is_set():
                await asyncio.sleep(ahead_s)
            if self._workload.job_count != jobs:
                jobs = self._workload.job_count
                write_history(self._history, self._workload.history())
            yield record
        if not self._ending.is_set():
            committed = self._workload.statistics().committed
            self._console.print(f"{committed:,} transactions are enough: no more is written.")

    async def _keep(self, appliance: Appliance) -> None:
        while True:  # until cancelled, when all is replicated
            code = await appliance.ended()
            self.restarts += 1
            await appliance.start()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._console.print(
                f"It has ended ({how}), and is back as process {appliance.pid}.", highlight=False
            )

    def end(self) -> bool:
        """No more is written, and `run` ends soon; False where that was said before."""
        if self._ending.is_set():
            return False
        self._ending.set()
        self._workload.end()
        self._console.print(
            "\nNothing more is written; every row is compared. Ctrl-C again leaves that out."
        )
        return True

    async def _catch_up(self) -> None:
        last = self._workload.model.last_commit_ts
        for each in self._appliances:
            await each.wait(
                lambda status: status["max_commit_ts"] >= last and status["lag_s"] == 0,
                timeout_s=demo.CATCH_UP_S,
            )


async def _run(console: Console, options: Options, url: MySqlUrl | None) -> bool:
    workload, loop = Workload(options), asyncio.get_running_loop()
    run = asyncio.current_task()
    assert run is not None
    with tempfile.TemporaryDirectory(prefix="binlogd-demo-") as name:
        showing = Showing(Path(name), workload, console)
        if url is not None:
            await demo.clear(url)
            showing.add_mysql(url)
        for each in _ENDS:
            loop.add_signal_handler(each, lambda: showing.end() or run.cancel())
        try:
            await showing.run()
        finally:
            for each in _ENDS:
                loop.remove_signal_handler(each)
        found, _ = await demo.differences_of(showing.files, workload, url)
    made = workload.statistics()
    console.print(
        f"{made.committed:,} transactions with {made.rows:,} rows, {made.ddl_jobs:,} DDL jobs,"
        f" started again {showing.restarts} times: {len(found):,} lost or different",
        highlight=False,
        soft_wrap=True,
    )
    demo.tell_verdict(console, found)
    left = f"the databases {demo.PREFIX}… in your server" if url is not None else "nothing"
    console.print(f"It leaves {left}: {name} is removed.", highlight=False)
    return not found


def _main(
    transactions: Annotated[int, typer.Option(min=100, help="How many are enough.")] = 200_000,
    seed: Annotated[int, typer.Option(help="The same seed writes the same rows.")] = 1,
    ddl_every: Annotated[int, typer.Option(min=1, help="Transactions between two DDLs.")] = 1_000,
    mysql_url: Annotated[
        str, typer.Option(help="mysql://user:password@host:port to replicate into as well.")
    ] = "",
) -> None:
    """Runs the appliance under load until Ctrl-C, and compares what came out, row by row."""
    options = Options(
        seed=seed,
        transactions=transactions,
        ddl_every=ddl_every,
        prefix=demo.PREFIX,
        begin_ms=time.time_ns() // 1_000_000,
        history=False,
    )
    try:
        demo.main(_run, options, mysql_url)
    except (KeyboardInterrupt, asyncio.CancelledError):
        Console().print("Not compared. It leaves nothing.")
        sys.exit(130)


if __name__ == "__main__":
    typer.run(_main)
