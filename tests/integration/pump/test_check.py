"""`binlogd check`: nothing wrong goes unseen, nothing right is blamed, and what repair does."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.errors import ConfigError, CorruptRecord
from binlogd.host.disk import PosixDisk
from binlogd.log import record
from binlogd.log.index_file import FILES
from binlogd.pump.checking.check import FINDINGS_MAX, CheckReport, check
from binlogd.pump.checking.repair import Checked, check_and_repair
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.route import Routing
from binlogd.pump.shard.options import ShardOptions
from tests.support.pump_world import (
    ROOMY,
    at,
    commit,
    eventually,
    numbers,
    posix_world,
    prewrite,
    pulled,
    rollback,
    until_released,
    written,
)

SMALL = replace(ROOMY, segment_bytes_max=2_000)
TINY = replace(ROOMY, segment_bytes_max=60, window_bytes_max=1)


@pytest.fixture
async def disk() -> AsyncIterator[PosixDisk]:
    posix = PosixDisk(threads=2)
    yield posix
    posix.close()


def deaf(what: str, done: int, whole: int) -> None:
    """Nobody looks at the progress."""


async def filled(directory: Path, *, shards: int = 1, count: int = 100) -> Path:
    """A data directory with some of everything, measured and closed."""
    async with posix_world(directory) as world, world.pump(SMALL, shards=shards) as pump:
        for number in range(10, 10 + 2 * count, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
        await written(pump, prewrite(12), commit(12, 13), prewrite(10_000), rollback(10_000))
        await written(pump, prewrite(10_001))
        logs = [shard.log for shard in pump._shards]
        await eventually(
            lambda: all(s.checksum for log in logs for s in log.segments if s.is_sealed)
        )
    return directory


def value(directory: Path, fid: int = 0) -> Path:
    return directory / "pump" / "shard-0" / "value" / f"{fid:06d}.vlog"


def index(directory: Path) -> Path:
    return directory / "pump" / "shard-0" / FILES[0]


def changed(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def told(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def kinds(report: CheckReport) -> set[str]:
    return {finding.kind for finding in report.findings}


async def repaired(directory: Path, disk: PosixDisk, copy_to: Path | None = None) -> Checked:
    options = ShardOptions(log=LogLimits(segment_bytes_max=2_000))
    return await check_and_repair(
        directory, disk, deaf, repairs=True, copy_to=copy_to, options=options
    )


# --- what is right -----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_data_directory_in_order_verifies(
    tmp_path: Path, disk: PosixDisk, shards: int
) -> None:
    heard: list[tuple[int, int]] = []
    directory = await filled(tmp_path, shards=shards)
    report = await check(directory, disk, lambda _, done, whole: heard.append((done, whole)))
    assert report.findings == []
    assert sum(shard.records for shard in report.shards) == 205
    assert sum(shard.index_rows for shard in report.shards) == 203  # two were repeated
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1] == sum(shard.size_bytes for shard in report.shards)


async def test_after_kill_9_everything_verifies_and_the_torn_end_is_told(
    tmp_path: Path, disk: PosixDisk
) -> None:
    directory, killed = tmp_path / "data", tmp_path / "killed"
    async with posix_world(directory) as world, world.pump(SMALL) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        shutil.copytree(directory, killed)
    with value(killed).open("ab") as file:
        file.write(record.encode(prewrite(3))[:30])
    report = await check(killed, disk, deaf)
    assert (report.findings, report.shards[0].torn_bytes) == ([], 30)


async def test_what_garbage_collection_left_verifies(tmp_path: Path, disk: PosixDisk) -> None:
    day = 86_400_000 << 18
    async with posix_world(tmp_path) as world:
        world.clock.now_ms += 30 * 86_400_000
        async with world.pump(SMALL) as pump:
            for number in range(1, 32):
                start = number * day
                await written(pump, prewrite(start, 200), commit(start, start + 1))
            log = pump._shards[0].log
            await eventually(lambda: all(s.checksum for s in log.segments if s.is_sealed))
            await until_released(pump, 31 * day + 1)
            (plan,) = await pump.caretaker.collect()
            assert plan.fids
    assert (await check(tmp_path, disk, deaf)).findings == []


async def test_a_directory_in_use_or_without_a_pump_is_refused(
    tmp_path: Path, disk: PosixDisk
) -> None:
    with pytest.raises(ConfigError, match="no data of a Pump"):
        await repaired(tmp_path, disk)
    assert not (tmp_path / ".lock").exists()
    async with posix_world(tmp_path) as world, world.pump():
        with pytest.raises(ConfigError, match="is in use by process"):
            await repaired(tmp_path, disk)


# --- every byte of a small log -----------------------------------------------------------------


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
async def test_every_flipped_byte_of_a_log_is_found_and_never_believed(
    tmp_path: Path, disk: PosixDisk, every: int
) -> None:
    """By the check always, with file and place; by the Pump, if it hands out anything at all."""
    sound = tmp_path / "sound"
    async with posix_world(sound) as world, world.pump(TINY) as pump:
        for number in (10, 20, 30):
            await written(pump, prewrite(number, 1), commit(number, number + 1))
        log = pump._shards[0].log
        await eventually(lambda: all(s.checksum for s in log.segments if s.is_sealed))
        expected = await pulled(pump, upto=at(31))
    segments = sorted(value(sound).parent.iterdir())
    assert len(segments) == 3
    rng = random.Random(5)
    refused = 0
    for segment in segments:
        whole = segment.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.randrange(8)
            segment.write_bytes(damaged)
            findings = (await check(sound, disk, deaf)).findings
            places = [
                (each.begin, each.end)
                for each in findings
                if each.path == str(segment) and each.begin is not None
            ]
            assert any(begin <= position < (end or 0) for begin, end in places), findings
            if position % every == 0:  # a Pump's life takes longer than a check
                refused += await is_refused(sound, tmp_path / "copy", expected)
        segment.write_bytes(whole)
    assert refused > 30
    assert (await check(sound, disk, deaf)).findings == []


async def is_refused(sound: Path, copy: Path, expected: object) -> bool:
    """Whether a Pump, with or without its index, names the damage; else all is as expected."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound, copy)
    with_index = await answer(copy)
    index(copy).unlink()
    without = await answer(copy)
    for found in (with_index, without):
        assert found == expected or "vlog at offset" in str(found)
    return str in (type(with_index), type(without))


