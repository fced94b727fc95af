"""What an export reads: pinned files, torn ends, damaged middles, and directories left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from binlogd.errors import ConfigError, CorruptRecord, Refused
from binlogd.log.record import FOOTER_BYTES, encode, footer
from binlogd.snapshot.log.prewrites import heads
from binlogd.snapshot.log.reader import payloads, slices, tasks
from binlogd.snapshot.process.jobdir import STAGING_PREFIX, job_directory, pinned
from binlogd.snapshot.publishing.publish import AlreadyThere, publish, read_manifest
from binlogd.snapshot.spec import Manifest, PinnedSegment
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.data_directory import write_log


def binlogs(count: int) -> list[bytes]:
    return [
        binlog
        for ts in range(10, 10 + 10 * count, 10)
        for binlog in (prewrite_binlog(Tso(ts)), commit_binlog(Tso(ts), Tso(ts + 5)))
    ]


def segment(path: Path, content: bytes, fid: int = 0) -> PinnedSegment:
    file = path / f"{fid:06d}.vlog"
    file.write_bytes(content)
    return PinnedSegment(0, fid, str(file), len(content), len(content))


def read(segments: Sequence[PinnedSegment], slice_bytes: int = 1 << 20) -> list[bytes]:
    return [payload for part in slices(segments, slice_bytes) for _, payload in payloads(part)]


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("end", [b"", footer(Tso(999))], ids=["open", "sealed"])
def test_slices_hold_every_record_once(tmp_path: Path, slice_bytes: int, end: bytes) -> None:
    wanted = binlogs(20)
    content = b"".join(map(encode, wanted)) + end
    part = segment(tmp_path, content)
    assert read([part], slice_bytes) == wanted
    found = slices([part], slice_bytes)
    assert [each for task in tasks(found, 200) for each in task] == found
    rows = sum(len(heads(each)) for each in found)
    assert rows == len(wanted)


def test_bytes_behind_the_pinned_length_do_not_count(tmp_path: Path) -> None:
    wanted = binlogs(2)
    content = b"".join(map(encode, wanted))
    part = segment(tmp_path, content)
    Path(part.path).write_bytes(content + encode(binlogs(5)[-1]))
    assert read([part]) == wanted


@pytest.mark.parametrize("cut", [2, 8, 15, 20])
def test_a_torn_end_of_the_last_file_is_passed_over(tmp_path: Path, cut: int) -> None:
    wanted = binlogs(3)
    content = b"".join(map(encode, wanted))
    assert read([segment(tmp_path, content[:-cut])]) == wanted[:-1]
    with pytest.raises(CorruptRecord):  # of a machine that went down: a start of binlogd cuts it
        read([segment(tmp_path, content[:-cut] + bytes(cut))])


def test_a_torn_end_of_an_earlier_file_ends_the_export(tmp_path: Path) -> None:
    content = b"".join(map(encode, binlogs(3)))
    segments = [segment(tmp_path, content[:-4]), segment(tmp_path, content, 1)]
    with pytest.raises(CorruptRecord, match=r"000000\.vlog at offset"):
        slices(segments, 1 << 20)


@pytest.mark.parametrize("place", ["header", "payload"])
def test_a_flipped_bit_ends_the_export(tmp_path: Path, place: str) -> None:
    records = list(map(encode, binlogs(3)))
    damaged = bytearray(b"".join(records))
    damaged[len(records[0]) + (0 if place == "header" else 20)] ^= 4
    with pytest.raises(CorruptRecord, match=f"at offset {len(records[0])}: "):
        read([segment(tmp_path, bytes(damaged))])
    sealed = b"".join(records)[:-2] + footer(Tso(1))
    with pytest.raises(CorruptRecord):
        read([segment(tmp_path, sealed)])
    assert FOOTER_BYTES == 12


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert slices([segment(tmp_path, b"")], 1 << 20) == []


def test_pinned_files_outlive_the_log(tmp_path: Path) -> None:
    wanted = binlogs(30)
    write_log(tmp_path / "data", wanted, shards=2, segment_bytes=200)
    staging = tmp_path / "job"
    with pinned(tmp_path / "data", staging) as found:
        for path in (tmp_path / "data").rglob("*.vlog"):
            path.unlink()
        assert sorted(read(found.segments)) == sorted(wanted)
        assert all(each.seen_bytes == each.size_bytes for each in found.segments)


def test_a_log_without_its_beginning_is_told_by_what_gc_left_behind(tmp_path: Path) -> None:
    shard = tmp_path / "data/pump/shard-0"
    write_log(tmp_path / "data", binlogs(30), shards=1, segment_bytes=200)
    with pinned(tmp_path / "data", tmp_path / "whole") as found:
        assert found.gone_ts == 0
    (shard / "value/000000.vlog").unlink()
    with (
        pytest.raises(Refused, match=r"log of shard 0 begins with file 1, and .* does not tell"),
        pinned(tmp_path / "data", tmp_path / "job"),
    ):
        pass
    (shard / "value.gone").write_text("77 1\n")
    with pinned(tmp_path / "data", tmp_path / "told") as found:
        assert found.gone_ts == 77
    (shard / "value.gone").write_text("77 0\n")
    with (
        pytest.raises(Refused, match="GC went up to file 0"),
        pinned(tmp_path / "data", tmp_path / "more"),
    ):
        pass
    with pytest.raises(ConfigError, match="no data directory"), pinned(tmp_path, tmp_path / "job"):
        pass


def test_a_job_directory_is_swept_when_its_owner_is_gone(tmp_path: Path) -> None:
    orphan = tmp_path / f"{STAGING_PREFIX}1"
    (orphan / "half").mkdir(parents=True)
    (orphan / "lock").touch()
    with job_directory(tmp_path, STAGING_PREFIX) as own:
        assert not orphan.exists()
        with job_directory(tmp_path, STAGING_PREFIX) as other:
            assert other != own
            assert own.exists()
        assert [path.name for path in own.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_s_processes_write_on_outlives_nobody(tmp_path: Path) -> None:
    orphan, failed = tmp_path / f"{STAGING_PREFIX}1", tmp_path / f"{STAGING_PREFIX}2"
    orphan.mkdir()
    with job_directory(tmp_path, STAGING_PREFIX):
        assert not orphan.exists()
        (orphan / "spill").mkdir(parents=True)  # by a worker that had not died yet
        failed.mkdir()  # of another one, which may be resumed
        (failed / "lock").touch()
    assert list(tmp_path.iterdir()) == [failed]


def test_a_snapshot_appears_whole_and_once(tmp_path: Path) -> None:
    manifest = Manifest(
        binlogd_version="1",
        spark_version="4",
        cluster_id=(1 << 64) - 1,
        commit_ts=77,
        time="",
        resolved_ts=80,
        log=(),
        tables=(),
        left_out=(),
    )
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    path = publish(tmp_path / "first", tmp_path, manifest)
    assert read_manifest(tmp_path / "LATEST") == read_manifest(path) == manifest
    with pytest.raises(AlreadyThere, match=r"snapshot-77$"):
        publish(tmp_path / "second", tmp_path, manifest)
    assert read_manifest(path) == manifest
    again = publish(tmp_path / "second", tmp_path, manifest, is_again=True)
    assert (tmp_path / "LATEST").resolve() == again == tmp_path / "snapshot-77-r2"
