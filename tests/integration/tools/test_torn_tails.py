"""No reader of a log ends in silence at a length, a footer or a record that is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from binlogd.archive.places import DirectoryIndex
from binlogd.archive.task import Task
from binlogd.archive.upload import archive, verify
from binlogd.archive.view import local_view
from binlogd.drainer.files.log import HEAD, encode_record
from binlogd.drainer.files.tail import find_tail
from binlogd.drainer.messages.pb_write import ddl_binlog
from binlogd.drainer.restore_original import whole_records
from binlogd.errors import Corrupt, CorruptRecord, CorruptRelay
from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.log.checked_text import checksummed_json
from binlogd.log.directory import data_directory, pump_directory, segment_file
from binlogd.log.pointer import FIRST
from binlogd.pump.checking.check import check
from binlogd.pump.kept_routing import SHARDS_FILE
from binlogd.pump.route import Routing
from binlogd.snapshot.log.reader import payloads, slices
from binlogd.snapshot.spec import PinnedSegment
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.records import records
from binlogd.tools.transaction import CommitWindow, Meter
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.appending import recovered_log
from tests.support.pb_reader import file_records, read_file_log

TRANSACTIONS = 4
DAMAGE = (CorruptRecord, CorruptRelay, Corrupt)
FOOTER = record.footer(Tso(10 * TRANSACTIONS + 5))
RECORDS = [
    record.encode(binlog)
    for ts in range(10, 10 + 10 * TRANSACTIONS, 10)
    for binlog in (
        prewrite_binlog(Tso(ts), prewrite_value=b"\x7a" + bytes([ts]) + b"r" * ts),
        commit_binlog(Tso(ts), Tso(ts + 5)),
    )
]


def damaged(parts: list[bytes], length_at: int) -> Iterator[bytes]:
    """A log with one byte of one length changed, for each byte of each length."""
    content = b"".join(parts)
    for begin in list(accumulate(map(len, parts), initial=0))[:-1]:
        for position in range(length_at, length_at + 8):
            for flip in (0x01, 0x80):
                changed = bytearray(content)
                changed[begin + position] ^= flip
                yield bytes(changed)


def listed(value: Path) -> int:
    (source,) = find_sources([value])
    return len(list(records(source, Meter()))) // 2


def told(value: Path) -> int:
    return len(list(transactions(find_sources([value]), CommitWindow(), meter=Meter())))


def exported(value: Path) -> int:
    files = sorted(value.glob("*.vlog"))
    size = files[0].stat().st_size
    parts = slices([PinnedSegment(0, 0, str(files[0]), size, size)], 1 << 20)
    return sum(1 for part in parts for _ in payloads(part)) // 2


def planned(value: Path) -> int:
    places = DirectoryIndex(data_directory(value))
    places.resolved_ts()
    return len(list(places.found(NO_TS, MAX_TS)))


def archived(value: Path) -> int:
    to = data_directory(value) / "archive"
    done = archive(Task(data_dir=str(data_directory(value)), url=str(to), with_open=True))
    assert verify(str(to)).problems == ()
    return done.transactions


def started(value: Path) -> int:
    """The Pump, which knows nothing of the log but the log."""

    async def recovered() -> int:
        disk = PosixDisk(threads=1)
        try:
            return len((await recovered_log(value, disk))[1])
        finally:
            disk.close()

    return asyncio.run(recovered()) // 2


def checked(value: Path) -> int:
    disk = PosixDisk(threads=1)
    try:
        report = asyncio.run(check(data_directory(value), disk, lambda *_: None))
    finally:
        disk.close()
    for finding in report.findings:
        if finding.kind in ("record", "footer"):
            raise CorruptRecord(finding.path, finding.begin or 0, finding.what)
    return report.shards[0].records // 2


READERS = [started, checked, listed, told, exported, planned, archived]


def segment_in(directory: Path, content: bytes) -> Path:
    path = segment_file(directory, 0, FIRST.fid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (pump_directory(directory) / SHARDS_FILE).write_bytes(Routing(1).to_bytes())
    return path.parent


@pytest.mark.parametrize("footer", [b"", FOOTER], ids=["open", "sealed"])
@pytest.mark.parametrize("reader", READERS)
def test_no_byte_of_a_length_hides_what_a_segment_holds(
    tmp_path: Path, reader: Callable[[Path], int], footer: bytes
) -> None:
    assert reader(segment_in(tmp_path / "whole", b"".join(RECORDS) + footer)) == TRANSACTIONS
    for content in damaged(RECORDS, 4):
        value = segment_in(tmp_path / "damaged", content + footer)
        with pytest.raises(DAMAGE, match="offset"):
            reader(value)
    assert not list((tmp_path / "damaged").glob("archive/**/*.vlog"))


@pytest.mark.parametrize("reader", READERS)
def test_a_segment_that_is_cut_before_its_footer_is_damaged_an_open_one_torn(
    tmp_path: Path, reader: Callable[[Path], int]
) -> None:
    content = b"".join(RECORDS)
    cut = len(RECORDS[-1]) - 3
    assert reader(segment_in(tmp_path / "open", content[:-cut])) == TRANSACTIONS - 1
    with pytest.raises(DAMAGE, match="offset"):
        reader(segment_in(tmp_path / "sealed", content[:-cut] + FOOTER))
    for position in range(8, len(FOOTER)):
        footer = bytearray(FOOTER)
        footer[position] ^= 1
        with pytest.raises(DAMAGE, match="offset"):
            reader(segment_in(tmp_path / "footer", content + footer))


@pytest.mark.parametrize("reader", READERS)
def test_no_flipped_bit_looks_like_a_torn_end(
    tmp_path: Path, reader: Callable[[Path], int]
) -> None:
    content = b"".join(RECORDS)
    for position in range(0, len(content), 5):
        changed = bytearray(content)
        changed[position] ^= 0x80
        with pytest.raises(DAMAGE, match="offset"):
            reader(segment_in(tmp_path, bytes(changed)))


@pytest.mark.parametrize("reader", READERS)
def test_a_length_beyond_the_file_is_not_believed(
    tmp_path: Path, reader: Callable[[Path], int]
) -> None:
    monster = bytearray(RECORDS[0])
    monster[4:12] = (1 << 50).to_bytes(8, "little")
    with pytest.raises(DAMAGE, match="above the record limit"):
        reader(segment_in(tmp_path, bytes(monster)))


@pytest.mark.parametrize("reader", READERS)
def test_a_torn_payload_may_hold_whole_records(
    tmp_path: Path, reader: Callable[[Path], int]
) -> None:
    """Somebody keeps value logs in a column: what the torn record holds is not the log's."""
    before, inner = b"".join(RECORDS[:2]), RECORDS[2] + RECORDS[3]
    held = prewrite_binlog(Tso(90), prewrite_value=b"before " + inner + b" and behind")
    whole = before + record.encode(held)
    exactly = {whole.index(inner) + len(RECORDS[2]), whole.index(inner) + len(inner)}
    for size in range(len(before) + 1, len(whole), 3):
        if size not in exactly:
            assert reader(segment_in(tmp_path, whole[:size])) == 1
    for size in exactly:  # whole records up to the very end: rather a damaged length
        with pytest.raises(DAMAGE, match="offset"):
            reader(segment_in(tmp_path, whole[:size]))


