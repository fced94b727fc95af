"""What is looked for by table and row is found by the row index as by reading the whole log."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from binlogd.drainer.messages.named import NamedRow, RowKind
from binlogd.serving.answers import FoundTransaction, Question
from binlogd.serving.finder import RowIndexer
from binlogd.tools.reading import find_sources, known_jobs
from binlogd.tools.row_index import frames, picked
from binlogd.tools.row_indexing import index_rows, indexed
from binlogd.tools.search import Found, SearchedLog, by_row
from binlogd.tools.shown import value_text
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.store import UpstreamStore
from tests.support.pump_world import ROOMY, eventually, posix_world, written
from tests.support.recordings_reader import RECORDINGS, committed, records

_OPTIONS = dataclasses.replace(ROOMY, segment_bytes_max=64 << 10)
QUESTIONS = 5


async def keep_history(directory: Path, name: str) -> None:
    store = await UpstreamStore.open(directory / "upstream.db")
    source = RECORDINGS / name / "ddl_history.json.gz"
    await SchemaHistory(job_source(str(source)), store).index()
    await store.close()


async def recorded(directory: Path, name: str, *, index_at: float = 1.0) -> Path:
    """A Pump's log of a recording in many segments, of which a share has its row index."""
    payloads = [each.payload for each in records(RECORDINGS / name)]
    await keep_history(directory, name)
    async with posix_world(directory) as world:
        world.times.says = Tso(max(each.commit_ts for each in committed(RECORDINGS / name)) + 1)
        async with world.pump(_OPTIONS, shards=2) as pump:
            for begin in range(0, len(payloads), 50):
                if begin >= len(payloads) * index_at:
                    await eventually(
                        lambda: (
                            not any(each.index_queue_records for each in pump.statistics().shards)
                        )
                    )
                    index_rows(directory, bytes_max=1 << 30, new_bytes_min=0)
                    index_at = 2.0
                await written(pump, *payloads[begin : begin + 50])
    return directory


def searched(directory: Path) -> SearchedLog:
    sources = find_sources([directory])
    return SearchedLog(sources, known_jobs(sources, None))


def found(log: SearchedLog, table: str, row: dict[str, str], limit: int) -> list[FoundTransaction]:
    answer = Found()
    by_row(log, Question(table=table, row=row, limit=limit), answer)
    assert answer.is_complete
    return [msgspec.structs.replace(each, place="") for each in answer.transactions]


def texts(row: NamedRow) -> dict[str, list[str]]:
    """What the row has, before and after."""
    sides = {RowKind.INSERT: ("new",), RowKind.DELETE: ("old",)}.get(row.kind, ("old", "new"))
    return {
        each.name.upper(): [value_text(getattr(each, side), each.mysql_type) for side in sides]
        for each in row.columns
    }


def questions(rows: list[NamedRow], count: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Tables, and rows of them by their keys and by a column that may be newer than other rows."""
    for row in Random(7).sample(rows, min(count, len(rows))):
        name, has = f"{row.database}.{row.table}", texts(row)
        yield name, {}
        for key in [*row.keys, [row.columns[-1].name]]:
            yield name, {each.upper(): has[each.upper()][-1] for each in key}


def has(row: NamedRow, table: str, wanted: dict[str, str]) -> bool:
    if f"{row.database}.{row.table}" != table:
        return False
    there = texts(row)
    return all(text in there.get(name, ()) for name, text in wanted.items())


async def test_in_a_log_without_binlogs_nothing_is_found(tmp_path: Path) -> None:
    async with posix_world(tmp_path) as world, world.pump(_OPTIONS, shards=2):
        pass
    for row in ({}, {"id": "1"}):
        assert found(searched(tmp_path), "shop.orders", row, 10) == []


@pytest.mark.parametrize(("name", "index_at"), [("ddl", 0.6), ("keys", 1.0)])
async def test_the_index_finds_what_reading_the_log_finds(
    tmp_path: Path, name: str, index_at: float
) -> None:
    """Half of it at first: the rest is indexed at the look-up."""
    log = searched(await recorded(tmp_path, name, index_at=index_at))
    if index_at == 1.0:
        assert index_rows(tmp_path, bytes_max=1 << 30, new_bytes_min=0) == 0
    assert indexed(log.sources, log.jobs) is not None
    read = [(each.commit_ts, list(each.rows())) for each in log.between(NO_TS, MAX_TS)][::-1]
    asked = 0
    for table, wanted in questions([row for _, rows in read for row in rows], QUESTIONS):
        answer = [each for each in found(log, table, wanted, 100) if each.ddl is None]
        expected = [ts for ts, rows in read if any(has(row, table, wanted) for row in rows)]
        assert [int(each.commit_ts) for each in answer] == expected[: len(answer)], (table, wanted)
        assert len(answer) == len(expected) or not wanted or len(answer) == 100
        asked += len(expected) > 0
        if wanted and name == "keys":
            candidates = [
                picked(frame, of, wanted) or ()
                for frame in indexed(log.sources, log.jobs) or ()
                for of in frame.head.tables
                if ".".join(of[:2]) == table
            ]
            assert sum(map(len, candidates)) < len(read) / 10, (table, wanted)
    assert asked > QUESTIONS


async def test_a_damaged_index_costs_time_alone_and_goes_with_its_segment(tmp_path: Path) -> None:
    directory = await recorded(tmp_path, "keys")
    index_rows(directory, bytes_max=1 << 30, new_bytes_min=0)
    log = searched(directory)
    rows = [row for each in log.between(NO_TS, MAX_TS) for row in each.rows()]
    asked = list(questions(rows, 1))
    expected = [found(log, *each, 20) for each in asked]
    files = sorted(directory.glob("pump/shard-*/rows/*.rows"))
    whole = {path: path.read_bytes() for path in files}
    for path, content in whole.items():
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # an entry
    assert [found(log, *each, 20) for each in asked] == expected
    for path, content in whole.items():
        path.write_bytes(content[:14] + bytes([content[14] ^ 1]) + content[15:])  # a head
        assert not list(frames(memoryview(path.read_bytes())))
    assert [found(log, *each, 20) for each in asked] == expected
    index_rows(directory, bytes_max=1 << 30, new_bytes_min=0)
    assert {path: path.read_bytes() for path in files} == whole

    for segment in directory.glob("pump/shard-*/value/000000.vlog"):
        segment.unlink()  # as garbage collection does
    index_rows(directory, bytes_max=1 << 30, new_bytes_min=0)
    assert [path.exists() for path in files[:2]] == [False, True]


async def test_a_child_makes_the_index_beside_a_pump(tmp_path: Path) -> None:
    directory = await recorded(tmp_path, "keys")
    task = asyncio.create_task(RowIndexer(directory, lambda: 1 << 20, new_bytes=1).run())
    await eventually(lambda: list(directory.glob("pump/shard-*/rows/*.rows")))
    task.cancel()
