"""The power fails under what stands beside the log: `upstream.db`, an archive, a publication."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest

from binlogd.archive.catalog import read_catalog
from binlogd.archive.keep import keep
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import CATALOG_NAME, Keep, Task
from binlogd.archive.upload import archive, verify
from binlogd.errors import BinlogdError
from binlogd.snapshot.check import check
from binlogd.snapshot.publishing.publish import LATEST, point_to_latest, read_manifest, snapshots
from binlogd.tso import MAX_TS
from tests.support import strace
from tests.support.faults import Cases, RecordProperty, counted
from tests.support.growing_log import archive_all, binlogs
from tests.support.killed import recorded
from tests.support.logged import Logged
from tests.support.power_loss import Crash, PowerLoss
from tests.support.snapshots import Columns, snapshot
from tests.support.store_lives import opened
from tests.support.traced_files import Recording
from tests.workload.generator import Options, Workload

ROWS: Columns = [(1, "id", pa.array([1, 2, 3]))]
FORGOTTEN_STATES = 20
LOST = (AssertionError, BinlogdError, OSError, msgspec.MsgspecError)
"""By which it shows that something is missing."""
PUBLISH = """
import shutil, sys
from pathlib import Path
import msgspec
from binlogd.snapshot.publishing.publish import publish
from binlogd.snapshot.spec import Manifest
out, staged, text = map(Path, sys.argv[1:])
publish(staged, out, msgspec.json.decode(text.read_bytes(), type=Manifest))
print("published", flush=True)
"""
CUT = """
import sys
from binlogd.archive.keep import keep
from binlogd.archive.task import Keep
for _ in range(3):
    done = keep(sys.argv[1], Keep(keep_s=0.1, base=sys.argv[2], grace_s=0))
    print("cut", done.gone_ts, flush=True)
"""
MAKE_DIRECTORY = """
import sys
from pathlib import Path
from binlogd.host.disk import make_directory, write_whole
directory = Path(sys.argv[1])
if sys.argv[2] == "killed":
    directory.parent.mkdir()
else:
    make_directory(directory)
    write_whole(directory / "file", b"content")
    print("written", flush=True)
