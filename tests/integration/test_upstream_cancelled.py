"""Whoever is cancelled leaves no transaction open in a connection that others share, and no
connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from binlogd.tidb.job_index import JobEntry
from binlogd.upstream.store import UpstreamStore


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
async def test_facts_are_durable_after_jobs_were_given_up(tmp_path: Path, steps: int) -> None:
    store = await UpstreamStore.open(tmp_path / "upstream.db")
    jobs = [(JobEntry(0, 0, 0, number), b"{}" * 1_000) for number in range(3_000)]
    keeping = asyncio.get_running_loop().create_task(store.put_jobs(jobs))
    for _ in range(steps):
        await asyncio.sleep(0)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping

    await store.put_fact("tso_limit", 7)
    with sqlite3.connect(tmp_path / "upstream.db") as other:
        assert other.execute("SELECT value FROM facts").fetchall() == [(7,), (7,)]
    other.close()
    await store.put_jobs(jobs)
    assert len(await store.job_entries()) == len(jobs)
    await store.close()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
async def test_an_open_that_is_given_up_leaves_no_connection(tmp_path: Path, steps: int) -> None:
    before = set(threading.enumerate())
    opening = asyncio.create_task(UpstreamStore.open(tmp_path / "upstream.db"))
    for _ in range(steps):
        await asyncio.sleep(0.001)
    opening.cancel()
    try:
        await (await opening).close()  # it was faster
    except asyncio.CancelledError:
        left = set(threading.enumerate()) - before
        for each in left:
            await asyncio.to_thread(each.join, 5)
        assert [each for each in left if each.is_alive()] == []
