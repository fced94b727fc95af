"""The small TiDB's history as others read it: by HTTP, and as a file."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from binlogd.tidb.model import jobs_from_json
from tests.workload.generator import Options, Workload
from tests.workload.status_port import StatusPort, write_history


def workload() -> Workload:
    made = Workload(Options(seed=1, transactions=50, ddl_every=10))
    for _ in made.records():
        pass
    return made


async def ids(session: aiohttp.ClientSession, url: str, **query: int) -> list[int]:
    async with session.get(url, params=query) as answer:
        answer.raise_for_status()
        return [job.id for job in jobs_from_json(await answer.read())]


async def test_the_route_answers_as_tidb_does() -> None:
    history = workload().history()
    all_ids = [job.id for job in jobs_from_json(history)]
    async with StatusPort(lambda: history).serving() as url, aiohttp.ClientSession() as session:
        assert await ids(session, url) == all_ids == sorted(all_ids)
        assert await ids(session, url, limit=3) == all_ids[:-4:-1]
        middle = all_ids[5]
        assert await ids(session, url, start_job_id=middle, limit=2) == [middle, all_ids[4]]
        async with session.get(url, params={"start_job_id": 5}) as answer:
            assert answer.status == 400


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "ddl_history.json"
    made = workload()
    write_history(path, b"[]")
    assert jobs_from_json(path.read_bytes()) == []
    write_history(path, made.history())
    assert len(jobs_from_json(path.read_bytes())) == made.job_count
    assert [each.name for each in tmp_path.iterdir()] == ["ddl_history.json"]