def test_a_segment_that_was_archived_short_is_found(tmp_path: Path) -> None:
    segment_in(tmp_path / "short", b"".join(RECORDS[:-2]) + FOOTER)
    segment_in(tmp_path / "whole", b"".join(RECORDS) + FOOTER)
    for name in ("short", "whole"):
        url = str(tmp_path / f"{name}-archive")
        archive(Task(data_dir=str(tmp_path / name), url=url))
        assert verify(url).problems == ()
    short, whole = (tmp_path / f"{name}-archive" for name in ("short", "whole"))
    told_short = short.joinpath("catalog.json").read_text().partition('"transactions"')[2]
    assert told_short.startswith(f": {TRANSACTIONS - 1}")
    for path in (whole / "catalog.json", whole / "shard-0" / "000000.json"):
        text = path.read_text()
        count = f'"transactions": {TRANSACTIONS}' if '": 1' in text else '"transactions":4'
        assert count in text
        changed = text.replace(count, count[:-1] + str(TRANSACTIONS - 1)).partition(",")[2]
        path.write_bytes(checksummed_json(b"{" + changed.encode()))  # as a bad writer would
    (problem,) = verify(str(whole)).problems
    assert "holds 4 commits, its index tells 3: it was archived short" in problem


# --- files of the file sink, and the original's relay log ------------------------------------

STATEMENTS = [
    encode_record(ddl_binlog(Tso(each), f"use d; CREATE TABLE t{each} (a INT);"))
    for each in range(1, 5)
]


def read_of_sink(directory: Path) -> int:
    return len(list(read_file_log(directory)))


def shown_of_sink(directory: Path) -> int:
    return len(list(file_records(directory)))


def told_of_sink(directory: Path) -> int:
    return len(list(transactions(find_sources([directory]), CommitWindow(), meter=Meter())))


def relayed(directory: Path) -> int:
    (path,) = directory.iterdir()
    return len(list(whole_records(path, path.read_bytes(), is_newest=True)))


def file_in(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "binlog-0000000000000000").write_bytes(content)
    return directory


@pytest.mark.parametrize("reader", [read_of_sink, shown_of_sink, told_of_sink, relayed])
def test_no_byte_of_a_length_hides_what_a_file_of_the_sink_holds(
    tmp_path: Path, reader: Callable[[Path], int]
) -> None:
    whole = b"".join(STATEMENTS)
    assert reader(file_in(tmp_path / "out", whole)) == len(STATEMENTS)
    assert reader(file_in(tmp_path / "out", whole[:-5])) == len(STATEMENTS) - 1
    for content in damaged(STATEMENTS, HEAD.size - 8):
        with pytest.raises(CorruptRelay, match="offset"):
            reader(file_in(tmp_path / "out", content))


async def test_a_sink_without_its_savepoint_does_not_cut_at_a_damaged_length(
    tmp_path: Path,
) -> None:
    disk = PosixDisk(threads=1)
    for content in damaged(STATEMENTS, HEAD.size - 8):
        with pytest.raises(CorruptRelay, match="offset"):
            await find_tail(disk, file_in(tmp_path / "out", content), None)
    found = await find_tail(disk, file_in(tmp_path / "out", b"".join(STATEMENTS)[:-5]), None)
    assert found.dropped_bytes
    disk.close()


def test_a_view_of_an_archive_tells_no_less(tmp_path: Path) -> None:
    """What an export reads of an archive goes through the same judge."""
    segment_in(tmp_path / "data", b"".join(RECORDS))
    archive(Task(data_dir=str(tmp_path / "data"), url=str(tmp_path / "to"), with_open=True))
    victim = tmp_path / "to" / "shard-0" / "000000.vlog"
    for content in damaged(RECORDS, 4):
        victim.write_bytes(content)
        with (
            pytest.raises(DAMAGE, match="offset"),
            local_view(str(tmp_path / "to"), tmp_path / "view") as view,
        ):
            exported(segment_file(view.data_dir, 0, FIRST.fid).parent)
    victim.write_bytes(b"".join(RECORDS[:-2]))
    url = str(tmp_path / "to")
    with pytest.raises(Corrupt, match="the catalog says"), local_view(url, tmp_path / "view"):
        pass
