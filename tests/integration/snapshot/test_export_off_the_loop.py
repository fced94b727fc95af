"""An export that a service is asked for: its loop touches none of the files, whose number nobody
bounds, and nothing is left of one that is cancelled."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from binlogd.errors import Refused
from binlogd.snapshot.export import ExportOptions, ExportResult, export
from binlogd.snapshot.export_queue import ExportQueue
from binlogd.snapshot.process.launcher import Borrow, JobProcess
from binlogd.snapshot.publishing.publish import snapshots
from binlogd.snapshot.spec import ExportSpec, FileEntry, Report, SessionSpec
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.data_directory import write_log
from tests.support.pump_world import eventually
from tests.support.snapshots import snapshot

TOUCHES = {"open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
TOUCHES |= {"os.scandir", "os.symlink", "shutil.rmtree", "shutil.copyfile"}


class Watch:
    """What is touched below a directory while somebody looks: by the thread that looks, and by any.

    `at` is called when so many have been, whichever thread it is.
    """

    def __init__(self) -> None:
        self._below = ""
        self._thread = self._count = self._at_count = 0
        self._at: Callable[[], object] = int
        self.touched: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        if not self._below or event not in TOUCHES or not str(words[0]).startswith(self._below):
            return
        self._count += 1
        if threading.get_ident() == self._thread:
            self.touched.append(f"{event} {str(words[0]).removeprefix(self._below)}")
        if self._count == self._at_count:
            self._at()

    @contextmanager
    def looking(
        self, below: Path, at_count: int = 0, at: Callable[[], object] = int
    ) -> Iterator[list[str]]:
        self._below, self._thread, self.touched = str(below), threading.get_ident(), []
        self._count, self._at_count, self._at = 0, at_count, at
        try:
            yield self.touched
        finally:
            self._below = ""

    @property
    def count(self) -> int:
        """How often something was touched while somebody looked."""
        return self._count


WATCH = Watch()  # an audit hook is for ever


class Job:
    """Stages a snapshot without tables, as a child with Spark would one with some."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path

    async def export(self, spec: ExportSpec, _: object) -> Report:
        return Report(
            commit_ts=20,
            resolved_ts=20,
            spark_version="4",
            tables=(),
            left_out=(),
            schema=FileEntry("_schema.json", 0, 2, ""),
        )


@asynccontextmanager
async def staging(_: SessionSpec, log_path: Path) -> AsyncIterator[JobProcess]:
    yield cast(JobProcess, Job(log_path))


@asynccontextmanager
async def refusing(_: SessionSpec, __: Path) -> AsyncIterator[JobProcess]:
    raise Refused("there is none today")
    yield


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[Borrow], Any]:
    payloads = [
        each
        for ts in range(1, 20, 2)
        for each in (prewrite_binlog(Tso(ts)), commit_binlog(Tso(ts), Tso(ts + 1)))
    ]
    write_log(tmp_path / "data", payloads, segment_bytes=100)
    snapshot(tmp_path / "out", 5, [])
    snapshot(tmp_path / "out", 6, [])
    options = ExportOptions(
        data_dir=tmp_path / "data", out=tmp_path / "out", schema_history=b"[]", keep=1
    )
    return lambda borrow: export(options, borrow=borrow)


async def test_an_export_links_reads_and_removes_nothing_on_the_loop(
    asked: Callable[[Borrow], Any], tmp_path: Path
) -> None:
    with WATCH.looking(tmp_path) as touched:
        made: ExportResult = await asked(staging)
    assert touched == []
    assert [path.name for path in made.removed] == ["snapshot-6", "snapshot-5"]
    assert list(snapshots(tmp_path / "out")) == [made.path]


async def test_nor_does_one_that_fails(asked: Callable[[Borrow], Any], tmp_path: Path) -> None:
    with WATCH.looking(tmp_path) as touched, pytest.raises(Refused, match="none today"):
        await asked(refusing)
    assert touched == []
    assert not list((tmp_path / "out").glob(".staging-*"))


async def test_nothing_is_left_of_an_export_that_is_cancelled_at_any_step(
    asked: Callable[[Borrow], Any], tmp_path: Path
) -> None:
    with WATCH.looking(tmp_path), pytest.raises(Refused):
        await asked(refusing)
    steps, ended = WATCH.count, []
    assert steps > 50
    loop = asyncio.get_running_loop()
    for step in range(1, steps, steps // 8):
        task = asyncio.ensure_future(asked(refusing))
        with WATCH.looking(tmp_path, step, lambda: loop.call_soon_threadsafe(task.cancel)):  # noqa: B023 - it is over before the next
            await asyncio.gather(task, return_exceptions=True)
        ended.append(task.cancelled())
        assert not list((tmp_path / "out").glob(".staging-*"))
    assert ended.count(True) >= 6


async def test_a_desk_sweeps_what_an_earlier_life_left_beside_the_loop(tmp_path: Path) -> None:
    async def never(*_: object) -> ExportResult:
        raise AssertionError

    (tmp_path / ".spark-old" / "spark").mkdir(parents=True)
    with WATCH.looking(tmp_path) as touched:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(ExportQueue(tmp_path, never, 60).run())
            await eventually(lambda: not (tmp_path / ".spark-old").exists())
            running.cancel()
    assert touched == []
    assert left_in(tmp_path) == []


async def test_a_job_is_ended_without_a_look_at_all_processes_on_the_loop(tmp_path: Path) -> None:
    job = await JobProcess.start(SessionSpec(scratch=""), tmp_path / "log")
    with WATCH.looking(Path("/proc")) as touched:
        await job.end()
    assert touched == []
    assert WATCH.count > 1
    assert not job.is_alive


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())
