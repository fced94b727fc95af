"""The schema beside the checkpoint: what it leads to, and what happens when it does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.schema_log import SchemaEvent, SchemaLog
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire import peek
from tests.sim.disk import SimDisk
from tests.support.decoding import decoded
from tests.support.recordings_reader import RECORDINGS, committed, history

Ddl = tuple[Tso, int, Job]


def ddls(name: str) -> list[Ddl]:
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / name))}
    found = []
    for binlog in committed(RECORDINGS / name):
        job = decoded(binlog, jobs).job
        if job is not None:
            state = peek.body(binlog.payload).ddl_schema_state
            found.append((binlog.commit_ts, state, job))
    return found


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def shown(tracker: SchemaTracker) -> object:
    snapshot = json.loads(tracker.snapshot())
    for key in ("applied", "coming", "unplaced"):
        del snapshot[key]
    return snapshot


def from_history(events: Sequence[Ddl]) -> SchemaTracker:
    tracker = SchemaTracker()
    for _, state, job in events:
        tracker.apply(job, state)
    return tracker


async def written(kept: SchemaLog, events: Sequence[Ddl], begin_at: int) -> None:
    base_ts = Tso(events[begin_at][0])
    await kept.begin(from_history(events[: begin_at + 1]), base_ts)
    for event in events[begin_at + 1 :]:
        await kept.append([SchemaEvent.of(*event)])
    await kept.close()


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 8))],
)
async def test_the_schema_of_a_snapshot_is_that_of_the_history_at_any_checkpoint(
    seed: int, tmp_path: Path
) -> None:
    rng, events = Random(seed), ddls("ddl")
    kept = SchemaLog(tmp_path, PosixDisk())
    begin = rng.randrange(len(events) - 20)
    await written(kept, events, begin)
    for _ in range(4):
        at = rng.randrange(begin, len(events))
        expected = from_history(events[: at + 1])
        commit_ts = Tso(events[at][0] + (at + 1 < len(events) and rng.randrange(2)))
        tracker = await kept.load(Checkpoint(commit_ts, schema_version=expected.version))
        assert tracker is not None
        assert shown(tracker) == shown(expected)
        for _, state, job in events[at + 1 :]:
            assert tracker.apply(job, state) == expected.apply(job, state)
        assert shown(tracker) == shown(expected)
    await kept.close()


async def opened(kept: SchemaLog, events: Sequence[Ddl]) -> SchemaTracker | None:
    version = max(job.schema_version for _, _, job in events)
    try:
        return await kept.load(Checkpoint(events[-1][0], schema_version=version))
    finally:
        await kept.close()


async def test_what_a_killed_process_had_not_synced_is_synced_before_it_is_passed_over() -> None:
    events, disk = ddls("ddl")[:60], SimDisk(Random(1))
    kept = SchemaLog(Path("/schema"), disk)
    await disk.make_directory(Path("/schema"))
    await written(kept, events, 40)
    (file,) = disk.files.values()
    file.synced -= 10  # killed between write and sync
    assert await opened(kept, events) is not None
    assert file.synced == len(file.content)


async def test_a_torn_end_is_cut_and_written_again(tmp_path: Path) -> None:
    events = ddls("ddl")[:60]
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, events, 40)
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    assert await opened(kept, events) is None
    version = max(job.schema_version for _, _, job in events[:59])
    tracker = await kept.load(Checkpoint(events[58][0], schema_version=version))
    assert tracker is not None
    await kept.append([SchemaEvent.of(*event) for event in events[50:]])
    assert await opened(kept, events) is not None


@pytest.mark.parametrize("damage", ["empty", "zeros", "flipped", "other version", "missing"])
async def test_what_is_damaged_or_leads_elsewhere_is_left_to_the_history(
    damage: str, tmp_path: Path
) -> None:
    events = ddls("ddl")[:60]
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, events, 40)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "empty":
        content.clear()
    elif damage == "zeros":
        content[500:] = bytes(len(content) - 500)
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content)
    ahead = 1 if damage == "other version" else 0
    version = max(job.schema_version for _, _, job in events) + ahead
    assert await kept.load(Checkpoint(events[-1][0], schema_version=version)) is None
    await kept.begin(from_history(events), events[-1][0])
    await kept.close()
    assert await opened(kept, events) is not None


async def test_a_file_goes_when_no_checkpoint_can_need_it(tmp_path: Path) -> None:
    events = ddls("ddl")[:60]
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, events[:50], 20)
    await kept.begin(from_history(events[:50]), events[49][0])
    await kept.append([SchemaEvent.of(*event) for event in events[50:]])
    await kept.collect(events[40][0])
    assert len(files(tmp_path)) == 2
    await kept.collect(events[49][0])
    assert len(files(tmp_path)) == 1
    assert await opened(kept, events) is not None


async def test_a_file_that_was_begun_beyond_the_checkpoint_is_not_taken_for_whole_later(
    tmp_path: Path,
) -> None:
    """The process died between the new file and the checkpoint that it was begun for."""
    events = ddls("ddl")[:60]
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, events[:41], 20)
    await kept.begin(from_history(events[:41]), events[40][0])
    await kept.collect(events[35][0])
    version = max(job.schema_version for _, _, job in events[:36])
    assert await kept.load(Checkpoint(events[35][0], schema_version=version)) is not None
    for event in events[36:]:
        await kept.append([SchemaEvent.of(*event)])
    await kept.collect(events[-1][0])
    assert await opened(kept, events) is not None


def swapped(events: Sequence[Ddl]) -> tuple[int, Ddl, Ddl]:
    """Two jobs that follow each other, as if they had committed in the other order."""
    at, (a, b) = next(
        (at, (a, b))
        for at, (a, b) in enumerate(pairwise(events))
        if a[2].table and b[2].table and a[2].schema_version < b[2].schema_version
    )
    return at, (a[0], *b[1:]), (b[0], *a[1:])


async def test_an_older_file_does_not_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    """A DDL of the damaged one may be missing in it, and the schema version need not tell."""
    events = ddls("ddl")
    at, first, second = swapped(events)
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, [*events[:at], first], at - 1)
    now = from_history([*events[:at], first])
    await kept.begin(now, first[0])
    await kept.append([SchemaEvent.of(*second)])
    await kept.close()
    newest = max(files(tmp_path))
    newest.write_bytes(newest.read_bytes()[:500])
    checkpoint = Checkpoint(second[0], schema_version=now.version)
    assert await kept.load(checkpoint) is None


async def test_jobs_side_by_side_that_commit_out_of_their_order_are_kept_in_order(
    tmp_path: Path,
) -> None:
    """The version of a checkpoint between them names both; only one is behind it."""
    events = ddls("ddl")
    at, first, second = swapped(events)
    expected = from_history([*events[:at], first])
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, [*events[:at], first, second], at - 1)
    tracker = await kept.load(Checkpoint(first[0], schema_version=expected.version))
    assert tracker is not None
    assert shown(tracker) == shown(expected)
    await kept.close()


async def test_a_ddl_that_comes_late_in_its_place_is_not_taken_for_one_that_is_there(
    tmp_path: Path,
) -> None:
    """It came too late for the session before, which had logged the one behind it already."""
    events = ddls("ddl")[:60]
    before, late, behind = events[:41], events[41], events[42]
    kept = SchemaLog(tmp_path, PosixDisk())
    await written(kept, [*before, behind], 20)
    version = max(job.schema_version for _, _, job in before)
    assert await kept.load(Checkpoint(before[-1][0], schema_version=version)) is not None
    for event in (late, behind):
        await kept.append([SchemaEvent.of(*event)])
    tracker = await opened(kept, [*before, late, behind])
    assert tracker is not None
    assert shown(tracker) == shown(from_history([*before, late, behind]))
