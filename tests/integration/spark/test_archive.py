"""Segments that are copied away: read as the directory is, resumed, checked, never behind GC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from binlogd.archive.catalog import history_of, read_catalog
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Mark, Task
from binlogd.archive.upload import archive, verify
from binlogd.archive.view import local_view
from binlogd.errors import ConfigError, Corrupt, Refused, Unavailable
from binlogd.log.segment_index import Fold
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.data_directory import write_log
from tests.support.logged import Logged, read
from tests.workload.generator import Options


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=21, transactions=400, ddl_every=40)
    return Logged.write(tmp_path_factory.mktemp("log"), options, segment_bytes=1 << 15)


def task(logged: Logged, url: str, **more: object) -> Task:
    return Task(
        data_dir=str(logged.data_dir),
        url=url,
        history=str(logged.history),
        **more,  # type: ignore[arg-type]  # fields of Task
    )


@pytest.mark.parametrize("options", [{}, {"form": "binlog"}, {"table": "bank.accounts"}])
def test_an_archive_is_read_as_the_directory_is(
    options: dict[str, str], logged: Logged, tmp_path: Path
) -> None:
    url = str(tmp_path / "archive")
    done = archive(task(logged, url, with_open=True))
    assert done.segments > 4
    directory = read(logged.options(**options))
    assert directory.num_rows
    assert read({"path": url, **options}).equals(directory)
    assert read({"path": f"file://{url}", **options, "partitionTransactions": "70"}).equals(
        directory
    )


def test_a_round_goes_on_where_the_last_one_stopped(logged: Logged, tmp_path: Path) -> None:
    at_once, by_rounds = str(tmp_path / "one"), str(tmp_path / "many")
    archive(task(logged, at_once))
    rounds = 0
    while archive(task(logged, by_rounds, segments_max=1)).left:
        rounds += 1
        for half in ("shard-0/000099.vlog.new", "catalog.json.new"):  # of one that was killed
            (tmp_path / "many" / half).write_bytes(b"half")
    assert rounds > 2
    one, many = (read_catalog(ArchiveStore.open(url)) for url in (at_once, by_rounds))
    assert one == many
    assert archive(task(logged, by_rounds)).segments == 0


def test_a_second_archiver_of_a_directory_waits_for_the_first(
    logged: Logged, tmp_path: Path
) -> None:
    url, beside = str(tmp_path / "archive"), list[str]()

    def told(name: str, done: int, total: int) -> None:
        with pytest.raises(Unavailable, match="is being archived by another process"):
            archive(task(logged, url))
        beside.append(name)

    archive(task(logged, url), told)
    assert beside
    assert archive(task(logged, url)).segments == 0, "now it may, and all is there"


def test_the_history_is_known_while_it_is_written_anew_without_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "data", [prewrite(10)], shards=1)
    history, url = tmp_path / "history.json", str(tmp_path / "archive")
    asked = Task(data_dir=str(tmp_path / "data"), url=url, history=str(history))
    whole = list[bytes]()

    def put(store: ArchiveStore, name: str, content: bytes) -> None:
        write(store, name, content)
        if (tmp_path / "archive" / "catalog.json").exists():
            whole.append(history_of(store, read_catalog(store).history_crc32c))

    write = ArchiveStore.put
    monkeypatch.setattr(ArchiveStore, "put", put)
    for content in (b"[]", b"[ ]", b"[  ]"):
        history.write_bytes(content)
        archive(asked)
    assert set(whole) == {b"[]", b"[ ]", b"[  ]"}
    assert len(read_catalog(ArchiveStore.open(url)).history_crc32c) == 1


def test_a_segment_that_grows_is_not_taken_for_one_that_the_archive_has(
    logged: Logged, tmp_path: Path
) -> None:
    url = str(tmp_path / "archive")
    sealed = archive(task(logged, url)).newest
    assert archive(task(logged, url, with_open=True)).newest == sealed


def test_what_is_sealed_alone_is_complete_up_to_what_it_says(
    logged: Logged, tmp_path: Path
) -> None:
    url = str(tmp_path / "archive")
    done = archive(task(logged, url))
    whole = read(logged.options(form="binlog", to=str(done.resolved_ts)))
    assert whole.num_rows > 0
    assert read({"path": url, "form": "binlog"}).equals(whole)


def test_a_changed_byte_and_a_missing_file_are_found(logged: Logged, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    archive(task(logged, url, with_open=True))
    assert verify(url).problems == ()
    victim = tmp_path / "archive" / "shard-1" / "000000.vlog"
    content = bytearray(victim.read_bytes())
    content[1000] ^= 1
    victim.write_bytes(content)
    (tmp_path / "archive" / "shard-2" / "000000.json").unlink()
    damaged, missing = verify(url).problems
    assert "000000.vlog" in damaged
    assert "CRC-32C" in damaged
    assert "000000.json" in missing
    with pytest.raises(Corrupt, match="checksum mismatch"):
        read({"path": url, "form": "binlog"})


def test_another_log_and_a_gap_are_refused(logged: Logged, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    archive(task(logged, url, segments_max=1, cluster_id=7))
    with pytest.raises(Refused, match="archive of another log"):
        archive(task(logged, url, cluster_id=8))
    write_log(tmp_path / "two", [], shards=2)
    with pytest.raises(Refused, match="archive of another log"):
        archive(Task(data_dir=str(tmp_path / "two"), url=url))
    gone = Logged.write(
        tmp_path / "gone", Options(seed=21, transactions=400, ddl_every=40), segment_bytes=1 << 15
    )
    for fid in (0, 1):
        (gone.data_dir / "pump" / "shard-0" / "value" / f"{fid:06d}.vlog").unlink()
    with pytest.raises(Refused, match="deleted before they were archived"):
        archive(task(gone, url))


def test_a_place_that_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no archive"):
        verify(str(tmp_path))
    with pytest.raises(ConfigError, match='no file system for "gopher"'):
        ArchiveStore.open("gopher://there/it/is")


def prewrite(start_ts: int) -> bytes:
    return prewrite_binlog(Tso(start_ts), prewrite_value=encode_mutations(1, []))


def commit(start_ts: int, commit_ts: int) -> bytes:
    return commit_binlog(Tso(start_ts), Tso(commit_ts))


def test_an_open_prewrite_bounds_what_is_complete_until_its_fate_is_known() -> None:
    fold = Fold(0)
    for at, payload in enumerate([prewrite(10), commit(10, 20), prewrite(15), fake(Tso(90))]):
        fold.take(at, payload)
    assert fold.resolved_ts == 20
    fold.decide(0, 2)
    assert fold.resolved_ts == 20
    fold.decide(0, 3)
    assert fold.resolved_ts == 90


def test_a_commit_finds_its_prewrite_in_an_earlier_segment_even_behind_a_rollback() -> None:
    fold = Fold(3)
    for at, payload in enumerate([prewrite(10), prewrite(11), rollback_binlog(Tso(11))]):
        fold.take(at, payload)
    first = fold.index(size_bytes=9, crc32c=9, is_sealed=True)
    again = Fold(3, first)
    again.begin(1)
    for at, payload in enumerate([commit(10, 20), commit(11, 21), commit(12, 22)]):
        again.take(at, payload)
    assert [(each.fid, each.prewrite_fid, each.prewrite_offset) for each in again.places] == [
        (1, 0, 0),
        (1, 0, 1),
        (1, -1, 0),
    ]


def test_a_mark_counts_for_segments_that_were_sealed_after_it(tmp_path: Path) -> None:
    payloads = [prewrite(10), commit(10, 20), prewrite(15), prewrite(16), commit(16, 99)]
    write_log(tmp_path / "data", [*payloads, prewrite(100)], shards=1, segment_bytes=150)
    (tmp_path / "data" / "history.json").write_bytes(b"[]")
    last = max((tmp_path / "data" / "pump" / "shard-0" / "value").iterdir())
    fid = int(last.stem)
    for marks, resolved in (({}, 20), ({0: [Mark(fid, fid, 1 << 40)]}, 20)):
        url = str(tmp_path / f"archive-{len(marks)}")
        done = archive(Task(data_dir=str(tmp_path / "data"), url=url, marks=marks))
        assert done.resolved_ts == resolved
    known = archive(
        Task(
            data_dir=str(tmp_path / "data"),
            url=str(tmp_path / "known"),
            marks={0: [Mark(0, 0, 1 << 40)]},
        )
    )
    assert known.resolved_ts > 20
    assert json.loads((tmp_path / "known" / "catalog.json").read_bytes())["format"] == 1


def test_an_archive_stands_in_for_the_data_directory(logged: Logged, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    archive(task(logged, url, with_open=True, cluster_id=7))
    (tmp_path / "out" / ".archive-of-one-that-was-killed" / "log").mkdir(parents=True)
    with local_view(url, tmp_path / "out") as view:
        of_view = {**logged.options(form="binlog"), "path": str(view.data_dir)}
        assert read(of_view).equals(read(logged.options(form="binlog")))
        assert (view.cluster_id, view.schema_history) == (7, logged.history.read_bytes())
        assert view.resolved_ts == read(of_view)["commit_ts"][-1].as_py()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("page_segments", [100, 2])
def test_another_pump_of_the_cluster_does_not_take_its_segments_for_archived(
    page_segments: int, tmp_path: Path
) -> None:
    """Their files are called the same; so are those of one that began anew after a lost disk, of
    whose numbers nothing may be left in the catalog itself."""
    options = [Options(seed=1, transactions=200), Options(seed=2, transactions=60)]
    one, other = (
        Logged.write(tmp_path / str(each.seed), each, segment_bytes=1 << 13) for each in options
    )
    url = str(tmp_path / "archive")
    done = archive(task(one, url, cluster_id=7, page_segments=page_segments))
    assert done.segments > 4
    with pytest.raises(Refused, match="is the archive of another Pump"):
        archive(task(other, url, cluster_id=7))
    again = archive(task(one, url, cluster_id=7))
    assert (again.segments, again.newest) == (0, done.newest)
    assert verify(url).segments == done.segments
