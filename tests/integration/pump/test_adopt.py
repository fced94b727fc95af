"""Data directories of Go Pumps become ours: nothing is lost, late or touched."""

from __future__ import annotations

import random
import tarfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlogd.binlog import BinlogType, CommittedBinlog
from binlogd.errors import ConfigError, CorruptRecord
from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.pump.checking.adopt import Adopted, adopt
from binlogd.pump.checking.check import check
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.shard.options import ShardOptions
from binlogd.tso import MAX_TS, Tso
from binlogd.wire.joining import join
from binlogd.wire.peek import peek
from tests.support.artefacts import ARTEFACTS
from tests.support.pump_world import at, commit, numbers, posix_world, prewrite, pulled, written

GOLDEN = ARTEFACTS / "pump_value_ddl.tar.gz"
OPTIONS = ShardOptions(log=LogLimits(segment_bytes_max=50_000))


@pytest.fixture
async def disk() -> AsyncIterator[PosixDisk]:
    posix = PosixDisk(threads=2)
    yield posix
    posix.close()


@pytest.fixture
def go(tmp_path: Path) -> list[Path]:
    """The directories that two Go Pumps left behind."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path / "go", filter="data")
    return [tmp_path / "go" / "pump0", tmp_path / "go" / "pump1"]


def deaf(what: str, done: int, whole: int) -> None:
    """Nobody looks at the progress."""


async def adopted(
    disk: PosixDisk, sources: Sequence[Path], into: Path, *, shards: int, skip: bool = False
) -> Adopted:
    return await adopt(
        sources, into, disk, deaf, shards=shards, options=OPTIONS, passes_over_damage=skip
    )


async def everything(directory: Path, shards: int, upto: int) -> list[CommittedBinlog]:
    async with posix_world(directory) as world, world.pump(shards=shards) as pump:
        assert pump.max_commit_ts == upto
        assert all(not shard.late_commits for shard in pump.statistics().shards)
        return [each for each in await pulled(pump, upto=Tso(upto)) if not each.is_fake]


def payloads(source: Path) -> list[bytes]:
    (segment,) = (source / "value").glob("*.vlog")
    return [payload for _, payload in record.FRAMING.split(segment.read_bytes()[:-12]).records]


def committed(sources: Sequence[Path]) -> list[tuple[int, int]]:
    heads = [peek(payload) for source in sources for payload in payloads(source)]
    pairs = [(head.start_ts, head.commit_ts) for head in heads if head.tp == BinlogType.COMMIT]
    return sorted(pairs, key=lambda pair: pair[1])


# --- what real Go Pumps left --------------------------------------------------------------------


async def test_one_pump_is_linked_into_one_shard(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    (go[0] / ".node").write_text("pump-a:8250\n")
    new = tmp_path / "new"
    done = await adopted(disk, go[:1], new, shards=1)
    assert (done.is_linked, done.records, done.open_prewrites, done.gc_ts) == (True, 1029, 0, 0)
    original = go[0] / "value" / "000000.vlog"
    assert original.samefile(new / "pump" / "shard-0" / "value" / "000000.vlog")
    assert (new / ".node").read_text() == "pump-a:8250\n"
    assert (await check(new, disk, deaf)).findings == []
    found = await everything(new, 1, done.max_commit_ts)
    assert [(each.start_ts, each.commit_ts) for each in found] == committed(go[:1])


@pytest.mark.parametrize("shards", [1, 4])
async def test_all_pumps_of_a_cluster_become_one(
    tmp_path: Path, disk: PosixDisk, go: list[Path], shards: int
) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "go").rglob("*.vlog")}
    done = await adopted(disk, go, tmp_path / "new", shards=shards)
    assert (done.is_linked, done.records, done.open_prewrites) == (False, 1029 + 1027, 0)
    assert (await check(tmp_path / "new", disk, deaf)).findings == []
    found = await everything(tmp_path / "new", shards, done.max_commit_ts)
    assert [(each.start_ts, each.commit_ts) for each in found] == committed(go)
    logged = {peek(each)[:3]: each for source in go for each in payloads(source)}
    for each in found:
        prewritten = logged[BinlogType.PREWRITE, each.start_ts, 0]
        outcome = logged[BinlogType.COMMIT, each.start_ts, each.commit_ts]
        assert each.payload == join(prewritten, outcome)
    assert {path: path.read_bytes() for path in (tmp_path / "go").rglob("*.vlog")} == before
    assert not list((tmp_path / "new").glob("pump.adopting"))


async def test_the_rest_of_a_pump_that_was_killed_is_taken_whole(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    """Not sealed, with a cut record in the middle and one at the end, as a Go Pump goes on."""
    path = go[0] / "value" / "000000.vlog"
    content, cut = path.read_bytes()[:-12], record.encode(prewrite(7, 500))[:200]
    middle = record.FRAMING.split(content).records[500][0]
    path.write_bytes(content[:middle] + cut + content[middle:] + cut)
    for shards in (1, 2):
        new = tmp_path / f"new{shards}"
        done = await adopted(disk, go[:1], new, shards=shards)
        assert [(each.kind, each.begin, each.end) for each in done.passed_over] == [
            ("append", middle, middle + 200),
            ("append", len(content) + 200, len(content) + 400),
        ]
        assert (await check(new, disk, deaf)).findings == []
        found = await everything(new, shards, done.max_commit_ts)
        assert len(found) == sum(
            peek(payload).tp == BinlogType.COMMIT
            for _, payload in record.FRAMING.split(content).records
        )


async def test_an_open_segment_is_copied_because_we_write_to_it(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    path = go[0] / "value" / "000000.vlog"
    content = path.read_bytes()[:-12]
    path.write_bytes(content)
    done = await adopted(disk, go[:1], tmp_path / "new", shards=1)
    await everything(tmp_path / "new", 1, done.max_commit_ts)
    assert path.read_bytes() == content


async def test_damage_stops_it_and_is_left_out_on_request(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    path = go[0] / "value" / "000000.vlog"
    content = bytearray(path.read_bytes())
    offset, payload = record.FRAMING.split(bytes(content[:-12])).records[500]
    content[offset + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match=f"offset {offset}: checksum.*--skip-damaged"):
        await adopted(disk, go, tmp_path / "new", shards=2)
    assert not (tmp_path / "new" / "pump").exists()
    done = await adopted(disk, go, tmp_path / "new", shards=2, skip=True)
    assert [each.kind for each in done.passed_over] == ["record"]
    assert done.passed_over[0].end == offset + record.HEADER_BYTES + len(payload)
    assert done.records == 1029 + 1027 - 1


async def test_a_binlog_of_a_type_that_nobody_knows_stops_it(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    """It may be the commit of rows; a Go Pump serves it as one."""
    path = go[0] / "value" / "000000.vlog"
    content = path.read_bytes()[:-12]
    unknown = b"\x08\x04" + commit(1, 2).removeprefix(b"\x08\x01")
    path.write_bytes(content + record.encode(unknown))
    with pytest.raises(CorruptRecord, match=f"offset {len(content)}: a binlog of type 4"):
        await adopted(disk, go[:1], tmp_path / "new", shards=1)
    done = await adopted(disk, go[:1], tmp_path / "new", shards=1, skip=True)
    assert (done.records, [each.begin for each in done.passed_over]) == (1029, [len(content)])


# --- what is refused ----------------------------------------------------------------------------


async def test_only_stopped_pumps_into_new_directories(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    with pytest.raises(ConfigError, match="is no data directory of a Pump"):
        await adopted(disk, [tmp_path / "nowhere"], tmp_path / "new", shards=1)
    (tmp_path / "empty" / "value").mkdir(parents=True)
    with pytest.raises(ConfigError, match="nothing to adopt"):
        await adopted(disk, [tmp_path / "empty"], tmp_path / "new", shards=1)
    (go[1] / ".lock").write_bytes(b"")
    lock = await disk.lock(go[1] / ".lock")  # as a Go Pump holds it
    with pytest.raises(ConfigError, match="is in use"):
        await adopted(disk, go, tmp_path / "new", shards=1)
    await lock.release()
    await adopted(disk, go, tmp_path / "new", shards=1)
    with pytest.raises(ConfigError, match="has no Pump's data yet"):
        await adopted(disk, go, tmp_path / "new", shards=1)


async def test_what_a_crash_left_of_an_adoption_is_begun_again(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    left = tmp_path / "new" / "pump.adopting" / "shard-0" / "value"
    left.mkdir(parents=True)
    (left / "000000.vlog").write_bytes(record.encode(prewrite(1)))
    done = await adopted(disk, go, tmp_path / "new", shards=2)
    assert done.open_prewrites == 0


async def test_deleted_segments_move_the_start(
    tmp_path: Path, disk: PosixDisk, go: list[Path]
) -> None:
    (go[0] / "value" / "000000.vlog").rename(go[0] / "value" / "000007.vlog")
    for shards in (1, 2):
        done = await adopted(disk, go[:1], tmp_path / f"new{shards}", shards=shards)
        first = committed(go[:1])[0][1]
        assert first < done.gc_ts <= first + (600_000 << 18)
        async with posix_world(tmp_path / f"new{shards}") as world, world.pump(shards=shards) as p:
            assert p.statistics().shards[0].gc_ts == done.gc_ts


# --- the law over merged logs -------------------------------------------------------------------


@dataclass
class Cluster:
    """Go Pumps that receive transactions as TiDB sends them, and are stopped at any moment."""

    logs: list[list[bytes]]
    expected: set[tuple[int, int]]
    open: list[tuple[int, int]]  # and the commit_ts, if it was asked for before the end


def cluster(seed: int, pumps: int, count: int) -> Cluster:
    rng = random.Random(seed)
    made = Cluster([[] for _ in range(pumps)], set(), [])
    ts, running = 10, list[tuple[int, int, int]]()
    for _ in range(count):
        ts += 1
        if running and rng.random() < 0.5:
            start, commit_ts, pump = running.pop(rng.randrange(len(running)))
            if commit_ts:
                made.logs[pump].append(commit(start, commit_ts))
                made.expected.add((start, commit_ts))
            else:  # a commit_ts is asked for when the prewrite is there, and arrives later
                running.append((start, ts, pump))
        else:
            pump, size = rng.randrange(pumps), rng.randrange(1, 40)
            if rng.random() < 0.2:  # the answer got lost, and the client tried another Pump
                made.logs[rng.randrange(pumps)].append(prewrite(ts, size))
            made.logs[pump].append(prewrite(ts, size))
            running.append((ts, 0, pump))
    made.open = [(start, commit_ts) for start, commit_ts, _ in running]
    return made


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.integers(0, 60), st.sampled_from([1, 3]))
async def test_a_transaction_that_commits_after_the_adoption_is_not_late(
    tmp_path_factory: pytest.TempPathFactory, seed: int, pumps: int, count: int, shards: int
) -> None:
    made = cluster(seed, pumps, count)
    home = tmp_path_factory.mktemp("cluster")
    sources = []
    for number, log in enumerate(made.logs):
        value = home / str(number) / "value"
        value.mkdir(parents=True)
        (value / "000000.vlog").write_bytes(b"".join(map(record.encode, log)))
        sources.append(value.parent)
    disk = PosixDisk(threads=1)
    done = await adopted(disk, sources, home / "new", shards=shards)
    disk.close()
    assert done.open_prewrites == len(made.open)
    ts = 10_000
    async with posix_world(home / "new") as world, world.pump(shards=shards) as pump:
        for start, commit_ts in made.open:
            ts += 1
            await written(pump, commit(start, commit_ts or ts))
            made.expected.add((start, commit_ts or ts))
        world.times.says = at(ts + 1)
        await pump.settle()
        found = numbers(each for each in await pulled(pump, upto=at(ts)) if not each.is_fake)
        assert sorted(found) == sorted(made.expected)
        assert all(not shard.late_commits for shard in pump.statistics().shards)
    assert done.max_commit_ts < MAX_TS
