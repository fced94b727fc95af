"""The tools read the data directory of a Pump, while it runs and after it ended."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from binlogd.archive.places import DirectoryIndex
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.errors import Corrupt
from binlogd.log.directory import ShardDirectory
from binlogd.tidb.model import jobs_from_json
from binlogd.tools.pump_log import joined
from binlogd.tools.reading import find_sources, known_jobs, transactions
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.peek import peek
from tests.support.pump_world import at, commit, eventually, posix_world, written
from tests.support.recordings_reader import RECORDINGS, committed, history, records

NAME = "types"


def read(directory: Path, window: CommitWindow | None = None) -> tuple[list[Transaction], Meter]:
    sources, meter = find_sources([directory]), Meter()
    jobs = known_jobs(sources, None)
    return list(transactions(sources, window or CommitWindow(), jobs=jobs, meter=meter)), meter


def tss(found: Sequence[Transaction]) -> list[Tso]:
    return [each.commit_ts for each in found]


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.vlog"))


async def keep_history(directory: Path, source: Path) -> None:
    """What a binlogd learns of the upstream's DDL."""
    store = await UpstreamStore.open(directory / "upstream.db")
    await SchemaHistory(job_source(str(source)), store).index()
    await store.close()


async def test_a_running_pump_and_one_that_ended_tell_the_same(tmp_path: Path) -> None:
    payloads = [each.payload for each in records(RECORDINGS / NAME)]
    known = list(committed(RECORDINGS / NAME))
    await keep_history(tmp_path, RECORDINGS / NAME / "ddl_history.json.gz")
    async with posix_world(tmp_path) as world:
        world.times.says = Tso(known[-1].commit_ts + 1)
        async with world.pump(shards=3) as pump:
            for begin in range(0, len(payloads), 200):
                await written(pump, *payloads[begin : begin + 200])
            running, _ = read(tmp_path)
            assert tss(running) == [each.commit_ts for each in known]
            await eventually(
                lambda: not any(shard.index_queue_records for shard in pump.statistics().shards)
            )
    ended, meter = read(tmp_path)
    assert [list(each.rows()) for each in ended] == [list(each.rows()) for each in running]
    assert not any(each.note for each in ended if each.ddl is None)
    assert meter.total_bytes < log_bytes(tmp_path) / 10, "the index tells where transactions stand"
    middle = known[len(known) // 2].commit_ts
    late, _ = read(tmp_path, CommitWindow(start=middle))
    assert tss(late) == [each.commit_ts for each in known if each.commit_ts >= middle]


async def test_without_an_index_or_with_a_broken_one_the_log_is_scanned(tmp_path: Path) -> None:
    payloads = [each.payload for each in records(RECORDINGS / NAME)][:400]
    async with posix_world(tmp_path) as world:
        world.times.says = Tso(max(peek(each).commit_ts for each in payloads) + 1)
        async with world.pump() as pump:
            await written(pump, *payloads)
    shard = tmp_path / "pump" / "shard-0"
    with_index = [each.commit_ts for each in joined(_shard(shard), CommitWindow(), Meter())]
    (shard / "index.db").write_bytes(b"no database" * 100)
    for name in ("index.db-wal", "index.db-shm"):
        (shard / name).unlink(missing_ok=True)
    assert [each.commit_ts for each in joined(_shard(shard), CommitWindow(), Meter())] == with_index
    (shard / "index.db").unlink()
    assert tss(read(tmp_path)[0]) == with_index


@pytest.mark.parametrize("table", ["prewrites", "commits"])
async def test_rows_of_the_index_that_lead_elsewhere_are_believed_by_no_reader(
    tmp_path: Path, table: str
) -> None:
    """Whole records with the right checksum, of another transaction. Where commits are not what was
    filed, the log is read."""
    with_value = prewrite_binlog(at(1), prewrite_key=b"k", prewrite_value=b"\x08\x01")
    another = prewrite_binlog(at(3), prewrite_key=b"k", prewrite_value=b"\x08\x01")
    async with posix_world(tmp_path) as world, world.pump() as pump:
        await written(pump, with_value, commit(1, 2), another, commit(3, 4))
    with sqlite3.connect(tmp_path / "pump" / "shard-0" / "index.db") as index:
        index.execute(
            f"UPDATE {table} SET (fid, offset, length) ="
            f" (SELECT fid, offset, length FROM {table} WHERE start_ts = {at(1)})"
        )
    shard, store = _shard(tmp_path / "pump" / "shard-0"), ArchiveStore.open(str(tmp_path))
    for way in (
        lambda: joined(shard, CommitWindow(), Meter()),
        lambda: LogReader(store, DirectoryIndex(tmp_path)).binlogs(NO_TS, at(4)),
    ):
        if table == "commits":
            assert [each.commit_ts for each in way()] == [at(2), at(4)]
            continue
        with pytest.raises(Corrupt, match=f"{at(3)} at commit_ts {at(4)}: .* another binlog"):
            list(way())


def _shard(shard: Path) -> ShardDirectory:
    return ShardDirectory(shard / "value", shard / "index.db")


@pytest.mark.parametrize(
    ("table", "times"),
    [
        (
            "ddl_history",
            "finished_ts INTEGER NOT NULL DEFAULT 0,"
            " start_ts INTEGER NOT NULL DEFAULT 0, schema_version INTEGER NOT NULL DEFAULT 0,",
        ),
        ("ddl_jobs", ""),
    ],
)
def test_the_history_that_was_kept_is_found_beside_the_log(
    tmp_path: Path, table: str, times: str
) -> None:
    (tmp_path / "pump" / "shard-0" / "value").mkdir(parents=True)
    raws = [json.dumps(job).encode() for job in json.loads(history(RECORDINGS / NAME))]
    database = sqlite3.connect(tmp_path / "upstream.db")
    database.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {times} raw BLOB NOT NULL)")
    database.executemany(
        f"INSERT INTO {table} (id, raw) VALUES (?, ?)",
        [(json.loads(raw)["id"], raw) for raw in raws],
    )
    database.commit()
    database.close()
    found = known_jobs(find_sources([tmp_path]), None)
    assert {job.id for job in found} == {
        job.id for job in jobs_from_json(history(RECORDINGS / NAME))
    }