async def answer(directory: Path) -> list[CommittedBinlog] | str:
    """What a Pump gives, or why it does not start, or hand out."""
    try:
        async with posix_world(directory) as world, world.pump(TINY) as pump:
            try:
                return await pulled(pump, upto=at(31))
            except CorruptRecord as error:
                return str(error)
    except CorruptRecord as error:
        return str(error)


# --- every kind of wrong -----------------------------------------------------------------------


async def test_every_wrong_row_and_mark_is_found(tmp_path: Path, disk: PosixDisk) -> None:
    sound = await filled(tmp_path / "sound", count=40)
    wrong = {
        "UPDATE prewrites SET offset = offset + 1 WHERE start_ts % 7 = 0": "index",
        "UPDATE commits SET length = length + 1 WHERE start_ts % 7 = 0": "index",
        "UPDATE commits SET fid = fid + 1 WHERE start_ts % 7 = 0": "index",
        "UPDATE commits SET fid = fid + 900 WHERE start_ts % 7 = 0": "index",
        "UPDATE commits SET commit_ts = commit_ts + 1000000 WHERE start_ts % 7 = 0": "index",
        "UPDATE prewrites SET start_ts = -start_ts WHERE start_ts % 7 = 0": "index",
        "UPDATE commits SET offset = (SELECT max(offset) FROM commits c WHERE c.fid = commits.fid)"
        " WHERE start_ts % 7 = 0": "index",
        "DELETE FROM prewrites WHERE start_ts % 7 = 0": "index",
        "DELETE FROM commits WHERE start_ts % 7 = 0": "index",
        "DELETE FROM rollbacks": "index",
        "INSERT INTO rollbacks VALUES (77, 0)": "index",
        "INSERT INTO prewrites VALUES (77, 0, 0, 10)": "index",
        "DELETE FROM marks WHERE name = 'head_pointer'": "index",
        "UPDATE marks SET value = x'00' WHERE name = 'head_pointer'": "index",
        "UPDATE marks SET value = x'000000000700000000000000' WHERE name = 'head_pointer'": "mark",
        "UPDATE marks SET value = x'ff0000000000000000000000'"
        " WHERE name = 'handle_pointer'": "mark",
        "UPDATE marks SET value = (SELECT value FROM marks WHERE name = 'head_pointer')"
        " WHERE name = 'handle_pointer'": "mark",
        "UPDATE marks SET value = value + 100000 WHERE name = 'max_commit_ts'": "mark",
        "UPDATE marks SET value = 7 WHERE name = 'gc_ts'": "mark",
        "UPDATE segments SET size = size + 1 WHERE fid = 1": "segment",
        "UPDATE segments SET checksum = checksum + 1 WHERE fid = 1": "segment",
        "UPDATE segments SET max_ts = max_ts - 1 WHERE fid = 1": "footer",
        "INSERT INTO segments VALUES (900, 1, 1, 1, 1, 1)": "segment",
        "DROP TABLE commits": "index",
    }
    for number, (statement, kind) in enumerate(wrong.items()):
        directory = tmp_path / str(number)
        shutil.copytree(sound, directory)
        told(index(directory), "DELETE FROM marks WHERE name = 'checksum'")
        told(index(directory), statement)
        report = await check(directory, disk, deaf)
        assert kind in kinds(report), (statement, report.findings)


