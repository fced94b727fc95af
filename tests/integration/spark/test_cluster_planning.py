"""What an export on a cluster plans, reads, puts and refuses. No Spark: that is in e2e, and one run
on a session that is there in snapshot/test_export_archive.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from binlogd.archive.catalog import all_segments, put_catalog, read_catalog
from binlogd.archive.places import commits_of
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.cli import submitted
from binlogd.errors import Corrupt, CorruptRecord, Refused
from binlogd.log.segment_index import SegmentIndex
from binlogd.snapshot.check import listed
from binlogd.snapshot.log import reader
from binlogd.snapshot.log.events import WantedTables, committed_prewrites, events
from binlogd.snapshot.log.prewrites import DdlCommit, LogHeads, heads
from binlogd.snapshot.process.jobdir import pinned
from binlogd.snapshot.publishing.marks import part_of
from binlogd.snapshot.publishing.publish import LATEST, read_manifest
from binlogd.snapshot.spec import FileEntry, Manifest, TableEntry, TypeOptions
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.catalog import catalog
from binlogd.snapshot.writing.files import FileTarget
from binlogd.snapshot.writing.write import attempt_name
from binlogd.spark.archived_rows import TASK_BYTES, looked, looks, parts, prewrites, rows_of
from binlogd.spark.cluster_export import complete
from binlogd.spark.export_places import DirectoryPlace, Sending, StorePlace, remove_unnamed
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog
from tests.integration.snapshot.test_transactions import WANTED, prewrite
from tests.support import snapshots
from tests.support.data_directory import write_log
from tests.support.logged import Logged
from tests.support.synthetic_archives import Shape, make
from tests.workload.generator import Options

Change = tuple[int, bytes, int, int, int, bytes]


def changes(batches: Sequence[pa.RecordBatch]) -> list[Change]:
    """Every change once, in an order of their own."""
    found: set[Change] = set()
    for batch in batches:
        columns = [
            batch.column(name).to_pylist()
            for name in ("table_id", "key", "commit_ts", "seq", "op", "row")
        ]
        found.update(zip(*columns, strict=True))
    return sorted(found)


def by_executors(url: str, upto: Tso, wanted: WantedTables, cores: int) -> list[Change]:
    """As tasks read an archive."""
    store = ArchiveStore.open(url)
    work = parts(all_segments(store, read_catalog(store)), upto, cores)
    read = rows_of(url, work, upto, wanted)
    return changes([batch for number in range(len(work)) for batch in read(number)])


def by_one_machine(log: LogHeads, upto: Tso, wanted: WantedTables) -> list[Change]:
    """As the export of one machine reads the log."""
    reads = transactions.reads(log, upto, NO_TS)
    found = zip(log.parts, reads, strict=True)
    return changes(
        [each for part, of in found for each in events(committed_prewrites(part, of), wanted)]
    )


def test_executors_read_by_the_index_what_a_pass_over_the_log_finds(tmp_path: Path) -> None:
    logged = Logged.write(tmp_path, Options(seed=63, transactions=250, ddl_every=30))
    url = str(tmp_path / "archive")
    archive(
        Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history), with_open=True)
    )
    store = ArchiveStore.open(url)
    segments = list(all_segments(store, read_catalog(store)))
    with pinned(logged.data_dir, tmp_path / "job") as found:
        cut = reader.slices(found.segments, 1 << 20)
        log = LogHeads(cut, [heads(part) for part in cut])
        work = looks(segments)
        told = [row for n in range(len(work)) for row in looked(url, work)(n)]
        ddl = [
            DdlCommit(*each)
            for batch in told
            for each in msgspec.msgpack.decode(batch["ddl"][0].as_py())
        ]
        last = logged.workload.model.last_commit_ts
        assert min(batch["first_ts"][0].as_py() for batch in told) == log.start_ts.min()
        binlogs = transactions.ddl_binlogs(ddl, last)
        assert binlogs == transactions.ddl_binlogs(log.ddl, last)
        jobs = jobs_from_json(logged.workload.history())
        known = catalog(jobs, binlogs, log_begins=Tso(1), ignore_schemas=("mysql",))
        handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
        wanted = WantedTables(handles, known.passed_over, moves=known.moves)
        middle = Tso((logged.workload.model.moments()[0] + last) // 2)
        for upto in (middle, last):
            expected = by_one_machine(log, upto, wanted)
            assert expected
            assert by_executors(url, upto, wanted, cores=64) == expected


def archived(directory: Path, payloads: Sequence[bytes], segment_bytes: int = 120) -> str:
    """A log of these in small files, as an archive."""
    write_log(directory / "data", payloads, shards=1, segment_bytes=segment_bytes)
    (directory / "history").write_bytes(b"[]")
    url = str(directory / "archive")
    archive(
        Task(
            data_dir=str(directory / "data"),
            url=url,
            history=str(directory / "history"),
            with_open=True,
        )
    )
    return url


def test_a_commit_that_was_sent_again_into_another_segment_is_passed_over(tmp_path: Path) -> None:
    commit = commit_binlog(Tso(10), Tso(15))
    url = archived(tmp_path, [prewrite(10, 1), commit, prewrite(20, 2), prewrite(30, 3), commit])
    found = by_executors(url, Tso(40), WANTED, cores=2)
    assert [int.from_bytes(key, "big") for _, key, *_ in found] == [1]


def test_a_commit_that_was_sent_again_at_once_is_passed_over_without_a_look_at_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_binlog(Tso(10), Tso(15))
    url = archived(tmp_path, [prewrite(10, 1), commit, commit], segment_bytes=1 << 20)
    store = ArchiveStore.open(url)
    (segment,) = all_segments(store, read_catalog(store))
    work = parts([segment], Tso(40), 1)
    monkeypatch.setattr("binlogd.spark.archived_rows.read_catalog", None)
    found = [each for some in work for part in some for each in prewrites(store, part, Tso(40))]
    assert [each.commit_ts for each in found] == [15]


def test_a_commit_whose_prewrite_is_nowhere_ends_the_export(tmp_path: Path) -> None:
    url = archived(tmp_path, [prewrite(10, 1), commit_binlog(Tso(20), Tso(25))])
    with pytest.raises(Corrupt, match="transaction 20 committed at 25: the log does not hold its"):
        by_executors(url, Tso(40), WANTED, cores=2)
    assert by_executors(url, Tso(24), WANTED, cores=2) == []


def test_damage_of_a_segment_is_told_with_its_place(tmp_path: Path) -> None:
    url = archived(tmp_path, [prewrite(10, 1), commit_binlog(Tso(10), Tso(15))])
    (segment,) = (tmp_path / "archive" / "shard-0").glob("*.vlog")
    content = bytearray(segment.read_bytes())
    content[30] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptRecord, match=segment.name):
        by_executors(url, Tso(40), WANTED, cores=2)
    segment.unlink()
    with pytest.raises(CorruptRecord, match="the segment is not there"):
        by_executors(url, Tso(40), WANTED, cores=2)


@pytest.mark.parametrize("cores", [1, 3, 500])
def test_tasks_share_all_commits_and_none_reads_much_more_than_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr("binlogd.archive.places.GROUP_ROWS", 30_000)
    store = make(tmp_path, Shape(segments=3, transactions=80_000, shards=2))
    segments = list(all_segments(store, read_catalog(store)))
    work = parts(segments, Tso(max(each.max_ts for each in segments)), cores)
    sizes = [sum(part.size_bytes for part in task) for task in work]
    assert max(sizes) <= TASK_BYTES
    assert len(work) >= min(2 * cores, sum(sizes) // (256 << 10) // 2)
    seen: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for part in (part for task in work for part in task):
        of = seen.setdefault((part.segment.shard, part.segment.fid, part.group), [])
        of.append((part.piece, part.pieces))
    for pieces in seen.values():
        assert sorted(pieces) == [(each, len(pieces)) for each in range(len(pieces))]
    rows = sum(
        batch.num_rows
        for shard, fid, group in seen
        for batch in commits_of(store, _segment(segments, shard, fid), [group])
    )
    assert rows == sum(each.transactions for each in segments)


def _segment(segments: Sequence[SegmentIndex], shard: int, fid: int) -> SegmentIndex:
    return next(each for each in segments if (each.shard, each.fid) == (shard, fid))


def test_a_segment_that_may_grow_is_one_piece(tmp_path: Path) -> None:
    url = archived(tmp_path, [prewrite(10, 1), commit_binlog(Tso(10), Tso(15))])
    store = ArchiveStore.open(url)
    (segment,) = all_segments(store, read_catalog(store))
    grown = msgspec.structs.replace(segment, size_bytes=1 << 30, places=())
    ((part,),) = parts([grown], Tso(40), 8)
    assert part.pieces == 1
    assert [each.commit_ts for each in prewrites(store, part, Tso(40))] == [15]


# --- where files go ------------------------------------------------------------------------------


def test_two_attempts_of_a_task_have_names_of_their_own_for_one_part() -> None:
    assert part_of(attempt_name(3)) == part_of("00003.17") == "00003"


def manifest_of(files: Sequence[str]) -> Manifest:
    """A snapshot of one table with these files."""
    entry = TableEntry(
        database="shop",
        table="t",
        table_id=7,
        rows=0,
        columns=(),
        left_out_columns=(),
        losses={},
        files=tuple(FileEntry(name, 0, 1, "") for name in files),
    )
    return snapshots.manifest(40, entry)


@pytest.mark.parametrize("kind", ["directory", "store"])
def test_what_is_published_is_what_the_manifest_names_and_a_failure_leaves_nothing(
    kind: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place = DirectoryPlace(out) if kind == "directory" else StorePlace(out.as_uri())
    assert place.there(Tso(40)) is None
    with suppress(ZeroDivisionError), place.begun(Tso(40)) as url:
        sent(url, "shop.t/part-1", tmp_path)
        raise ZeroDivisionError
    assert list(out.iterdir()) == []
    manifest = manifest_of(["shop.t/part-2"])
    with place.begun(Tso(40)) as url:
        for name in ("shop.t/part-1", "shop.t/part-2", "shop.gone/part-3", "odd"):
            sent(url, name, tmp_path)
        assert place.there(Tso(40)) is None
        remove_unnamed(url, listed(manifest))
        made = place.publish(url, manifest, is_again=False)
    (snapshot,) = out.glob("snapshot-40*")
    names = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}
    assert names == {"shop.t/part-2", "manifest.json"}
    there = place.there(Tso(40))
    assert there is not None
    assert there.manifest == read_manifest(snapshot) == manifest
    assert there.path.name == made.path.name == snapshot.name
    latest = out / LATEST
    named = latest.readlink().name if kind == "directory" else latest.read_text().strip()
    assert named == snapshot.name
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def sent(url: str, name: str, scratch: Path) -> None:
    """A file of a task."""
    made = scratch / "made"
    made.write_bytes(b"x")
    Sending(url)(made, name)


def test_a_file_of_a_task_is_given_away_when_it_is_whole_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},/nowhere")
    target = FileTarget("", TypeOptions(), 10, send=Sending(str(tmp_path / "out")))
    with suppress(ZeroDivisionError), target.of_task() as here:
        assert Path(here.staging).parent == local
        Path(here.staging, "whole").write_bytes(b"all of it")
        Path(here.staging, "half").write_bytes(b"a part")
        here.sent("whole")
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]
    assert list(local.iterdir()) == []


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "o"), "--archive is wanted"),
        (("--out", "o", "--archive", "nowhere"), "--archive is wanted"),
        (("--via", "host:8250"), "--via: not under spark-submit"),
        (("--out", "o", "--wait", "5m", "--keep", "1"), "--wait: not under spark-submit"),
        (("--out", "o", "--archive", "A", "--base", "s3://b/c"), "reads all of the log; export it"),
        (("--out", "o", "--archive", "A", "--layout", "dumpling"), "numbered one after the other"),
        (("--out", "o", "--archive", "A", "--format", "delta"), "binlogd pipeline --into delta:"),
        (("--out", "o", "--archive", "A", "--resume"), "nothing is left to go on from"),
        (("--out", "o", "--archive", "A", "--as-of", "x"), "neither a TSO"),
        (("--out", "o", "--archive", "A", "--as-of", "9999999"), "is above 15, up to where"),
    ],
    ids=range(10),
)
def test_what_goes_on_one_machine_alone_is_refused_with_words(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = archived(tmp_path, [prewrite(10, 1), commit_binlog(Tso(10), Tso(15))])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        submitted("export", [url if each == "A" else each for each in words])
    assert ended.value.code in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "o").exists()


def test_an_archive_that_begins_late_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path, Shape(segments=2, transactions=20))
    catalog_of = msgspec.structs.replace(read_catalog(store), gone_ts=77)
    put_catalog(store, catalog_of, 64)
    with pytest.raises(Refused, match=r"complete behind 77 .* needs a base, .* on one machine"):
        complete(str(tmp_path))
