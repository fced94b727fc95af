"""Exports that a running service is asked for: a queue with an end, a child that stays a while."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from binlogd.errors import ConfigError, Refused
from binlogd.serving.routes.application import add_exports
from binlogd.snapshot.bases import choice
from binlogd.snapshot.export import ExportOptions, ExportResult, export
from binlogd.snapshot.export_queue import WAITING_MAX, AskedExport, ExportJob, ExportQueue
from binlogd.snapshot.process.launcher import Borrow, JobProcess, Notice, WarmJob
from binlogd.snapshot.spec import Progress, SessionSpec
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso
from tests.support import recordings_reader
from tests.support.appliance import environment
from tests.support.data_directory import write_log
from tests.support.processes import children_of
from tests.support.program import Program

RECORDING = Path(__file__).parents[2] / "recordings" / "keys"
POLL_S = 0.01
PATIENCE_S = 300
"""A JVM takes a minute where many others run."""


class Exporter:
    """Exports nothing; holds each one until it is let go."""

    def __init__(self) -> None:
        self.asked: list[AskedExport] = []
        self.let_go = asyncio.Semaphore(0)

    async def __call__(self, request: AskedExport, notice: Notice, _: Borrow) -> ExportResult:
        """Fails for a base of that name."""
        self.asked.append(request)
        notice(Progress("rows", 1, 2))
        await self.let_go.acquire()
        if request.base == "none":
            raise Refused("it was to be so")
        nothing = choice.Chosen(None, NO_TS, "")
        return ExportResult(Path("/out/snapshot-7"), Tso(7), 1, 2, 3, (), nothing)


@asynccontextmanager
async def at_work(queue: ExportQueue) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        working = group.create_task(queue.run())
        try:
            yield
        finally:
            working.cancel()


async def until(job: ExportJob, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while job.state != state:  # noqa: ASYNC110 - it asks from outside, as a client does
            await asyncio.sleep(POLL_S)


def left_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_exports_are_done_in_their_order_and_one_that_fails_ends_nothing(
    tmp_path: Path,
) -> None:
    exporter = Exporter()
    queue = ExportQueue(tmp_path, exporter, 60)
    async with at_work(queue):
        bad, good = queue.ask(AskedExport(base="none")), queue.ask(AskedExport(as_of="7"))
        await until(bad, "running")
        assert (good.state, bad.stage, bad.done, bad.total) == ("waiting", "rows", 1, 2)
        exporter.let_go.release()
        await until(bad, "failed")
        assert bad.message == "it was to be so"
        exporter.let_go.release()
        await until(good, "done")
        assert (good.path, good.commit_ts, good.rows) == ("/out/snapshot-7", 7, 2)
    assert [each.base for each in exporter.asked] == ["none", "auto"]
    assert left_in(tmp_path) == []


async def test_a_full_queue_and_a_moment_that_is_none_are_refused_at_once(tmp_path: Path) -> None:
    queue = ExportQueue(tmp_path, Exporter(), 60)
    for _ in range(WAITING_MAX):
        queue.ask(AskedExport())
    with pytest.raises(Refused, match="wait already"):
        queue.ask(AskedExport())
    with pytest.raises(ConfigError):
        queue.ask(AskedExport(as_of="yesterday"))
    assert len(queue.jobs()) == WAITING_MAX


async def test_what_waits_and_what_runs_can_be_cancelled(tmp_path: Path) -> None:
    exporter = Exporter()
    queue = ExportQueue(tmp_path, exporter, 60)
    async with at_work(queue):
        first, second, third = (queue.ask(AskedExport()) for _ in range(3))
        await until(first, "running")
        assert queue.cancel(second.id) is second
        assert queue.cancel(first.id) is first
        assert queue.cancel(99) is None
        await until(first, "cancelled")
        exporter.let_go.release()
        await until(third, "done")
    assert second.state == "cancelled"
    assert len(exporter.asked) == 2


async def test_the_routes_ask_look_and_cancel(tmp_path: Path) -> None:
    exporter = Exporter()
    queue = ExportQueue(tmp_path, exporter, 60)
    routes = web.Application()
    add_exports(routes.router, queue)
    async with TestClient(TestServer(routes)) as client, at_work(queue):
        asked = await client.post("/exports", data=json.dumps({"as_of": "7"}))
        assert asked.status == 202
        number = (await asked.json())["id"]
        assert (await client.post("/exports", data='{"as": 1}')).status == 400
        assert (await client.post("/exports", data='{"as_of": "never"}')).status == 400
        assert (await client.post("/exports", data=b'{"as_of": "\xff"}')).status == 400
        listed = await (await client.get("/exports")).json()
        assert [each["id"] for each in listed] == [number]
        await until(queue.jobs()[0], "running")
        assert (await client.delete(f"/exports/{number}")).status == 200
        await until(queue.jobs()[0], "cancelled")
        shown = await (await client.get(f"/exports/{number}")).json()
        assert shown["state"] == "cancelled"
        assert (await client.get("/exports/x")).status == 404


async def test_a_command_asks_follows_and_tells_as_one_of_its_own_would(tmp_path: Path) -> None:
    exporter = Exporter()
    queue = ExportQueue(tmp_path, exporter, 60)
    routes = web.Application()
    add_exports(routes.router, queue)
    async with TestClient(TestServer(routes)) as client, at_work(queue):
        where = f"{client.host}:{client.port}"
        bad = Command(tmp_path, "export", "--via", where, "--base", "none")
        await asked_for(queue, 1)
        url = f"http://{where}"
        good = Command(tmp_path, "export", "--via", url, "--as-of", "7", "--json")
        await asked_for(queue, 2)
        given_up = Command(tmp_path, "export", "--via", where)
        await asked_for(queue, 3)
        listed = Command(tmp_path, "exports", "--via", where)
        assert await listed.ended() == 0
        assert "running: rows 50 %" in listed.out.read_text()
        given_up.program.send_signal(signal.SIGINT)
        await until(queue.jobs()[2], "cancelled")
        assert await given_up.ended() == 130
        assert given_up.err.read_text().startswith("cancelled: nothing was published")
        exporter.let_go.release()
        exporter.let_go.release()
        assert await bad.ended() == 1
        assert "it was to be so" in bad.err.read_text()
        assert await good.ended() == 0
        assert json.loads(good.out.read_text())["path"] == "/out/snapshot-7"
        wrong = Command(tmp_path, "export", "--via", where, "--as-of", "yesterday")
        assert await wrong.ended() == 2
        mixed = Command(tmp_path, "export", "--via", where, "--out", "here", "--keep", "3")
        assert await mixed.ended() == 2
        assert "--out, --keep: not with --via" in mixed.err.read_text()
        nowhere = Command(tmp_path, "exports", "--via", "foo")
        assert await nowhere.ended() == 2
        assert '--via: expected "host:port", got "foo"' in nowhere.err.read_text()
        out = Exposition()
        queue.say(out)
    for line in (
        'binlogd_exports_finished{outcome="done"} 1',
        'binlogd_exports_finished{outcome="failed"} 1',
        'binlogd_exports_finished{outcome="cancelled"} 1',
        "binlogd_exports_rows 2",
        "binlogd_exports_seconds_count 1",
    ):
        assert line in out.text().decode()
    assert queue.status().running is None


class Command:
    """`binlogd`, beside the loop of a test."""

    def __init__(self, directory: Path, *words: str) -> None:
        name = f"command-{len(list(directory.glob('command-*.out')))}"
        self.out, self.err = (directory / f"{name}.{kind}" for kind in ("out", "err"))
        for path in (self.out, self.err):
            path.touch()
        self.program = Program(words, directory, environment(), self.out, self.err)

    async def ended(self) -> int:
        """The exit code."""
        async with asyncio.timeout(PATIENCE_S):
            while (code := self.program.poll()) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(POLL_S)
        return code


async def asked_for(queue: ExportQueue, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(queue.jobs()) < count:  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(POLL_S)


async def test_a_service_without_exports_says_what_to_set() -> None:
    routes = web.Application()
    add_exports(routes.router, None)
    async with TestClient(TestServer(routes)) as client:
        answer = await client.post("/exports")
        assert answer.status == 503
        assert "export.dir" in (await answer.json())["message"]


@pytest.mark.skipif(
    shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java"
)
@pytest.mark.soak  # two starts of Spark
async def test_two_exports_share_one_child_that_leaves_when_it_is_idle(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    pids: list[list[int]] = []
    write_log(data_dir, (record.payload for record in recordings_reader.records(RECORDING)))

    async def fulfil(request: AskedExport, notice: Notice, borrow: Borrow) -> ExportResult:
        options = ExportOptions(
            data_dir=data_dir,
            out=tmp_path / f"out{len(pids)}",
            schema_history=recordings_reader.history(RECORDING),
            as_of=request.as_of,
        )

        def noticed(progress: Progress) -> None:
            if progress.stage == "publishing":
                pids.append(children())
            notice(progress)

        return await export(options, noticed, borrow)

    queue = ExportQueue(data_dir, fulfil, 1.0)
    async with at_work(queue):
        first, second = queue.ask(AskedExport()), queue.ask(AskedExport())
        await until(first, "done")
        await until(second, "done")
        assert pids[0] == pids[1] != []
        async with asyncio.timeout(PATIENCE_S):
            while children():  # noqa: ASYNC110 - the end of another process
                await asyncio.sleep(POLL_S)
    assert first.rows == second.rows > 0
    assert left_in(data_dir) == ["pump"]


async def test_a_child_is_waited_for_also_when_its_first_end_was_cut_short(tmp_path: Path) -> None:
    job = WarmJob(tmp_path)
    async with job.borrow(SessionSpec(scratch=""), tmp_path / "log") as child:
        os.kill(child.pid, signal.SIGSTOP)
    while not is_stopped(child.pid):  # noqa: ASYNC110 - the state of another process
        await asyncio.sleep(POLL_S)
    leaving = asyncio.create_task(job.end())
    await asyncio.sleep(0)  # it has told the child, and waits
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    again = asyncio.create_task(job.end())
    await asyncio.sleep(0)
    is_waiting = not again.done()
    os.kill(child.pid, signal.SIGCONT)
    await again
    assert is_waiting
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_a_start_that_is_cancelled_at_any_step_leaves_no_child(tmp_path: Path) -> None:
    for steps in range(12):
        starting = asyncio.create_task(JobProcess.start(SessionSpec(scratch=""), tmp_path / "log"))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await (await starting).end()
        assert children() == [], steps


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def children() -> list[int]:
    """Job processes of this process."""
    return children_of([os.getpid()], b"binlogd.snapshot.child")
