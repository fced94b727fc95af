"""Every kind of binlog file is read as the same transactions."""

from __future__ import annotations

import asyncio
import gzip
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.files.log import compressed_name, encode_record
from binlogd.drainer.messages.named import NamedRow, RowKind
from binlogd.errors import ConfigError, CorruptRecord, CorruptRelay
from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.reading import SourceKind, find_sources, transactions
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import Tso
from binlogd.wire import peek
from tests.support.artefacts import ARTEFACTS
from tests.support.data_directory import write_log
from tests.support.decoding import decoded
from tests.support.recordings_reader import RECORDINGS, committed, history, records


def extracted(name: str, to: Path) -> Path:
    with tarfile.open(ARTEFACTS / f"{name}.tar.gz") as archive:
        archive.extractall(to, filter="data")
    return to


def read(
    *paths: Path, window: CommitWindow | None = None, jobs: Sequence[Job] = ()
) -> list[Transaction]:
    found = find_sources(paths)
    return list(transactions(found, window or CommitWindow(), jobs=jobs, meter=Meter()))


def shape(transaction: Transaction) -> tuple[Tso, str, list[NamedRow]]:
    text = transaction.ddl.text.rstrip("; ") if transaction.ddl else ""
    return transaction.commit_ts, text, list(transaction.rows())


def jobs_of(name: str) -> list[Job]:
    return jobs_from_json(history(RECORDINGS / name))


async def write_relay(directory: Path, binlogs: Sequence[CommittedBinlog], name: str) -> None:
    """A relay log of several files and groups."""
    jobs = {job.id: job for job in jobs_of(name)}
    tracker = SchemaTracker()
    tracker.load(jobs.values())
    disk = PosixDisk(threads=1)
    writer = RelayWriter(directory, disk, max_file_bytes=20_000)
    await writer.open(after=Tso(0), snapshot=tracker.snapshot)
    for at in range(0, len(binlogs), 25):
        part = [(each, decoded(each, jobs).job) for each in binlogs[at : at + 25]]
        await writer.append(
            [
                RelayEntry(each.commit_ts, each.payload, job.raw if job else b"")
                for each, job in part
            ]
        )
        for each, job in part:
            if job is not None:
                tracker.apply(job, peek.body(each.payload).ddl_schema_state)
    await writer.close()
    disk.close()


@pytest.mark.parametrize("name", ["types", "ddl"])
def test_a_pump_log_and_a_relay_log_tell_the_same_transactions(tmp_path: Path, name: str) -> None:
    binlogs = list(committed(RECORDINGS / name))
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / name)), shards=3)
    asyncio.run(write_relay(tmp_path / "relay", binlogs, name))
    from_pump = read(tmp_path / "data", jobs=jobs_of(name))
    from_relay = read(tmp_path / "relay")
    assert [each.commit_ts for each in from_pump] == [each.commit_ts for each in binlogs]
    assert [each.raw.payload for each in from_pump if each.raw] == [b.payload for b in binlogs]
    assert [shape(each) for each in from_pump] == [shape(each) for each in from_relay]
    assert [each.note for each in from_pump] == [each.note for each in from_relay]
    assert len(list((tmp_path / "relay").glob("relay-*"))) > 2


def test_the_log_of_the_go_pump_is_read_with_its_two_pumps_merged(tmp_path: Path) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    found = read(root / "pump0", root / "pump1" / "value", jobs=jobs_of("ddl"))
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / "ddl")))
    of_one = read(tmp_path / "data", jobs=jobs_of("ddl"))
    assert [shape(each) for each in found] == [shape(each) for each in of_one]


def test_rows_of_the_originals_file_sink_are_those_of_the_log(tmp_path: Path) -> None:
    root = extracted("drainer_file_ddl", tmp_path / "files")
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / "ddl")))
    of_log = {each.commit_ts: each for each in read(tmp_path / "data", jobs=jobs_of("ddl"))}
    compared = 0
    for each in read(root / "last" / "out"):
        if each.ddl is None:
            told = [(row.database, row.kind, len(row.columns)) for row in each.rows()]
            known = of_log[each.commit_ts]
            assert len(told) == len(list(known.rows()))
            compared += 1
        else:
            assert each.ddl.text in (of_log[each.commit_ts].ddl or each.ddl).text
    assert compared > 100


def test_the_originals_relay_log_tells_rows_with_their_keys(tmp_path: Path) -> None:
    root = extracted("drainer_relay_keys", tmp_path)
    found = read(root / "relay")
    first = next(iter(found[0].rows()))
    assert (first.database, first.table, first.kind) == ("keys", "ci_unicode_ci", RowKind.DELETE)
    assert [(each.name, each.old, each.new) for each in first.columns] == [
        ("k", b"abc", None),
        ("u", b"Uni", None),
        ("v", b"val", None),
    ]
    assert first.keys == (("k",), ("u",))
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / "keys")))
    known = {each.commit_ts: each for each in read(tmp_path / "data", jobs=jobs_of("keys"))}
    for each in found:
        assert by_name(each) == by_name(known[each.commit_ts])