async def test_every_wrong_file_is_found(tmp_path: Path, disk: PosixDisk) -> None:
    sound = await filled(tmp_path / "sound", shards=2)

    async def found(name: str, change: Callable[[Path], object]) -> str:
        directory = tmp_path / name
        shutil.copytree(sound, directory)
        change(directory)
        return "\n".join(map(str, (await check(directory, disk, deaf)).findings))

    stray = next(
        number for number in range(1, 100) if Routing(2, window_bits=0).shard_of(at(number)) == 1
    )
    foreign = record.encode(prewrite(stray)) + record.encode(b"no binlog")
    assert "000001.vlog: the file is missing" in await found(
        "missing", lambda home: value(home, 1).unlink()
    )
    assert "shard-1/value: No such file" in await found(
        "shard", lambda home: shutil.rmtree(home / "pump" / "shard-1")
    )
    assert "xyz.vlog: parse file xyz.vlog err" in await found(
        "name", lambda home: value(home).with_name("xyz.vlog").write_bytes(b"")
    )
    text = await found("foreign", lambda home: value(home, 900).write_bytes(foreign))
    assert f"start_ts {at(stray)} belongs to shard 1 of 2" in text
    assert "000900.vlog at offset" in text
    assert "000899.vlog: the file is missing" in text
    text = await found("far", lambda home: value(home, 10**15).write_bytes(b""))
    assert text.count("the file is missing") == FINDINGS_MAX, "and it has an end"
    assert "index.db: it is missing" in await found("index", lambda home: index(home).unlink())
    assert "file is not a database" in await found(
        "noise", lambda home: index(home).write_bytes(b"noise" * 1000)
    )
    assert "value.gone: it should hold" in await found(
        "gone", lambda home: index(home).with_name("value.gone").write_text("x")
    )


# --- repair ------------------------------------------------------------------------------------


async def everything(directory: Path) -> list[tuple[int, int]]:
    async with posix_world(directory) as world, world.pump(SMALL) as pump:
        shard = pump._shards[0]
        assert shard.watermark >= at(199)
        return numbers(await pulled(pump, upto=at(199)))


