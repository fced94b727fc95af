"""The open segments in an archive: a prefix of every log, at every moment, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from binlogd.archive import follower as follower_module
from binlogd.archive.catalog import (
    CATALOG_NAME,
    TAIL_NAME,
    TailPart,
    all_segments,
    encode_tail,
    parts_directory,
    read_catalog,
    read_tail,
)
from binlogd.archive.files import bytes_path, commits_path
from binlogd.archive.follower import Follower
from binlogd.archive.places import ArchivedIndex
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive, verify
from binlogd.archive.view import local_view
from binlogd.binlog import CommittedBinlog
from binlogd.errors import Corrupt, Refused
from binlogd.spark.archived_rows import parts, prewrites, slim
from binlogd.spark.source import BinlogdSource
from binlogd.tso import NO_TS, Tso
from tests.support.growing_log import GrowingLog, archive_all, binlogs
from tests.support.logged import Logged, read
from tests.support.s3 import S3, s3_server
from tests.workload.generator import Options, Workload


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


# in short: a lake in an object store is fed from an archive in one, test_lake
@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.soak)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "archive")
    return str(request.getfixturevalue("s3").url("archive"))


class Workloads(NamedTuple):
    """All that there will be."""

    logged: Logged
    whole: list[CommittedBinlog]
    payloads: list[bytes]


@pytest.fixture(scope="module")
def all_of_it(tmp_path_factory: pytest.TempPathFactory) -> Workloads:
    directory = tmp_path_factory.mktemp("all")
    options = Options(seed=5, transactions=80, ddl_every=30)
    logged = Logged.write(directory, options)
    archive_all(logged, str(directory / "whole"))
    payloads = [each.payload for each in Workload(options).records()]
    return Workloads(logged, binlogs(str(directory / "whole")), payloads)


class Scene:
    """A workload of which a Pump has the first part, and an archive that follows."""

    def __init__(self, directory: Path, url: str, of: Workloads) -> None:
        self.url, self.logged, self.whole = url, of.logged, of.whole
        self.history = directory / "history.json"
        self.history.write_bytes(of.logged.history.read_bytes())
        self._left = list(of.payloads)
        self.log = GrowingLog(directory / "data", segment_bytes=1 << 13)
        self.archived: dict[int, int] = {}
        self.follower = self.begun()
        self.archive()

    def begun(self) -> Follower:
        """After a start of the process."""
        return Follower(self.log.data_dir, self.url, grace_s=0)

    def grow(self, count: int) -> None:
        """So many payloads more."""
        self.log.append(self._left[:count])
        del self._left[:count]

    @property
    def is_over(self) -> bool:
        return not self._left

    def follow(self) -> Tso:
        """One round, and what is durable by then."""
        assert self.follower.follow(self.log.follow(self.url, self.archived))
        return self.log.resolved_ts

    def archive(self, segments: int = 0) -> None:
        """A round of the archiver."""
        task = Task(data_dir=str(self.log.data_dir), url=self.url, segments_max=segments)
        done = archive(msgspec.structs.replace(task, history=str(self.history)))
        self.archived = done.newest

    def upto(self, ts: int) -> list[CommittedBinlog]:
        """What was committed by then."""
        return [each for each in self.whole if each.commit_ts <= ts]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are put together as in a log of gigabytes."""
    monkeypatch.setattr(follower_module, "CUT_BYTES", 3_000)
    monkeypatch.setattr(follower_module, "PART_BYTES_MAX", 6_000)
    monkeypatch.setattr(follower_module, "MERGED", 3)


