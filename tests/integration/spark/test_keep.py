"""Retention of archives: what goes, what never goes, and what a reader is told. Local directories
and an object store alike; killed at every step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.archive.catalog import (
    BOUND_NAME,
    CATALOG_NAME,
    HISTORY_NAME,
    Bound,
    all_segments,
    decode_catalog,
    put_bound,
    read_bound,
    read_catalog,
)
from binlogd.archive.files import index_path, places_path, segment_path
from binlogd.archive.keep import keep
from binlogd.archive.places import ArchivedIndex
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Keep, Mark, Removed, Task
from binlogd.archive.upload import archive, described, verify
from binlogd.archive.view import local_view
from binlogd.commands.archive import archive as archive_command
from binlogd.errors import Behind, ConfigError, Refused
from binlogd.host.clock import WallClock
from binlogd.log.directory import shards_below
from binlogd.log.gone import gone_ts
from binlogd.snapshot.publishing.publish import LATEST
from binlogd.spark.source import BinlogdSource, StreamReader
from binlogd.tso import MAX_TS, NO_TS, Tso, plus_ms
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.data_directory import write_log
from tests.support.logged import Logged, read
from tests.support.s3 import S3, s3_server
from tests.support.snapshots import manifest, snapshot
from tests.workload.generator import Options

KEEP_S = 0.6
LONGER_S = 1.2
WORDS = r"binlogs up to commit_ts \d+ have been removed from the archive .*start from a newer full"


@dataclass(frozen=True, slots=True)
class Kept:
    """An archive of a workload of two seconds in some thirty segments, and all that is in it."""

    url: str
    logged: Logged
    binlogs: list[tuple[int, int, bytes]]

    @property
    def store(self) -> ArchiveStore:
        return ArchiveStore.open(self.url)

    @property
    def resolved_ts(self) -> Tso:
        return Tso(read_catalog(self.store).resolved_ts)

    def task(self, **more: object) -> Task:
        return Task(
            data_dir=str(self.logged.data_dir),
            url=self.url,
            history=str(self.logged.history),
            page_segments=4,
            **more,  # type: ignore[arg-type]  # fields of Task
        )

    def within(self, after: int, upto: int) -> list[tuple[int, int, bytes]]:
        return [each for each in self.binlogs if after < each[1] <= upto]

    def read(self, after: Tso = NO_TS, upto: Tso | None = None) -> list[tuple[int, int, bytes]]:
        return binlogs_of(self.url, after, self.resolved_ts if upto is None else upto)

    def put_snapshot(self, ts: Tso) -> None:
        """One without tables, as an export would leave it and somebody copy it to a store."""
        described = msgspec.json.encode(manifest(ts))
        self.store.put(f"snapshots/snapshot-{ts}/manifest.json", described)
        self.store.put(f"snapshots/{LATEST}", f"snapshot-{ts}\n".encode())

    def keep(self, keep_s: float = KEEP_S, grace_s: float = 0, **more: object) -> Removed:
        asked = Keep(keep_s=keep_s, grace_s=grace_s, **more)  # type: ignore[arg-type]  # its fields
        return keep(self.url, asked)

    def files(self) -> set[str]:
        """All but the bound and the snapshots."""
        shards = [f"shard-{number}" for number in range(4)]
        found = {f"{at}/{name}" for at in (*shards, "pages") for name in self.store.names(at)}
        return found | (self.store.names().keys() - {BOUND_NAME})

    def files_wanted(self) -> set[str]:
        """What the archive says that it has."""
        named = decode_catalog(self.store.read(CATALOG_NAME), self.url)
        found = {CATALOG_NAME, HISTORY_NAME, *(page.name for page in named.pages)}
        for each in all_segments(self.store, read_catalog(self.store)):
            found |= {make(each.shard, each.fid) for make in PATHS}
        return found


PATHS = (segment_path, index_path, places_path)


def binlogs_of(url: str, after: Tso, upto: Tso) -> list[tuple[int, int, bytes]]:
    store = ArchiveStore.open(url)
    found = LogReader(store, ArchivedIndex(store, read_catalog(store))).binlogs(after, upto)
    return [(each.start_ts, each.commit_ts, bytes(each.payload)) for each in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    directory = tmp_path_factory.mktemp("kept")
    options = Options(seed=21, transactions=250, ddl_every=40)
    logged = Logged.write(directory, options, segment_bytes=1 << 13)
    kept = Kept(str(directory / "archive"), logged, [])
    archive(kept.task(with_open=True))
    kept.put_snapshot(kept.resolved_ts)
    kept.binlogs.extend(kept.read())
    return kept


@pytest.fixture
def kept(made: Kept, tmp_path: Path) -> Kept:
    """A copy of its own."""
    return copied(made, tmp_path / "archive")


def copied(made: Kept, to: Path) -> Kept:
    shutil.copytree(made.url, to)
    return Kept(str(to), made.logged, made.binlogs)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


# in short: a lake in an object store is fed from an archive in one, test_lake
@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.soak)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "directory":
        return copied(request.getfixturevalue("made"), tmp_path / "archive")
    url = request.getfixturevalue("s3").url("archive")
    return of_one_shard(tmp_path, pairs(*range(100, 2000, 100)), url=url)


def behind_the_bound_all_is_as_before(kept: Kept) -> int:
    """What the archive says that it is complete behind; its rows, and the refusals before it."""
    store, catalog = kept.store, read_catalog(kept.store)
    assert kept.read() == kept.within(catalog.gone_ts, MAX_TS)
    for after in {catalog.gone_ts, catalog.leaving_ts, catalog.gone_ts + (1 << 18)} - {0}:
        assert kept.read(Tso(after)) == kept.within(after, MAX_TS)
    if catalog.gone_ts:
        with pytest.raises(Behind, match=WORDS):
            kept.read(Tso(catalog.gone_ts - 1))
        with pytest.raises(Behind, match=WORDS):
            kept.read(NO_TS, Tso(catalog.gone_ts))
    assert verify(kept.url).problems == ()
    assert catalog.gone_ts <= ArchivedIndex(store, catalog).gone_ts()
    return catalog.gone_ts


# --- a whole round, wherever it is ---------------------------------------------------------------


def test_what_is_older_goes_after_a_grace_and_the_rest_reads_as_before(anywhere: Kept) -> None:
    before = anywhere.files()
    announced = anywhere.keep(grace_s=60)
    assert announced.leaving > 4
    assert (announced.files, announced.gone_ts) == (0, 0)
    assert anywhere.files() == before
    assert anywhere.read() == anywhere.binlogs  # who planned before reads on

    waiting = anywhere.keep(grace_s=60)
    assert (waiting.leaving, waiting.files, waiting.leaving_ms) == (0, 0, announced.leaving_ms)
    gone = anywhere.keep(grace_s=0)
    assert gone.gone_ts == announced.leaving_ts
    assert gone.files == 3 * announced.leaving
    assert behind_the_bound_all_is_as_before(anywhere) == gone.gone_ts
    assert plus_ms(anywhere.resolved_ts, -1000) < gone.gone_ts
    assert gone.gone_ts <= plus_ms(anywhere.resolved_ts, -600)
    assert anywhere.files() == anywhere.files_wanted()
    history = ArchiveStore.open(anywhere.url).read(HISTORY_NAME)
    assert history == anywhere.logged.history.read_bytes()

    assert archive(anywhere.task(with_open=True)).segments == 0
    assert behind_the_bound_all_is_as_before(anywhere) == gone.gone_ts


def test_nothing_changes_by_a_dry_run(kept: Kept) -> None:
    before = {path: path.read_bytes() for path in Path(kept.url).rglob("*") if path.is_file()}
    told = kept.keep(is_dry=True)
    assert told.leaving > 10
    assert before == {p: p.read_bytes() for p in Path(kept.url).rglob("*") if p.is_file()}
    assert kept.keep().leaving == told.leaving
    dry = kept.keep(is_dry=True)
    assert (dry.files, kept.files() - kept.files_wanted()) == (3 * told.leaving, set())
    assert kept.keep().files == dry.files


@pytest.mark.parametrize("examples", [8, pytest.param(400, marks=pytest.mark.soak)])
def test_every_range_behind_the_bound_reads_the_same(
    made: Kept, tmp_path: Path, examples: int
) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        keeps=st.lists(st.integers(1, 1900), min_size=1, max_size=3),
        base=st.integers(0, 1900),
        cuts=st.lists(st.integers(0, 2000), min_size=2, max_size=2).map(sorted),
    )
    def holds(keeps: list[int], base: int, cuts: list[int]) -> None:
        a_range_reads_the_same(keeps, base, cuts, made, tmp_path / "example")

    holds()


def a_range_reads_the_same(
    keeps: list[int], base: int, cuts: list[int], made: Kept, to: Path
) -> None:
    shutil.rmtree(to, ignore_errors=True)
    kept = copied(made, to)
    kept.put_snapshot(plus_ms(kept.resolved_ts, -base))
    for keep_ms in keeps:
        done = kept.keep(keep_ms / 1000)
        assert done.leaving_ts <= plus_ms(kept.resolved_ts, -base)
        catalog = read_catalog(kept.store)
        after, upto = (plus_ms(kept.resolved_ts, at - 2000) for at in cuts)
        if after >= catalog.gone_ts:
            assert kept.read(after, upto) == kept.within(after, upto)
        assert kept.files() >= kept.files_wanted()
    kept.keep(9)
    behind_the_bound_all_is_as_before(kept)


# --- killed ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """In the place of SIGKILL: nothing of the product catches it."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Before the n-th write or deletion of the store; how many there were."""
    done = 0

    def counting(act: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: object) -> None:
            nonlocal done
            if done == step:
                raise Killed
            done += 1
            act(*args)

        return counted

    for name in ("put", "remove"):
        monkeypatch.setattr(ArchiveStore, name, counting(getattr(ArchiveStore, name)))
    return lambda: done


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_any_step_the_next_round_ends_what_was_begun(
    made: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    whole = copied(made, tmp_path / "whole")
    whole.keep(LONGER_S, grace_s=60)
    done = whole.keep(LONGER_S)
    wanted, gone = whole.files(), done.gone_ts
    writes = 2 + done.files  # announced, in force, and each deletion
    for step in (0, 1, *range(2, writes, stride)):
        kept = copied(made, tmp_path / str(step))
        with monkeypatch.context() as patched, suppress(Killed):
            killed_at(step, patched)
            kept.keep(LONGER_S, grace_s=60)
            kept.keep(LONGER_S)
        assert behind_the_bound_all_is_as_before(kept) in (0, gone)
        kept.keep(LONGER_S)
        kept.keep(LONGER_S)
        assert behind_the_bound_all_is_as_before(kept) == gone
        assert kept.files() == wanted == kept.files_wanted()
        shutil.rmtree(kept.url)


def test_what_an_archiver_is_about_to_name_is_not_taken_for_a_leftover(kept: Kept) -> None:
    kept.keep()
    page = sorted(kept.store.names("pages"))[-1]
    number = int(page[:6])
    assert number > 3
    ours = {
        "shard-0/000099.vlog",  # uploaded, and the catalog comes next
        "shard-0/000099.commits.parquet",
        "shard-0/000099.json",
        f"pages/{number + 1:06d}-00000000.json",
    }
    leftover = f"pages/{number - 1:06d}-00000000.json"  # of an archiver that was killed
    for name in (*ours, leftover):
        kept.store.put(name, b"[]")
    kept.keep()
    assert kept.files() - kept.files_wanted() == ours


def test_pages_go_when_an_archiver_has_written_a_catalog_without_them(tmp_path: Path) -> None:
    kept = of_one_shard(tmp_path, pairs(*range(1000, 9000, 200)), segments_max=20)
    pages = kept.store.names("pages").keys()
    kept.keep(1.0)
    kept.keep(1.0)
    assert kept.store.names("pages").keys() == pages  # the catalog names them
    assert archive(kept.task(with_open=True)).left == 0
    kept.keep(1.0)
    left = kept.store.names("pages").keys()
    assert len(pages - left) > 2
    assert kept.files() == kept.files_wanted()
    again = str(tmp_path / "again")
    archive(msgspec.structs.replace(kept.task(with_open=True), url=again))
    kept.binlogs[:] = binlogs_of(again, NO_TS, MAX_TS)
    behind_the_bound_all_is_as_before(kept)


def test_two_rounds_at_once_lose_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has looked, the other does all of it, and the first one writes what it meant to."""
    came_between: list[bool] = []

    def late(store: ArchiveStore, bound: Bound) -> None:
        if not came_between:
            came_between.append(True)
            kept.keep(KEEP_S, grace_s=60)
            assert behind_the_bound_all_is_as_before(kept) == 0
        put_bound(store, bound)

    monkeypatch.setattr("binlogd.archive.keep.put_bound", late)
    kept.keep(LONGER_S, grace_s=60)
    assert behind_the_bound_all_is_as_before(kept) == 0
    kept.keep(KEEP_S)
    behind_the_bound_all_is_as_before(kept)
    assert kept.files() == kept.files_wanted()


def test_a_round_that_took_too_long_changes_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0])
    monkeypatch.setattr(WallClock, "wall_ms", lambda _: next(times, 21_601_000))
    with pytest.raises(Refused, match="another round may have come between in more than 21600 s"):
        kept.keep(grace_s=60)
    assert read_bound(kept.store).leaving is None


# --- who reads ------------------------------------------------------------------------------------


def reading(kept: Kept, **more: str) -> BinlogdSource:
    return BinlogdSource({"path": kept.url, "form": "binlog", **more})


def test_a_reader_that_planned_before_ends_or_is_told(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reading(kept, partitionTransactions="40")
    reader = source.reader(source.schema())
    parts = reader.partitions()
    opened = ArchivedIndex(kept.store, read_catalog(kept.store))
    monkeypatch.setattr("binlogd.archive.reading.TOGETHER", 5)
    begun = LogReader(kept.store, opened).binlogs(NO_TS, kept.resolved_ts)
    next(begun)
    announced = kept.keep(grace_s=60)
    found = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
    assert found["commit_ts"].to_pylist() == [each[1] for each in kept.binlogs]
    kept.keep()
    with pytest.raises(Behind, match=WORDS):
        list(begun)
    with pytest.raises(Behind, match=WORDS):
        list(reader.read(parts[1]))
    last = list(reader.read(parts[-1]))
    assert last[-1]["commit_ts"][-1].as_py() == kept.binlogs[-1][1]
    again = read({"path": kept.url, "form": "binlog", "partitionTransactions": "40"})
    assert again["commit_ts"].to_pylist() == [
        each[1] for each in kept.within(announced.leaving_ts, MAX_TS)
    ]


def test_a_stream_whose_checkpoint_lies_behind_is_refused_and_not_led_over(kept: Kept) -> None:
    source = reading(kept)
    stream = source.streamReader(source.schema())
    assert isinstance(stream, StreamReader)
    stand = {"commit_ts": kept.binlogs[9][1]}
    end = stream.latestOffset(stand)
    assert end == {"commit_ts": kept.resolved_ts}
    announced = kept.keep(grace_s=60)
    for _ in range(2):
        with pytest.raises(Behind, match=f"but those after {stand['commit_ts']} were asked for"):
            stream.latestOffset(stand)
        with pytest.raises(Behind, match=WORDS):
            stream.partitions(stand, end)
        first = stream.partitions(stream.initialOffset(), stream.latestOffset({"commit_ts": 0}))
        assert first[0].after == announced.leaving_ts
        with pytest.raises(Behind, match=WORDS):  # a first batch all of which is gone
            stream.partitions({"commit_ts": 0}, stand)
        kept.keep()
    ahead = {"commit_ts": announced.leaving_ts}
    rows = [batch for part in stream.partitions(ahead, end) for batch in stream.read(part)]
    assert sum(batch.num_rows for batch in rows) == len(kept.within(announced.leaving_ts, MAX_TS))


def test_typed_rows_behind_the_bound_are_the_same(kept: Kept) -> None:
    announced = kept.keep(grace_s=60)
    options = {"path": kept.url, "table": "bank.accounts", "from": str(announced.leaving_ts)}
    before = read({**options, "path": str(kept.logged.data_dir), **given_history(kept)})
    kept.keep()
    assert read(options).equals(before)
    assert before.num_rows > 10


def given_history(kept: Kept) -> dict[str, str]:
    return {"schemaHistory": str(kept.logged.history)}


def test_an_export_reads_what_is_left_and_knows_from_where_on(kept: Kept, tmp_path: Path) -> None:
    kept.keep()
    done = kept.keep()
    with local_view(kept.url, tmp_path / "out") as view:
        for number, shard in enumerate(shards_below(view.data_dir)):
            first = min(shard.segments())
            assert first > 0
            assert gone_ts(number, shard.directory, first) == done.gone_ts
        of_view = {"path": str(view.data_dir), "form": "binlog", **given_history(kept)}
        behind = {**of_view, "from": str(done.gone_ts)}
        assert read(behind).num_rows == len(kept.within(done.gone_ts, MAX_TS))


# --- what holds it up -----------------------------------------------------------------------------


def test_without_a_snapshot_that_replaces_it_nothing_goes(kept: Kept, tmp_path: Path) -> None:
    shutil.rmtree(Path(kept.url, "snapshots"))
    with pytest.raises(ConfigError, match="no snapshot of `binlogd export` is there"):
        kept.keep()
    half = plus_ms(kept.resolved_ts, -1000)
    published, _ = snapshot(tmp_path / "bases", half, [(1, "id", pa.array([1]))])
    held = kept.keep(base=str(tmp_path / "bases"), is_dry=True)
    assert held.leaving > 0
    assert "make a newer one" in held.held
    kept.keep(base=str(published))
    assert 0 < kept.keep(base=str(published)).gone_ts <= half
    behind_the_bound_all_is_as_before(kept)
    next(Path(published, "shop.t").iterdir()).unlink()
    with pytest.raises(
        ConfigError, match=r"its manifest names shop\.t/part-0\.zstd\.parquet, which"
    ):
        kept.keep(0.1, base=str(published))


def test_a_snapshot_of_another_cluster_and_changes_replace_nothing(
    made: Kept, tmp_path: Path
) -> None:
    kept = Kept(str(tmp_path / "archive"), made.logged, made.binlogs)
    archive(kept.task(with_open=True, cluster_id=8))
    kept.put_snapshot(kept.resolved_ts)
    with pytest.raises(Refused, match="is of cluster 7, the archive is of cluster 8"):
        kept.keep()
    assert read_bound(kept.store).leaving is None


def of_one_shard(
    directory: Path,
    payloads: list[bytes],
    *,
    marks: Sequence[Mark] = (),
    segments_max: int = 0,
    url: str = "",
) -> Kept:
    """Segments of about two binlogs."""
    write_log(directory / "data", payloads, shards=1, segment_bytes=100)
    (directory / "history.json").write_bytes(b"[]")
    logged = Logged(directory / "data", directory / "history.json", None)  # type: ignore[arg-type]  # none
    kept = Kept(url or str(directory / "archive"), logged, [])
    archive(kept.task(with_open=True, marks={0: list(marks)}, segments_max=segments_max))
    kept.put_snapshot(MAX_TS)
    kept.binlogs.extend(kept.read())
    return kept


def at(ms: int) -> Tso:
    return Tso(ms << 18)


def pairs(*numbers: int) -> list[bytes]:
    return [
        each
        for number in numbers
        for each in (
            prewrite_binlog(at(number), prewrite_value=encode_mutations(1, [])),
            commit_binlog(at(number), at(number + 1)),
        )
    ]


def test_a_prewrite_stays_for_a_commit_that_comes_late(tmp_path: Path) -> None:
    long = pairs(5_000)
    payloads = [*pairs(1, 10, 20), long[0], *pairs(*range(5_010, 6_000, 50)), *pairs(9_000)]
    commits = commit_binlog(at(5_000), at(8_000))
    kept = of_one_shard(tmp_path, [*payloads, commits, *pairs(9_100, 9_200, 9_300)])
    with_it = next(
        each.fid
        for each in all_segments(kept.store, read_catalog(kept.store))
        if each.max_ts > at(5_000)
    )
    kept.keep(2.0)
    kept.keep(2.0)
    first = read_catalog(kept.store).first_fids()[0]
    assert 0 < first <= with_it
    behind_the_bound_all_is_as_before(kept)
    kept.keep(0.5)  # by now the commit is older, too
    kept.keep(0.5)
    assert read_catalog(kept.store).first_fids()[0] > with_it
    behind_the_bound_all_is_as_before(kept)


def test_a_prewrite_of_an_unknown_fate_stays_until_a_pump_knows_it(tmp_path: Path) -> None:
    open_ = pairs(*range(5_000, 5_010))[::2]  # whole segments have nothing else
    payloads = [*pairs(*range(100, 200, 10)), *open_, *pairs(*range(6_000, 9_000, 200))]
    kept = of_one_shard(tmp_path / "unknown", payloads)
    assert kept.resolved_ts == at(5_000)
    told = kept.keep(1.0)
    assert told.leaving > 1
    kept.keep(1.0)
    first = read_catalog(kept.store).first_fids()[0]
    newest = max(each.fid for each in all_segments(kept.store, read_catalog(kept.store)))
    assert min(each.fid for each in described(kept.store, 0, newest).open) == first
    known = of_one_shard(tmp_path / "known", payloads, marks=[Mark(0, 99, 0)])
    assert known.keep(1.0).leaving > told.leaving
    known.keep(1.0)
    for each in (kept, known):
        behind_the_bound_all_is_as_before(each)


def test_the_newest_segments_of_a_shard_stay_whatever_is_asked(kept: Kept) -> None:
    kept.keep(0.001)
    kept.keep(0.001)
    kept.keep(0.001)
    left: dict[int, int] = {}
    for each in all_segments(kept.store, read_catalog(kept.store)):
        left[each.shard] = left.get(each.shard, 0) + 1
    assert min(left.values()) >= 2
    assert archive(kept.task(with_open=True)).segments == 0


def test_a_place_that_lost_its_catalog_is_not_begun_anew(kept: Kept) -> None:
    kept.keep()
    kept.store.remove(CATALOG_NAME)
    with pytest.raises(Refused, match=r"has lost its catalog\.json"):
        archive(kept.task())


def test_the_command_says_what_goes_and_when(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(**options: Any) -> str:
        archive_command(kept.url, keep="600ms", data_dir=str(kept.logged.data_dir), **options)
        return " ".join(capsys.readouterr().out.split())

    assert re.search(r"\d\d segments \(0\.\d MB\) would be announced to go", said(dry_run=True))
    assert json.loads(said(dry_run=True, as_json=True))["leaving"] > 10
    told = said()
    assert re.search(r"\d\d segments \(0\.\d MB\) announced to go; what is announced goes", told)
    assert f"reads begin behind commit_ts {read_bound(kept.store).announced_ts} (" in told
    with pytest.raises(ConfigError, match=r'--keep: "soon": use 7 or "7d" for 7 days'):
        archive_command(kept.url, keep="soon", data_dir=str(kept.logged.data_dir))