async def test_a_wrong_index_is_made_again(tmp_path: Path, disk: PosixDisk) -> None:
    await filled(tmp_path)
    told(index(tmp_path), "DELETE FROM commits WHERE start_ts % 7 = 0")
    log_before = {path: path.read_bytes() for path in value(tmp_path).parent.iterdir()}
    done = await repaired(tmp_path, disk)
    assert done.report.is_clean
    assert done.before is not None
    assert kinds(done.before) == {"index"}
    assert done.repaired is not None
    assert done.repaired.indexes == (str(index(tmp_path)),)
    after = {path: path.read_bytes() for path in value(tmp_path).parent.iterdir()}
    assert {path: after[path] for path in log_before} == log_before
    assert await everything(tmp_path) == [(n, n + 1) for n in range(10, 210, 2)][:95]


async def test_a_damaged_log_is_left_alone_until_a_copy_may_be_made(
    tmp_path: Path, disk: PosixDisk
) -> None:
    data, copies = tmp_path / "data", tmp_path / "copies"
    await filled(data)
    broken = value(data, 1)
    changed(broken, lambda content: content.__setitem__(400, content[400] ^ 1))
    damaged = broken.read_bytes()
    done = await repaired(data, disk)
    assert not done.report.is_clean
    assert done.repaired is not None
    assert done.repaired.refused == ("shard-0",)
    assert broken.read_bytes() == damaged
    (lost,) = [each for each in done.report.findings if each.kind == "record"]

    done = await repaired(data, disk, copies)
    assert done.report.is_clean
    assert (copies / "shard-0" / "000001.vlog").read_bytes() == damaged
    assert lost.begin is not None
    assert lost.end is not None
    assert broken.stat().st_size == len(damaged) - (lost.end - lost.begin)

    changed(broken, lambda content: content.__setitem__(400, content[400] ^ 1))
    with pytest.raises(ConfigError, match="exists: name a directory without copies"):
        await repaired(data, disk, copies)


async def test_a_missing_segment_is_noticed_without_an_index_and_gone_without_on_request(
    tmp_path: Path, disk: PosixDisk
) -> None:
    """Else a log that lost a segment and its index would start with a hole that nobody sees."""
    data = tmp_path / "data"
    await filled(data)
    value(data, 1).unlink()
    found = [each for each in (await check(data, disk, deaf)).findings if each.kind == "index"]
    assert len(found) == 1, "not one for each of its rows"
    assert "rows that lead to 000001.vlog, which is not there" in found[0].what
    index(data).unlink()
    with pytest.raises(CorruptRecord, match=r"000001\.vlog at offset 0: the file is missing"):
        await everything(data)
    done = await repaired(data, disk)
    assert done.repaired is not None
    assert done.repaired.refused == ("shard-0",)
    assert kinds(done.report) == {"segment", "index"}
    done = await repaired(data, disk, tmp_path / "copies")
    assert done.report.is_clean
    assert done.repaired is not None
    assert done.repaired.emptied == (str(value(data, 1)),)
    async with posix_world(data) as world, world.pump(SMALL) as pump:
        assert pump.statistics().shards[0].max_commit_ts >= at(199)


async def test_segments_that_are_all_missing_behind_deleted_ones_are_noticed(
    tmp_path: Path, disk: PosixDisk
) -> None:
    """What was written then would be taken for a left-over, and go at the next start."""
    await filled(tmp_path)
    for path in value(tmp_path).parent.iterdir():
        path.unlink()
    index(tmp_path).unlink()
    value(tmp_path).parent.with_name("value.gone").write_bytes(b"5 5\n")
    with pytest.raises(CorruptRecord, match=r"000005\.vlog at offset 0: the file is missing"):
        await everything(tmp_path)
    report = await check(tmp_path, disk, deaf)
    assert "the file is missing" in {each.what for each in report.findings}


async def test_a_file_that_is_nobodys_is_left_to_the_operator(
    tmp_path: Path, disk: PosixDisk
) -> None:
    data = tmp_path / "data"
    await filled(data)
    foreign = value(data).with_name("of mine.vlog")
    foreign.touch()
    done = await repaired(data, disk, tmp_path / "copies")
    assert not done.report.is_clean
    assert done.repaired is not None
    assert done.repaired.in_the_way == (str(foreign),)
    foreign.unlink()
    assert (await check(data, disk, deaf)).is_clean