def test_whoever_reads_the_archive_has_what_was_durable(
    tmp_path: Path, url: str, all_of_it: Workloads
) -> None:
    scene = Scene(tmp_path, url, all_of_it)
    rng, merged, largest, parts = Random(3), 0, 0, list[TailPart]()
    steps = 20 if "://" in url else 30
    while not scene.is_over:
        scene.grow(rng.randrange(1, 1000 // steps))
        resolved_ts = scene.follow()
        assert binlogs(url) == scene.upto(resolved_ts)
        catalog = read_catalog(ArchiveStore.open(url))
        assert catalog.resolved_ts == resolved_ts
        before, parts = parts, [each for each in catalog.segments if isinstance(each, TailPart)]
        begins = {(each.shard, each.fid, each.begin): each.end for each in before}
        merged += any(
            begins.get((each.shard, each.fid, each.begin), each.end) < each.end for each in parts
        )
        largest = max(largest, len(parts))
        if rng.random() < 0.2:
            scene.archive(rng.randrange(3))
            assert binlogs(url) == scene.upto(resolved_ts)
        if rng.random() < 0.1:
            scene.follower = scene.begun()
    assert merged, "parts were put together"
    assert largest < 60
    assert verify(url).problems == ()
    assert scene.archived
    assert binlogs(url) == scene.upto(scene.log.resolved_ts)
    assert len(binlogs(url)) > 60


def test_spark_reads_rows_of_the_tail(tmp_path: Path, all_of_it: Workloads) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    table = {"path": scene.url, "table": "bank.accounts"}
    schema = BinlogdSource(scene.logged.options(table="bank.accounts")).schema()
    stream = BinlogdSource(table).streamReader(schema)
    offset, rows = {"commit_ts": 0}, 0
    while not scene.is_over:
        scene.grow(60)
        scene.follow()
        end = stream.latestOffset(offset)
        parts = stream.partitions(offset, end)
        scene.archive(1)  # what was planned is read when it has moved
        scene.follow()
        rows += sum(batch.num_rows for part in parts for batch in stream.read(part))
        offset = end
    resolved = str(offset["commit_ts"])
    whole = read(scene.logged.options(table="bank.accounts", to=resolved))
    assert rows == whole.num_rows > 10
    assert read({**table, "to": resolved}).equals(whole)


def test_what_was_planned_is_read_when_its_parts_gave_way(
    tmp_path: Path, all_of_it: Workloads
) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(150)
    planned_ts = scene.follow()
    store = ArchiveStore.open(scene.url)
    index = ArchivedIndex(store, read_catalog(store))
    begun = index.found(NO_TS, planned_ts)
    first = next(begun)
    before = {name for shard in range(4) for name in store.names(f"tail/shard-{shard}")}
    scene.grow(150)
    scene.archive()
    scene.follow()
    scene.follow()
    after = {name for shard in range(4) for name in store.names(f"tail/shard-{shard}")}
    assert not before & after, "none of what was planned is there any more"
    assert [each.commit_ts for each in (first, *begun)] == [
        each.commit_ts for each in scene.upto(planned_ts)
    ]
    assert list(LogReader(store, index).binlogs(NO_TS, planned_ts)) == scene.upto(planned_ts)
    with local_view(scene.url, tmp_path / "out") as view:
        assert view.resolved_ts == scene.log.resolved_ts
        whole = {**scene.logged.options(form="binlog"), "to": str(view.resolved_ts)}
        assert read({**whole, "path": str(view.data_dir)}).equals(read(whole))


def test_the_watermark_moves_without_a_part(tmp_path: Path, all_of_it: Workloads) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(40)
    asked = scene.log.follow(scene.url)
    assert scene.follower.follow(asked)
    before = read_tail(store := ArchiveStore.open(scene.url))
    later = msgspec.structs.replace(asked, resolved_ts=asked.resolved_ts + 1)
    assert scene.follower.follow(later)
    after = read_tail(store)
    assert after == msgspec.structs.replace(before, resolved_ts=later.resolved_ts)
    assert read_catalog(ArchiveStore.open(scene.url)).resolved_ts == asked.resolved_ts + 1


def test_nothing_is_told_whose_ddl_the_history_lacks(
    tmp_path: Path, all_of_it: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    told = scene.history.read_bytes()
    scene.history.write_bytes(b"[]")
    scene.archive()
    scene.grow(200)
    assert not scene.follower.follow(scene.log.follow(scene.url))
    assert read_tail(ArchiveStore.open(scene.url)).parts == ()
    scene.history.write_bytes(told)
    scene.archive(1)
    assert binlogs(scene.url, Tso(0)) == []
    assert scene.follow() == read_catalog(ArchiveStore.open(scene.url)).resolved_ts
    scene.history.write_bytes(b"[]")
    scene.archive(1)
    scene.follower = scene.begun()
    monkeypatch.setattr(follower_module, "HISTORY_S", -1)  # one that never comes is waited for once
    scene.follow()


def test_two_that_follow_are_told(tmp_path: Path, all_of_it: Workloads) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(50)
    scene.follow()
    scene.grow(50)
    other = scene.begun()
    other.follow(scene.log.follow(scene.url))
    scene.grow(50)
    with pytest.raises(Refused, match="another process has written it"):
        scene.follow()
    assert binlogs(scene.url) == scene.upto(read_catalog(ArchiveStore.open(scene.url)).resolved_ts)


def test_damage_and_a_gap_are_found(tmp_path: Path, all_of_it: Workloads) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(200)
    scene.follow()
    store = ArchiveStore.open(scene.url)
    content = store.read(TAIL_NAME)
    found = (tmp_path / "archive" / "tail").rglob("*.vlog")
    victim = max(found, key=lambda path: path.stat().st_size)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (problem,) = verify(scene.url).problems
    assert victim.name in problem
    with pytest.raises(Corrupt):
        binlogs(scene.url)
    victim.write_bytes(whole)
    store.put(TAIL_NAME, content.replace(b'"resolved_ts":', b'"resolved_ts":1', 1))
    with pytest.raises(Corrupt, match="checksum"):
        read_catalog(store)
    store.put(TAIL_NAME, content)
    tail = read_tail(store)
    grown = next(at for at, each in enumerate(tail.parts) if each.begin)
    parts = tail.parts[: grown - 1] + tail.parts[grown:]
    store.put(TAIL_NAME, encode_tail(msgspec.structs.replace(tail, parts=parts)))
    with pytest.raises(Corrupt, match="does not follow"):
        read_catalog(store)


def test_executors_find_what_was_planned_in_the_tail(tmp_path: Path, all_of_it: Workloads) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(120)
    planned_ts = scene.follow()
    store = ArchiveStore.open(scene.url)
    work = parts(list(map(slim, all_segments(store, read_catalog(store)))), planned_ts, 2)

    def read_by_executors() -> list[tuple[int, bytes]]:
        found = [
            each for some in work for part in some for each in prewrites(store, part, planned_ts)
        ]
        return sorted((each.commit_ts, bytes(each.payload)) for each in found)

    before = read_by_executors()
    assert [ts for ts, _ in before] == [each.commit_ts for each in scene.upto(planned_ts)]
    scene.grow(120)
    scene.archive()
    scene.follow()
    scene.follow()
    assert read_by_executors() == before


def test_nothing_is_missing_between_two_files_that_change(
    tmp_path: Path, all_of_it: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, str(tmp_path / "archive"), all_of_it)
    scene.grow(150)
    resolved_ts = scene.follow()
    whole, read = ArchiveStore.read, list[str]()

    def read_slowly(store: ArchiveStore, name: str) -> bytes:
        content = whole(store, name)
        if name in (TAIL_NAME, CATALOG_NAME) and not read:
            read.append(name)
            scene.archive()
            scene.follow()
        return content

    monkeypatch.setattr(ArchiveStore, "read", read_slowly)
    assert binlogs(scene.url) == scene.upto(resolved_ts)
    assert read
    assert any(fid >= 0 for fid in scene.archived.values()), "segments went over in between"


class Killed(BaseException):
    """No code of ours catches it."""


class KilledAt:
    """Ends whoever writes to a store for the time after `step` of them."""

    def __init__(self, step: int, patched: pytest.MonkeyPatch) -> None:
        self._left = step
        for name in ("put", "put_file", "remove"):
            patched.setattr(ArchiveStore, name, self._counted(getattr(ArchiveStore, name)))

    def _counted(self, whole: Callable[..., None]) -> Callable[..., None]:
        def write(*words: object) -> None:
            if not self._left:
                raise Killed
            self._left -= 1
            whole(*words)

        return write


def leftovers(url: str) -> set[str]:
    """Files of parts that nothing names."""
    store = ArchiveStore.open(url)
    named = {path(part) for part in read_tail(store).parts for path in (bytes_path, commits_path)}
    directories = [parts_directory(shard) for shard in range(4)]
    there = {f"{each}/{name}" for each in directories for name in store.names(each)}
    assert named <= there
    return there - named


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_any_step_an_archive_is_a_prefix_and_goes_on(
    tmp_path: Path, all_of_it: Workloads, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    steps, is_killed = 0, True
    while is_killed:  # ends when there are no more steps
        directory = tmp_path / str(steps)
        directory.mkdir()
        scene, told = Scene(directory, str(directory / "archive"), all_of_it), NO_TS
        is_killed = False
        with monkeypatch.context() as patched:
            KilledAt(steps, patched)
            try:
                for count in (40, 40, 40, 40, 30):
                    scene.grow(count)
                    told = scene.follow()
                    scene.archive(1)
            except Killed:
                is_killed = True
        resolved_ts = Tso(read_catalog(ArchiveStore.open(scene.url)).resolved_ts)
        assert resolved_ts >= told
        assert binlogs(scene.url) == scene.upto(resolved_ts)
        assert verify(scene.url).problems == ()
        scene.archive(1)
        scene.follower = scene.begun()
        resolved_ts = scene.follow()
        assert binlogs(scene.url) == scene.upto(resolved_ts)
        scene.grow(10)
        scene.follow()
        assert leftovers(scene.url) == set()
        steps += stride
    assert steps > 60