"""
Check = Callable[[Path, Crash], Awaitable[None]]


@pytest.fixture(scope="module", autouse=True)
def _needs_strace() -> None:
    strace.skip_without()


def has_said(lines_min: int | None) -> Callable[[list[bytes]], bool] | None:
    """Whether a process has said enough to be killed; None for one that comes to its end."""
    return None if lines_min is None else lambda said: len(said) >= lines_min


def lines(crash: Crash, word: bytes) -> list[bytes]:
    """What was told before the power failed, by its first word."""
    told = crash.said.split(b"\n")[:-1]
    return [line.removeprefix(word).strip() for line in told if line.startswith(word)]


def at_random(loss: PowerLoss, states: int) -> list[int]:
    """Moments of the whole record."""
    rng = Random(states)
    return [rng.choice(loss.moments) for _ in range(states)]


async def holds(
    loss: PowerLoss, check_state: Check, moments: Iterable[int], into: Path, cases: Cases
) -> None:
    for number, moment in enumerate(moments):
        crash = loss.crashed(into, moment=moment, seed=number)
        try:
            await check_state(into, crash)
        except LOST as error:
            error.add_note(str(crash))
            raise
        shutil.rmtree(into)
        cases.one()


async def is_found_out(recording: Recording, check_state: Check, into: Path) -> None:
    """Without its syncs something is lost."""
    recording.forget_syncs(lambda _: True)
    loss = PowerLoss(recording)

    async def all_states() -> None:
        for number in range(FORGOTTEN_STATES):
            state = into.with_name(f"forgotten-{number}")
            await check_state(state, loss.crashed(state, moment=loss.moments[-1], seed=number))

    with pytest.raises(LOST):
        await all_states()


@pytest.mark.parametrize(
    ("states", "lives"), [(12, 1), pytest.param(1_000, 5, marks=pytest.mark.soak)]
)
async def test_upstream_db_keeps_what_it_said(
    tmp_path: Path, record_property: RecordProperty, states: int, lives: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    recording, rng = Recording(root), Random(states)
    for life in range(lives):
        enough = None if life + 1 == lives else rng.randrange(2, 15)
        await recorded(
            recording,
            ["-m", "tests.support.store_lives", str(root / "data"), "20"],
            is_enough=has_said(enough),
        )

    async def check_state(state: Path, crash: Crash) -> None:
        told = [int(line) for line in lines(crash, b"") if line.isdigit()]
        async with opened(state / "data") as kept:
            await kept.check(max(told, default=0))

    with counted(record_property, fault="power loss", target="upstream.db") as cases:
        loss = PowerLoss(recording)
        while_made = [moment for moment in loss.moments if not loss.said_before(moment)]
        moments = [*while_made[:: max(1, len(while_made) // 20)], *at_random(loss, states)]
        await holds(loss, check_state, moments, tmp_path / "state", cases)
    await is_found_out(recording, check_state, tmp_path / "state")


@pytest.mark.parametrize(
    ("states", "lives"), [(6, 1), pytest.param(300, 4, marks=pytest.mark.soak)]
)
async def test_an_archive_keeps_what_it_said_it_has(
    tmp_path: Path, record_property: RecordProperty, states: int, lives: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = Options(seed=24, transactions=60, ddl_every=30)
    logged = Logged.write(tmp_path, options, segment_bytes=1 << 12)
    task = Task(data_dir=str(logged.data_dir), url="", cluster_id=7, history=str(logged.history))
    recording, rng = Recording(root), Random(states)
    words = ["-m", "tests.support.archive_lives", task.data_dir, task.history]
    for life in range(lives):
        enough = None if life + 1 == lives else rng.randrange(1, 3)
        await recorded(
            recording,
            [*words, str(root / "archive"), "99"],
            is_enough=has_said(enough),
        )

    async def check_state(state: Path, crash: Crash) -> None:
        url = state / "archive"
        told = lines(crash, b"archived")
        if told:
            catalog = msgspec.json.decode((url / CATALOG_NAME).read_bytes())
            found = {(each["shard"], each["fid"]) for each in catalog["segments"]}
            newest = msgspec.json.decode(told[-1], type=dict[int, int])
            assert {(shard, fid) for shard, fid in newest.items()} <= found
        if (url / CATALOG_NAME).exists():
            assert verify(str(url)).problems == ()
        done = archive(msgspec.structs.replace(task, url=str(url)))
        assert done.left == 0
        assert verify(str(url)).problems == ()

    with counted(record_property, fault="power loss", target="archive") as cases:
        loss = PowerLoss(recording)
        await holds(loss, check_state, at_random(loss, states), tmp_path / "state", cases)
    await is_found_out(recording, check_state, tmp_path / "state")


@pytest.mark.parametrize("states", [6, pytest.param(300, marks=pytest.mark.soak)])
async def test_the_tail_of_an_archive_is_a_prefix_that_was_told(
    tmp_path: Path, record_property: RecordProperty, states: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = Options(seed=24, transactions=40, ddl_every=20)
    logged = Logged.write(tmp_path / "all", options)
    archive_all(logged, str(tmp_path / "whole"))
    whole, payloads = binlogs(str(tmp_path / "whole")), tmp_path / "payloads"
    given = [each.payload for each in Workload(options).records()]
    payloads.write_bytes(msgspec.json.encode(given))
    words = ["-m", "tests.support.follower_lives", str(tmp_path / "data"), str(logged.history)]
    recording = Recording(root)
    await recorded(recording, [*words, str(root / "archive"), str(payloads)])

    async def check_state(state: Path, crash: Crash) -> None:
        url, told = str(state / "archive"), lines(crash, b"told")
        if not (state / "archive" / CATALOG_NAME).exists():
            assert not told
            return
        resolved_ts = read_catalog(ArchiveStore.open(url)).resolved_ts
        assert resolved_ts >= max(map(int, told), default=0)
        assert binlogs(url) == [each for each in whole if each.commit_ts <= resolved_ts]
        assert verify(url).problems == ()

    with counted(record_property, fault="power loss", target="tail of an archive") as cases:
        loss = PowerLoss(recording)
        await holds(loss, check_state, at_random(loss, states), tmp_path / "state", cases)
    await is_found_out(recording, check_state, tmp_path / "state")


@pytest.mark.soak
async def test_an_archive_that_is_cut_is_the_old_one_or_the_new_one(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = Options(seed=24, transactions=60, ddl_every=30)
    logged = Logged.write(tmp_path, options, segment_bytes=1 << 12)
    task = Task(data_dir=str(logged.data_dir), url="", history=str(logged.history))
    archive(msgspec.structs.replace(task, url=str(root / "archive"), with_open=True))
    base, _ = snapshot(tmp_path / "bases", MAX_TS, ROWS)
    recording = Recording(root)
    await recorded(recording, ["-c", CUT, str(root / "archive"), str(base)])

    async def check_state(state: Path, crash: Crash) -> None:
        url = str(state / "archive")
        told = [int(line) for line in lines(crash, b"cut")]
        assert read_catalog(ArchiveStore.open(url)).gone_ts >= max(told, default=0)
        assert verify(url).problems == ()
        asked = Keep(keep_s=0.1, base=str(base), grace_s=0)
        gone_ts = [keep(url, asked).gone_ts for _ in range(2)][-1]
        assert gone_ts > 0
        assert verify(url).problems == ()

    with counted(record_property, fault="power loss", target="cut of an archive") as cases:
        loss = PowerLoss(recording)
        await holds(loss, check_state, at_random(loss, 300), tmp_path / "state", cases)
    await is_found_out(recording, check_state, tmp_path / "state")


async def test_a_directory_that_a_killed_process_made_is_synced_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    recording = Recording(root)
    for life in ("killed", "next"):
        await recorded(recording, ["-c", MAKE_DIRECTORY, str(root / "a" / "b"), life])
    loss = PowerLoss(recording)
    for number in range(40):
        state = tmp_path / f"state-{number}"
        loss.crashed(state, moment=loss.moments[-1], seed=number)
        assert (state / "a" / "b" / "file").read_bytes() == b"content"


@pytest.mark.parametrize("states", [6, pytest.param(300, marks=pytest.mark.soak)])
async def test_a_published_snapshot_stays_published(
    tmp_path: Path, record_property: RecordProperty, states: int
) -> None:
    root = tmp_path / "root"
    snapshot(root, 100, ROWS)
    made, _ = snapshot(tmp_path / "other", 200, ROWS)
    text = tmp_path / "manifest.json"
    (made / "manifest.json").rename(text)
    staged = root / ".staging" / "snapshot"
    shutil.copytree(made, staged)
    recording = Recording(root)
    await recorded(recording, ["-c", PUBLISH, str(root), str(staged), str(text)])

    async def check_state(state: Path, crash: Crash) -> None:
        there = [path.name for path in snapshots(state)]
        assert there in (["snapshot-100"], ["snapshot-200", "snapshot-100"])
        assert len(there) == 2 or not lines(crash, b"published")
        for path in snapshots(state):
            assert [each.reason for each in check(path, read_manifest(path))] == [""]
        assert (state / LATEST).resolve().name in there
        assert not lines(crash, b"published") or (state / LATEST).resolve().name == there[0]
        point_to_latest(state)
        assert (state / LATEST).resolve().name == there[0]

    with counted(record_property, fault="power loss", target="export publication") as cases:
        loss = PowerLoss(recording)
        await holds(loss, check_state, at_random(loss, states), tmp_path / "state", cases)
    await is_found_out(recording, check_state, tmp_path / "state")
