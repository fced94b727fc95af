"""Reading an archive costs by what is read, not by what is stored: which files are opened for what,
and how much is held. The same rows as ever."""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.archive import catalog as catalog_module
from binlogd.archive import places
from binlogd.archive.catalog import (
    PAGED_FORMAT,
    ArchiveCatalog,
    all_segments,
    decode_catalog,
    read_catalog,
)
from binlogd.archive.cuts import cuts
from binlogd.archive.places import ArchivedIndex, Unwanted, merged_lazily
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive, verify
from binlogd.archive.view import local_view
from binlogd.errors import Corrupt
from binlogd.log.segment_index import LogPosition, SegmentIndex, SyncPoint
from binlogd.spark.history import ids_elsewhere
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.data_directory import write_log
from tests.support.logged import Logged, read
from tests.support.synthetic_archives import BEGIN_TS, STEP, Shape, make, whole_catalog
from tests.workload.generator import Options

OLD = Path(__file__).parents[2] / "golden" / "archive_format_1.tar.gz"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files, each time that one is read."""
    names: list[str] = []
    read, ranges = ArchiveStore.read, ArchiveStore.read_ranges

    def noted(store: ArchiveStore, name: str) -> bytes:
        names.append(name)
        return read(store, name)

    def noted_ranges(
        store: ArchiveStore, name: str, wanted: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        names.append(name)
        return ranges(store, name, wanted)

    monkeypatch.setattr(ArchiveStore, "read", noted)
    monkeypatch.setattr(ArchiveStore, "read_ranges", noted_ranges)
    catalog_module._segments_of.cache_clear()
    return names


def fids(names: Sequence[str], of: str) -> list[str]:
    return sorted({name for name in names if of in name})


# --- what is opened ------------------------------------------------------------------------------


def test_planning_reads_the_catalog_and_no_index(tmp_path: Path, opened: list[str]) -> None:
    store = make(tmp_path, Shape(segments=40, transactions=300, page_segments=8))
    opened.clear()
    catalog = read_catalog(store)
    assert (catalog.format, len(catalog.pages), len(catalog.segments)) == (PAGED_FORMAT, 4, 8)
    index = ArchivedIndex(store, catalog)
    assert index.has_any(NO_TS, index.resolved_ts())
    bounds = index.bounds(NO_TS, index.resolved_ts(), 1000)
    assert len(bounds) == 12
    assert fids(opened, "commits.parquet") == []
    assert index.bounds(NO_TS, index.resolved_ts(), 1000) == bounds
    assert [name for name in opened if "pages/" in name] == [page.name for page in catalog.pages]


def test_a_part_opens_the_pages_and_segments_of_its_range(
    tmp_path: Path, opened: list[str]
) -> None:
    store = make(tmp_path, Shape(segments=40, transactions=300, page_segments=8))
    index = ArchivedIndex(store, read_catalog(store))
    begin = Tso(BEGIN_TS + 5 * 300 * 4 * STEP)  # the sixth segment of each shard begins here
    opened.clear()
    found = list(index.found(begin, Tso(begin + 100 * 4 * STEP)))
    assert len(found) == 400
    assert {each.fid for each in found} == {5}
    assert fids(opened, "parquet") == [f"shard-{n}/000005.commits.parquet" for n in range(4)]
    assert len(fids(opened, "pages/")) == 1
    assert not index.has_any(index.resolved_ts(), Tso(index.resolved_ts() + 1000))


def test_what_is_not_asked_for_is_not_opened(tmp_path: Path, opened: list[str]) -> None:
    """A micro-batch with a limit looks for its end, and no further."""
    store = make(tmp_path, Shape(segments=40, transactions=300, overlap=50))
    index = ArchivedIndex(store, read_catalog(store))
    opened.clear()
    found = list(itertools.islice(index.found(NO_TS, index.resolved_ts()), 200))
    assert len(found) == 200
    assert len(fids(opened, "parquet")) == 4
    every = list(index.found(NO_TS, index.resolved_ts()))
    assert every[:200] == found
    assert every == sorted(every)
    assert len({each[:2] for each in every}) == len(every) == 4 * (9 * 250 + 300)


def test_of_a_large_index_the_row_groups_of_the_range_are_fetched(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlogd.archive.places.GROUP_ROWS", 1000)
    store = make(tmp_path, Shape(segments=1, transactions=10_000, shards=1))
    (segment,) = all_segments(store, read_catalog(store))
    assert len(segment.places) == 11
    fetched: list[int] = []
    ranges = ArchiveStore.read_ranges

    def counted(of: ArchiveStore, name: str, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        fetched.append(sum(length for _, length in wanted))
        return ranges(of, name, wanted)

    monkeypatch.setattr(ArchiveStore, "read_ranges", counted)
    index = ArchivedIndex(store, read_catalog(store))
    at = Tso(BEGIN_TS + 4_500 * STEP)
    assert [each.commit_ts for each in index.found(Tso(at - 1), Tso(at + STEP))] == [at, at + STEP]
    assert len(fetched) == 1
    assert fetched[0] < segment.places[-1].end / 2


@pytest.mark.parametrize("at", [0, 5, 700, -200, -1])
def test_a_changed_byte_of_what_is_fetched_is_told(tmp_path: Path, at: int) -> None:
    store = make(tmp_path, Shape(segments=1, transactions=200, shards=1))
    path = tmp_path / "shard-0" / "000000.commits.parquet"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    index = ArchivedIndex(store, read_catalog(store))
    with pytest.raises(Corrupt, match=r"000000\.commits\.parquet: its checksum"):
        list(index.found(NO_TS, index.resolved_ts()))


# --- how much is held ----------------------------------------------------------------------------


def test_of_an_index_some_thousand_places_are_objects_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path, Shape(segments=2, transactions=40_000, shards=2))
    held: list[int] = []
    rows = places.commits_of

    def wrapped(*args: object) -> Iterator[pa.RecordBatch]:
        for batch in rows(*args):  # type: ignore[arg-type]  # as it was called
            held.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(places, "commits_of", wrapped)
    index = ArchivedIndex(store, read_catalog(store))
    assert sum(1 for _ in index.found(NO_TS, index.resolved_ts())) == 80_000
    assert max(held) == 8192


positions = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), max_size=6)


@given(positions)
def test_a_merge_is_that_of_all_whatever_overlaps(drawn: list[list[int]]) -> None:
    streams = [
        [LogPosition(ts, ts - 1, 0, fid, at, 1, -1, 0, 0) for at, ts in enumerate(sorted(each))]
        for fid, each in enumerate(drawn)
    ]
    asked: list[int] = []

    def noted(of: list[LogPosition]) -> Iterator[LogPosition]:
        asked.append(of[0].commit_ts)
        yield from of

    coming = sorted(((each[0].commit_ts, each) for each in streams), key=lambda each: each[0])
    merged = merged_lazily((least, noted(each)) for least, each in coming)
    found = []
    for each in merged:
        found.append(each)
        assert max(asked) <= each.commit_ts  # nothing is opened before its turn
    assert found == sorted(each for of in streams for each in of)


# --- where it is cut -----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300), st.integers(1, 5000)), max_size=8),
    st.integers(0, 600),
    st.integers(1, 600),
    st.integers(1, 400),
)
def test_cuts_ascend_and_end_with_the_end(
    drawn: list[tuple[int, int, int]], after: int, width: int, every: int
) -> None:
    segments = [described(low, low + wide, count) for low, wide, count in drawn]
    upto = Tso(after + width)
    found = cuts(segments, Tso(after), upto, every)
    assert found[-1] == upto
    assert found == sorted(set(found))
    assert all(after < each <= upto for each in found)


def test_parts_are_about_as_large_as_asked_where_a_burst_is_in_between(tmp_path: Path) -> None:
    """The sync points tell where in a segment its transactions are."""
    burst = described(0, 1_000_000, 10_000, sync=[(0, 0), (100, 500_000), (900, 500_100)])
    found = cuts([burst], NO_TS, Tso(1_000_000), 1000)
    inside = [each for each in found if 500_000 < each <= 500_100]
    assert len(found) == pytest.approx(10, abs=1)
    assert len(inside) == pytest.approx(8, abs=1)
    even = make(tmp_path, Shape(segments=12, transactions=5000))
    index = ArchivedIndex(even, read_catalog(even))
    bounds = [NO_TS, *index.bounds(NO_TS, index.resolved_ts(), 2000)]
    sizes = [sum(1 for _ in index.found(*pair)) for pair in itertools.pairwise(bounds)]
    assert sum(sizes) == 60_000
    assert all(1800 < size < 2200 for size in sizes[:-1])


def described(
    low: int, high: int, transactions: int, sync: Sequence[tuple[int, int]] = ((0, 0),)
) -> SegmentIndex:
    return SegmentIndex(
        shard=0,
        fid=0,
        size_bytes=1000,
        is_sealed=True,
        crc32c=0,
        transactions=transactions,
        min_ts=low,
        max_ts=high,
        seen_ts=high,
        resolved_ts=high,
        ddl_jobs=(),
        tables={},
        sync=tuple(SyncPoint(*each) for each in sync),
        open=(),
    )


# --- which tables --------------------------------------------------------------------------------


def test_segments_without_the_table_are_not_opened(tmp_path: Path, opened: list[str]) -> None:
    store = make(tmp_path, Shape(segments=12, transactions=50, tables=3))
    catalog = read_catalog(store)
    index = ArchivedIndex(store, catalog, lambda: Unwanted({100, 101}, set()))
    opened.clear()
    found = list(index.found(NO_TS, index.resolved_ts()))
    assert len(fids(opened, "parquet")) == 4
    assert len(found) == 200
    assert index.has_any(NO_TS, index.resolved_ts())  # and the offset of a stream goes on
    unsure = [msgspec.structs.replace(each, carried=None) for each in catalog.segments]
    old = msgspec.structs.replace(catalog, segments=tuple(unsure))
    assert (
        len(
            list(
                ArchivedIndex(store, old, lambda: Unwanted({100, 101}, set())).found(
                    NO_TS, index.resolved_ts()
                )
            )
        )
        == 600
    )


def test_a_ddl_is_never_passed_over_and_one_that_nobody_knows_ends_the_choice(
    tmp_path: Path,
) -> None:
    store = make(tmp_path, Shape(segments=12, transactions=50, tables=3))
    catalog = read_catalog(store)
    first = msgspec.structs.replace(catalog.segments[0], ddl_jobs=(77,))
    with_ddl = msgspec.structs.replace(catalog, segments=(first, *catalog.segments[1:]))

    def count(jobs: set[int]) -> int:
        index = ArchivedIndex(store, with_ddl, lambda: Unwanted({100, 101}, jobs))
        return sum(1 for _ in index.found(NO_TS, index.resolved_ts()))

    assert count({77}) == 250
    assert count(set()) == 600


def rows_of(table_id: int) -> bytes:
    mutation = Mutation(table_id, sequence=b"\x00", inserted=(b"x",), updated=(), deleted=())
    return encode_mutations(1, [mutation])


def test_a_commit_whose_prewrite_stands_in_an_earlier_segment_keeps_its_table(
    tmp_path: Path,
) -> None:
    payloads = [
        prewrite_binlog(Tso(10), prewrite_value=rows_of(5)),
        prewrite_binlog(Tso(11), prewrite_value=rows_of(6)),
        commit_binlog(Tso(11), Tso(20)),
        prewrite_binlog(Tso(21), prewrite_value=rows_of(6)),
        commit_binlog(Tso(10), Tso(22)),
        commit_binlog(Tso(21), Tso(23)),
        commit_binlog(Tso(9), Tso(24)),
    ]
    write_log(tmp_path / "data", payloads, shards=1, segment_bytes=90)
    (tmp_path / "data" / "history.json").write_bytes(b"[]")
    url = str(tmp_path / "to")
    archive(Task(data_dir=str(tmp_path / "data"), url=url, with_open=True))
    store = ArchiveStore.open(url)
    told = {
        each.fid: (sorted(each.tables), each.carried)
        for each in all_segments(store, read_catalog(store))
        if each.transactions
    }
    of_table = [fid for fid, (own, carried) in told.items() if 5 in (*own, *(carried or ()))]
    index = ArchivedIndex(store, read_catalog(store))
    (place,) = [each for each in index.found(NO_TS, Tso(100)) if each.start_ts == 10]
    assert place.fid in of_table
    assert place.prewrite_fid < place.fid
    (lost,) = [each for each in index.found(NO_TS, Tso(100)) if each.start_ts == 9]
    assert told[lost.fid][1] is None  # nobody knows what it wrote


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=31, transactions=200, ddl_every=90)
    return Logged.write(tmp_path_factory.mktemp("log"), options, segment_bytes=1 << 12)


def test_every_table_is_read_as_from_the_directory(
    logged: Logged, tmp_path: Path, opened: list[str]
) -> None:
    """Whatever was renamed, truncated or exchanged. Some segments are passed over."""
    url = str(tmp_path / "archive")
    archive(
        Task(
            data_dir=str(logged.data_dir),
            url=url,
            history=str(logged.history),
            with_open=True,
            page_segments=8,
        )
    )
    stored = len(fids([str(each) for each in Path(url).rglob("*")], ".commits.parquet"))
    assert stored > 20
    least = stored
    more = {"renames": "follow", "schemaChange": "ignore"}
    for database, table in sorted(logged.workload.model.tables())[::3]:
        options = {"table": f"{database}.{table}", **more}
        opened.clear()
        found = read({"path": url, **options})
        least = min(least, len(fids(opened, "commits.parquet")))
        assert found.equals(read(logged.options(**options)))
    assert least < stored


def job(job_id: int, query: str, *ids: int, name: str = "", table_id: int = 0) -> Job:
    (made,) = jobs_from_json(
        msgspec.json.encode(
            [
                {
                    "id": job_id,
                    "type": 3,
                    "state": 6,
                    "schema_id": 1,
                    "table_id": table_id or ids[0],
                    "query": query,
                    "binlog": {
                        "SchemaVersion": job_id,
                        "TableInfo": {
                            "id": ids[0],
                            "name": {"O": name, "L": name.lower()},
                            "partition": {
                                "type": 1,
                                "expr": "a",
                                "enable": True,
                                "definitions": [
                                    {"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}}
                                    for each in ids[1:]
                                ],
                            },
                        },
                    },
                }
            ]
        )
    )
    return made


def test_ids_that_ever_had_to_do_with_a_name_are_not_elsewhere() -> None:
    jobs = [
        job(1, "create table Orders", 10, name="Orders"),
        job(2, "truncate table orders", 11, name="Orders", table_id=10),
        job(3, "create table other", 20, name="other"),
        job(4, "create table parted", 30, 31, 32, name="parted"),
        job(5, "exchange", 30, 32, 33, name="parted", table_id=40),
        job(6, "create table plain", 40, name="plain"),
        job(7, "create table orders_of_old", 50, name="orders_of_old"),
        job(8, "rename table `orders` to gone", 60, name="gone"),
    ]
    assert ids_elsewhere(jobs, "orders") == {20, 30, 31, 32, 33, 40, 50}
    assert ids_elsewhere(jobs, "plain") == {10, 11, 20, 50, 60}


# --- pages, and archives of before ---------------------------------------------------------------


def test_an_upload_rewrites_one_page_at_most_and_begins_where_the_last_one_ended(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    really = ArchiveStore.put

    def noted(store: ArchiveStore, name: str, content: bytes) -> None:
        put.append(name)
        really(store, name, content)

    monkeypatch.setattr(ArchiveStore, "put", noted)
    task = Task(
        data_dir=str(logged.data_dir),
        url=str(tmp_path / "paged"),
        history=str(logged.history),
        segments_max=1,
        page_segments=4,
    )
    left, rounds = 1, 0
    while left:
        left = archive(task).left
        rounds += 1
        assert len(fids(put, "pages/")) <= 1
        put.clear()
    assert rounds > 20
    store = ArchiveStore.open(task.url)
    paged = read_catalog(store)
    assert len(paged.pages) > 3
    assert len(paged.segments) < 4 + paged.shards
    whole = msgspec.structs.replace(
        task, url=str(tmp_path / "whole"), segments_max=0, page_segments=10_000
    )
    archive(whole)
    other = ArchiveStore.open(whole.url)
    assert by_fid(store, paged) == by_fid(other, read_catalog(other))
    assert paged.resolved_ts == read_catalog(other).resolved_ts
    assert archive(task).segments == 0
    assert verify(task.url).problems == ()
    (tmp_path / "paged" / paged.pages[1].name).write_bytes(b"[]")
    catalog_module._segments_of.cache_clear()
    with pytest.raises(Corrupt, match=r"pages/000001-.*its checksum"):
        list(ArchivedIndex(store, paged).found(NO_TS, Tso(paged.resolved_ts)))


def test_a_round_that_is_not_told_the_cluster_keeps_the_one_that_is_known(
    logged: Logged, tmp_path: Path
) -> None:
    url = str(tmp_path / "to")
    task = Task(data_dir=str(logged.data_dir), url=url, segments_max=1, cluster_id=7)
    for told in (7, None):
        assert archive(msgspec.structs.replace(task, cluster_id=told)).segments == 1
    assert read_catalog(ArchiveStore.open(url)).cluster_id == 7


def by_fid(store: ArchiveStore, catalog: ArchiveCatalog) -> list[SegmentIndex]:
    return sorted(all_segments(store, catalog), key=lambda each: (each.shard, each.fid))


def test_a_catalog_that_an_older_binlogd_wrote_plans_and_reads_the_same(tmp_path: Path) -> None:
    store = make(tmp_path, Shape(segments=12, transactions=100, overlap=20, page_segments=3))
    catalog = read_catalog(store)
    paged = ArchivedIndex(store, catalog)
    resolved = paged.resolved_ts()
    now = list(paged.found(NO_TS, resolved)), paged.bounds(NO_TS, resolved, 77)
    whole_catalog(store, catalog, by_fid(store, catalog))
    old = ArchivedIndex(store, read_catalog(store))
    assert (list(old.found(NO_TS, resolved)), old.bounds(NO_TS, resolved, 77)) == now


@pytest.fixture
def of_before(tmp_path: Path) -> Path:
    """What the code before the pages left behind: 60 transactions of a workload, sealed segments
    and some that still grew."""
    with tarfile.open(OLD) as file:
        file.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


@pytest.mark.parametrize("options", [{}, {"form": "binlog"}, {"table": "bank.accounts"}])
def test_an_archive_of_before_reads_and_goes_on(
    of_before: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    store = ArchiveStore.open(str(of_before))
    before = read_catalog(store)
    assert all(each.carried is None and not each.places for each in before.segments)
    with local_view(str(of_before), tmp_path) as view:
        history = of_before / "ddl_history.json"
        of_log = {"path": str(view.data_dir), "schemaHistory": str(history), **options}
        expected = read({**of_log, "to": str(before.resolved_ts)})
        assert expected.num_rows
        assert read({"path": str(of_before), **options}).equals(expected)
        done = archive(
            Task(
                data_dir=str(view.data_dir),
                url=str(of_before),
                history=str(history),
                with_open=True,
                page_segments=2,
            )
        )
        assert done.segments == 0
    assert verify(str(of_before)).problems == ()


def test_a_catalog_without_pages_has_the_format_of_before_and_an_unknown_one_is_refused() -> None:
    """The format of a catalog says so: 1 as long as there are none."""
    plain = ArchiveCatalog(cluster_id=1, shards=1, resolved_ts=9, segments=())
    assert plain.format == 1
    newer = msgspec.structs.replace(plain, format=3)
    with pytest.raises(Exception, match="format 3"):
        decode_catalog(msgspec.json.encode(newer), "here")
