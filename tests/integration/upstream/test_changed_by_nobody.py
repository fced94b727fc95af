"""What changes `upstream.db` without being binlogd is told, with the file and the remedy."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import BinlogdError, ConfigError
from binlogd.tidb.job_index import JobEntry
from binlogd.tso import Tso
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.store import SkipEntry, UpstreamStore, kept_jobs
from binlogd.wire.generated.etcdserverpb import PutRequest

SKIP = SkipEntry(Tso(470611042594193417), "because", 1_700_000_000_000)


async def written(path: Path) -> None:
    store = await UpstreamStore.open(path)
    await store.put_skip(SKIP)
    await store.put_jobs([(JobEntry(15, 10, 1, 1), b'{"id": 1}')])
    await store.close()
    keyspace = await KeyspaceStore.open(path, Random(1))
    await keyspace.put(PutRequest(key=b"pumps/a", value=b"{}"))
    await keyspace.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")  # all is in the one file


async def read(path: Path) -> object:
    """All of it, as a node and a tool do."""
    store = await UpstreamStore.open(path)
    try:
        found = await store.skips(), await store.read_jobs([1]), kept_jobs(path)
        keyspace = await KeyspaceStore.open(path, Random(2))
        await keyspace.close()
        return found
    finally:
        await store.close()


def statement(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(text)

    return change


def byte(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))

    return change


CHANGES = {
    "cut to a byte": lambda path: path.write_bytes(path.read_bytes()[:1]),
    "another key of a table": byte(b"commit_ts INTEGER PRIMARY", b"commit_ts INTEGER QRIMARY"),
    "another type of a key": byte(b"id INTEGER PRIMARY", b"id INTEGERXPRIMARY"),
    "another skip": statement("UPDATE skips SET commit_ts = commit_ts + 1"),
    "another reason": statement("UPDATE skips SET reason = 'becausf'"),
    "a skip less": statement("DELETE FROM skips"),
    "text for bytes": statement("UPDATE ddl_history SET raw = CAST(raw AS TEXT)"),
    "another revision": statement(
        "UPDATE keyspace_marks SET value = value - 1 WHERE name = 'revision'"
    ),
    "another cluster": statement(
        "UPDATE keyspace_marks SET value = value + 1 WHERE name = 'cluster (copy)'"
    ),
}


def test_a_tool_is_told_of_another_table(tmp_path: Path) -> None:
    path = tmp_path / "upstream.db"
    asyncio.run(written(path))
    byte(b"id INTEGER PRIMARY", b"id INTEGERXPRIMARY")(path)
    with pytest.raises(BinlogdError, match=r"upstream\.db: .* ddl_history has other columns"):
        kept_jobs(path)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_it_is_told(change: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "upstream.db"
    await written(path)
    change(path)
    with pytest.raises(BinlogdError, match=r"upstream\.db"):
        await read(path)


async def test_what_nobody_changed_is_there(tmp_path: Path) -> None:
    path = tmp_path / "upstream.db"
    await written(path)
    assert await read(path) == ([SKIP], [b'{"id": 1}'], [b'{"id": 1}'])


async def test_the_first_reason_of_a_skip_stays_also_without_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "upstream.db"
    await written(path)
    statement("DELETE FROM skip_checksums")(path)  # as an older binlogd left it
    store = await UpstreamStore.open(path)
    await store.put_skip(SkipEntry(SKIP.commit_ts, "another", 5))
    assert await store.skips() == [SKIP]
    await store.close()


async def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    """Who removed it as advised would lose what the node has told: where a descriptor is missing,
    for one."""
    path = tmp_path / "upstream.db"
    async with await UpstreamStore.open(path):
        pass
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    lowest = next(number for number in range(1 << 20) if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be opened as a database") as found:
            await UpstreamStore.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "files may be opened (ulimit -n)" in found.value.todo
    assert "remove" not in found.value.todo
    path.write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError) as found:
        await UpstreamStore.open(path)
    assert "bring back a whole copy" in found.value.todo
