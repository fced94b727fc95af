"""The archiver beside a Pump: what it cannot bring away is told, tried again, and never deleted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from binlogd.archive.archiver import Archiver, ArchiverOptions
from binlogd.archive.task import Keep, Task
from binlogd.archive.upload import archive, verify
from binlogd.log.directory import STORE_FILE
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FIRST, FileId, ValuePointer
from binlogd.status import ArchiveStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.tidb.job_index import JobEntry
from binlogd.tidb.model import job_from_json
from binlogd.tso import MAX_TS, NO_TS, Tso, physical_ms
from binlogd.upstream.store import UpstreamStore
from tests.support.growing_log import GrowingLog, binlogs
from tests.support.logged import Logged
from tests.support.pump_world import eventually
from tests.support.snapshots import manifest
from tests.workload.generator import Options, Workload


def segments(directory: Path) -> list[Segment]:
    """As a Pump knows them: all but the last are sealed, and timestamps grow with them."""
    paths = sorted(directory.glob("*.vlog"))
    return [
        Segment(FileId(at), at + 1 < len(paths), path.stat().st_size, max_ts=Tso(1000 + at))
        for at, path in enumerate(paths)
    ]


async def test_an_archive_out_of_reach_holds_everything_until_it_is_back(tmp_path: Path) -> None:
    options = Options(seed=24, transactions=60, ddl_every=30)
    logged = Logged.write(tmp_path, options, segment_bytes=1 << 13)
    shards = sorted((logged.data_dir / "pump").glob("shard-*/value"))
    held: list[Tso] = []

    def logs() -> Sequence[tuple[ValuePointer, Sequence[Segment]]]:
        return [(ValuePointer(FileId(1 << 20), 0), segments(each)) for each in shards]

    async def refresh() -> int | None:
        return 7

    blocked = tmp_path / "archive"
    blocked.write_text("a file stands where the directory should be")
    archiver = Archiver(
        ArchiverOptions(data_dir=str(logged.data_dir), url=str(blocked), interval_s=0.1),
        logs,
        hold=held.append,
        refresh=refresh,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(archiver.run())
        await eventually(lambda: archiver.status().failures > 0)
        failed = archiver.status()
        assert "nothing is lost" in failed.failed
        assert failed.segments == 0
        assert set(held) == {NO_TS}
        blocked.unlink()
        await eventually(lambda: held[-1] > NO_TS)
        running.cancel()
    sealed = sum(each.is_sealed for shard in shards for each in segments(shard))
    done = archiver.status()
    assert (done.segments, done.waiting) == (sealed, 0)
    newest = [segments(shard)[-1].max_ts for shard in shards]
    assert held[-1] == min(newest) - 1
    out = Exposition()
    archiver.say(out)
    assert f"binlogd_archive_segments {sealed}" in out.text().decode()


async def test_what_follows_the_log_is_begun_anew_when_it_ends(tmp_path: Path) -> None:
    url, log = str(tmp_path / "archive"), GrowingLog(tmp_path / "data", segment_bytes=1 << 13)
    workload = Workload(Options(seed=24, transactions=60, ddl_every=30))
    payloads = [each.payload for each in workload.records()]
    jobs = list[bytes]()

    def logs() -> Sequence[tuple[ValuePointer, Sequence[Segment]]]:
        return [
            (FIRST, [Segment(FileId(each.fid), each.is_sealed, each.size_bytes) for each in of])
            for of in log.segments
        ]

    async def refresh() -> int | None:
        store = await UpstreamStore.open(tmp_path / "data" / STORE_FILE)
        await store.put_jobs([(JobEntry(0, 0, 0, job_from_json(raw).id), raw) for raw in jobs])
        await store.close()
        return 7

    archiver = Archiver(
        ArchiverOptions(data_dir=str(log.data_dir), url=url, interval_s=60, tail_interval_s=0.05),
        logs,
        hold=lambda _: None,
        refresh=refresh,
        resolved_ts=lambda: log.resolved_ts,
    )

    def is_told() -> bool:
        return archiver.status().resolved_ts == log.resolved_ts

    async with asyncio.TaskGroup() as group:
        running = group.create_task(archiver.run())
        log.append(payloads[:80])
        await eventually(lambda: Path(url, "catalog.json").exists())
        jobs += [msgspec.json.encode(each) for each in msgspec.json.decode(workload.history())]
        await eventually(is_told)
        before = binlogs(url)
        (follower,) = children("binlogd.archive.follower")
        os.kill(follower, signal.SIGKILL)
        log.append(payloads[80:])
        await eventually(is_told)
        assert len(binlogs(url)) > len(before) > 10
        status = archiver.status()
        assert status.behind_s is not None
        assert status.behind_s < 60
        assert status.failures >= 1
        running.cancel()
    assert children("binlogd.archive.follower") == []
    out = Exposition()
    archiver.say(out)
    assert "binlogd_archive_behind_seconds" in out.text().decode()
    assert verify(url).problems == ()


def children(module: str) -> list[int]:
    """Processes of a module that this one started."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = {int(each): Path(f"/proc/{each}/cmdline").read_bytes() for each in found}
    return [pid for pid, name in names.items() if module.encode() in name]


@pytest.mark.soak
async def test_what_is_too_old_goes_from_the_archive_while_it_grows(tmp_path: Path) -> None:
    options = Options(seed=24, transactions=120, ddl_every=30)
    logged = Logged.write(tmp_path, options, segment_bytes=1 << 12)
    shards = sorted((logged.data_dir / "pump").glob("shard-*/value"))
    url = tmp_path / "archive"
    asked = Keep(keep_s=0.2, grace_s=0, files_max=6)
    task = Task(data_dir=str(logged.data_dir), url=str(url), history=str(logged.history))
    assert archive(msgspec.structs.replace(task, segments_max=23)).left == 1

    async def refresh() -> int | None:
        return 7

    def archiver() -> Archiver:
        return Archiver(
            ArchiverOptions(
                data_dir=str(logged.data_dir), url=str(url), interval_s=0.1, keep=asked
            ),
            lambda: [(ValuePointer(FileId(1 << 20), 0), segments(each)) for each in shards],
            hold=lambda _: None,
            refresh=refresh,
        )

    async def rounds(done: Callable[[ArchiveStatus], object]) -> Archiver:
        """Each process looks once an hour."""
        one = archiver()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(one.run())
            await eventually(lambda: done(one.status()))
            running.cancel()
        return one

    refused = (await rounds(lambda now: now.failed)).status()
    assert "no snapshot of `binlogd export` is there" in refused.failed
    assert (refused.failures, refused.waiting, refused.removed) == (0, 0, 0)
    assert refused.segments == 1  # which is no reason to archive nothing
    base = url / "snapshots"
    base.mkdir()
    (base / "manifest.json").write_bytes(msgspec.json.encode(manifest(MAX_TS)))
    announced = (await rounds(lambda now: now.gone_ts)).status()
    assert (announced.failed, announced.removed) == ("", 0)
    last = await rounds(lambda now: now.removed)
    assert last.status().removed == 6  # the others in the next hour
    assert last.status().gone_ts == announced.gone_ts
    out = Exposition()
    last.say(out)
    assert f"binlogd_archive_gone_ts {physical_ms(announced.gone_ts)}" in out.text().decode()
    assert "binlogd_archive_removed 6" in out.text().decode()