def by_name(transaction: Transaction) -> list[str]:
    """Rows without what only one side tells: order between tables, virtual columns."""
    return sorted(
        str((row.database, row.table, row.kind, [(c.name, c.old, c.new) for c in row.columns]))
        for row in transaction.rows()
    )


def test_a_window_cuts_at_both_ends_inclusive(tmp_path: Path) -> None:
    binlogs = list(committed(RECORDINGS / "types"))
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / "types")))
    asyncio.run(write_relay(tmp_path / "relay", binlogs, "types"))
    start, stop = binlogs[100].commit_ts, binlogs[200].commit_ts
    everything = [shape(each) for each in read(tmp_path / "relay")]
    wanted = [each for each in everything if start <= each[0] <= stop]
    window = CommitWindow(start, stop)
    assert [shape(each) for each in read(tmp_path / "relay", window=window)] == wanted
    cut = read(tmp_path / "data", window=window, jobs=jobs_of("types"))
    assert [shape(each) for each in cut] == wanted
    root = extracted("drainer_file_ddl", tmp_path / "files")
    named = read(root / "last" / "out")
    window = CommitWindow(named[10].commit_ts, named[20].commit_ts)
    found = read(root / "last" / "out", window=window)
    assert [each.commit_ts for each in found] == [each.commit_ts for each in named[10:21]]


def test_compressed_files_are_read_as_they_are_and_copies_once(tmp_path: Path) -> None:
    root = extracted("drainer_file_ddl", tmp_path / "files")
    (file,) = (root / "last" / "out").glob("binlog-*")
    plain = read(file)
    packed = tmp_path / "packed"
    packed.mkdir()
    name = compressed_name(file.name, plain[0].commit_ts)
    (packed / name).write_bytes(gzip.compress(file.read_bytes()))
    assert [shape(each) for each in read(packed)] == [shape(each) for each in plain]
    both = read(packed, root / "last" / "out")
    assert [each.commit_ts for each in both] == [each.commit_ts for each in plain]
    (packed / name).write_bytes(gzip.compress(file.read_bytes())[:-20_000])
    with pytest.raises(CorruptRelay, match="does not decompress"):
        read(packed)


def test_a_file_that_is_compressed_while_it_is_read_is_found_under_its_new_name(
    tmp_path: Path,
) -> None:
    root = extracted("drainer_file_ddl", tmp_path / "files")
    (file,) = (root / "last" / "out").glob("binlog-*")
    plain = read(file)
    (source,) = find_sources([file.parent])
    packed = file.with_name(compressed_name(file.name, plain[0].commit_ts))
    packed.write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    found = transactions([source], CommitWindow(), meter=Meter())
    assert [each.commit_ts for each in found] == [each.commit_ts for each in plain]
    packed.unlink()
    with pytest.raises(FileNotFoundError):
        next(transactions([source], CommitWindow(), meter=Meter()))


def test_a_record_that_is_none_is_named_where_the_first_file_is_looked_for(tmp_path: Path) -> None:
    for number in range(2):
        record = encode_record(b"\xff junk")
        (tmp_path / f"binlog-000000000000000{number}-20260101000000").write_bytes(record)
    stream = transactions(find_sources([tmp_path]), CommitWindow(Tso(5)), meter=Meter())
    with pytest.raises(CorruptRelay, match=r"binlog-0000000000000001.* at offset 0"):
        next(stream)


def test_damage_is_named_with_path_and_offset_after_all_that_is_whole(tmp_path: Path) -> None:
    root = extracted("drainer_file_ddl", tmp_path / "files")
    (file,) = (root / "last" / "out").glob("binlog-*")
    whole = read(file)
    offset = whole[50].place.offset
    content = bytearray(file.read_bytes())
    content[offset + 20] ^= 1
    file.write_bytes(content)
    stream = transactions(find_sources([file]), CommitWindow(), meter=Meter())
    seen = [next(stream).commit_ts for _ in range(50)]
    assert seen == [each.commit_ts for each in whole[:50]]
    with pytest.raises(CorruptRelay, match=f"{file.name} at offset {offset}: checksum mismatch"):
        next(stream)
    pump = extracted("pump_value_ddl", tmp_path / "pump")
    segment = pump / "pump0" / "value" / "000000.vlog"
    segment.write_bytes(segment.read_bytes()[:5000] + b"\xff" + segment.read_bytes()[5001:])
    with pytest.raises(CorruptRecord, match=r"000000\.vlog at offset"):
        read(pump / "pump0")


def test_a_path_without_binlogs_is_refused_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no binlogs"):
        find_sources([tmp_path])
    with pytest.raises(ConfigError, match="no such file"):
        find_sources([tmp_path / "nothing"])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match="is no binlog file"):
        find_sources([tmp_path / "notes.txt"])


def test_without_a_history_a_log_still_tells_what_it_can(tmp_path: Path) -> None:
    write_log(tmp_path / "data", (each.payload for each in records(RECORDINGS / "types")))
    found = read(tmp_path / "data")
    assert {SourceKind.PUMP} == {each.kind for each in find_sources([tmp_path / "data"])}
    notes = {each.note.rstrip("0123456789, ") for each in found}
    assert "the schema history does not tell the tables with id" in notes
    assert any("is not in the schema history" in each.note for each in found)
