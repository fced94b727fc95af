"""A TiDB as the upstream, at two real ports: time, jobs, fates; one that dies, and another."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.errors import DownstreamUnavailable, UpstreamUnavailable
from binlogd.ports import Committed, OpenPrewrite, Pending, RolledBack
from binlogd.tso import Tso, compose
from binlogd.upstream.history import HistoryLimits, SchemaHistory
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.tidb.jobs import TidbJobs
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.sql import SqlLogin, TidbRefused, TidbSql, TidbTso
from binlogd.upstream.tidb.status_port import StatusPort, TidbTables, cluster_id
from binlogd.upstream.tidb.txn_status import TidbTxnStatus
from binlogd.upstream.txn_status import LocalTxnStatus
from tests.support.scripted_tidb import NO_TABLE, ScriptedTidb

RECORDING = Path(__file__).parents[2] / "recordings" / "ddl" / "ddl_history.json.gz"
QUICK = HistoryLimits(missing_at_url_s=0.5, retry_interval_s=0.01)
NOW = compose(1_700_000_000_000)
LOGIN = SqlLogin("binlogd", "")


@pytest.fixture
async def tidbs() -> AsyncIterator[list[ScriptedTidb]]:
    """Two of one cluster."""
    first = ScriptedTidb(now=lambda: NOW)
    second = ScriptedTidb(now=lambda: NOW + 1)
    second.jobs, second.keys = first.jobs, first.keys
    for each in (first, second):
        await each.start()
    yield [first, second]
    for each in (first, second):
        await each.kill()


@pytest.fixture
async def sql(tidbs: list[ScriptedTidb]) -> AsyncIterator[Several[TidbSql]]:
    made = [TidbSql(("127.0.0.1", each.sql_port), LOGIN) for each in tidbs]
    yield Several(made)
    for each in made:
        each.close()


@pytest.fixture
async def ports(tidbs: list[ScriptedTidb]) -> Several[StatusPort]:
    return Several([StatusPort(("127.0.0.1", each.status_port)) for each in tidbs])


# --- time ----------------------------------------------------------------------------------


async def test_time_is_what_the_tidb_that_answers_first_says(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    tso = TidbTso(sql)
    assert await tso.next() == NOW
    await tidbs[0].kill()
    assert await tso.next() == NOW + 1
    asked = len(tidbs[1].statements)
    await tidbs[0].start()
    assert await tso.next() == NOW + 1, "who answered last is asked first"
    assert len(tidbs[1].statements) > asked
    await tidbs[1].kill()
    assert await tso.next() == NOW
    now, told = sql.statistics(), tso.statistics()
    assert (now.address, now.leader_changes, now.trouble) == (
        f"127.0.0.1:{tidbs[0].sql_port}",
        2,
        "",
    )
    assert (told.last_ts, told.requests, told.errors) == (NOW, 4, 0)


async def test_without_any_tidb_there_is_no_time_and_the_error_names_each(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    for each in tidbs:
        await each.kill()
    with pytest.raises(UpstreamUnavailable) as raised:
        await TidbTso(sql).next()
    assert all(str(each.sql_port) in str(raised.value) for each in tidbs)
    assert sql.statistics().trouble == str(raised.value)
    assert sql.statistics().address == ""


async def test_a_user_without_privileges_gets_the_time_of_a_transaction(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    tidbs[0].may_show_master_status = False
    assert await TidbTso(sql).next() == NOW
    assert tidbs[0].statements == [
        "SHOW MASTER STATUS",
        "BEGIN",
        "SELECT @@tidb_current_ts",
        "ROLLBACK",
    ]


async def test_what_is_no_timestamp_is_not_taken_for_one(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    for each in tidbs:
        each.now = lambda: 0
    with pytest.raises(UpstreamUnavailable, match="no timestamp"):
        await TidbTso(sql).next()


async def test_a_statement_that_is_refused_does_not_cost_its_session(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    tidbs[0].may_show_master_status = False
    time = TidbTso(sql)
    for _ in range(3):
        assert await time.next() == NOW
    assert tidbs[0].sessions == 1


async def test_a_session_that_was_ended_while_it_was_idle_costs_no_answer(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    time = TidbTso(sql)
    assert await time.next() == NOW
    await tidbs[0].end_sessions()
    assert await time.next() == NOW, "the same TiDB, by another session"
    assert time.statistics().errors == 0


async def test_a_wrong_password_is_said_by_the_server(tidbs: list[ScriptedTidb]) -> None:
    tidbs[0].password = "secret"
    address = ("127.0.0.1", tidbs[0].sql_port)
    wrong, right = TidbSql(address, LOGIN), TidbSql(address, SqlLogin("binlogd", "secret"))
    with pytest.raises(UpstreamUnavailable, match=f"{address[1]}.*1045"):
        await wrong.rows("SHOW MASTER STATUS")
    assert (await right.rows("SHOW MASTER STATUS"))[0][1] == NOW
    right.close()


@pytest.mark.parametrize("has_sha2", [False, True], ids=["native", "caching_sha2"])
async def test_a_password_is_in_utf_8_as_the_server_has_it(
    tidbs: list[ScriptedTidb], *, has_sha2: bool
) -> None:
    server = tidbs[0]
    server.password, server.has_sha2, server.has_rsa = "pässwörd-密码", has_sha2, True
    asked = TidbSql(("127.0.0.1", server.sql_port), SqlLogin("binlogd", server.password))
    assert (await asked.rows("SHOW MASTER STATUS"))[0][1] == NOW
    asked.close()


async def test_a_tidb_that_takes_such_a_password_by_tls_only_is_named(
    tidbs: list[ScriptedTidb],
) -> None:
    server = tidbs[0]
    server.password, server.has_sha2 = "secret", True
    asked = TidbSql(("127.0.0.1", server.sql_port), SqlLogin("binlogd", "secret"))
    with pytest.raises(UpstreamUnavailable, match=r"1045.*a TiDB needs TLS"):
        await asked.rows("SHOW MASTER STATUS")
    downstream = MySqlServer("127.0.0.1", server.sql_port, "binlogd", "secret")
    with pytest.raises(DownstreamUnavailable, match=r"1045.*a TiDB needs TLS"):
        await SqlSession.connect(downstream)


async def test_a_question_that_is_given_up_does_not_answer_the_next_one(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    connection = TidbSql(("127.0.0.1", tidbs[0].sql_port), LOGIN)
    for turns in range(1, 30):
        try:
            async with asyncio.timeout(turns * 0.0005):
                await connection.rows("SHOW MASTER STATUS")
        except TimeoutError:
            pass
        rows = await connection.rows("BEGIN", "SELECT @@tidb_current_ts")
        assert list(rows) == [(str(NOW),)]
    connection.close()


# --- jobs ----------------------------------------------------------------------------------


def job(job_id: int) -> dict[str, object]:
    binlog = {"SchemaVersion": job_id, "FinishedTS": job_id * 10, "DBInfo": None}
    return {"id": job_id, "type": 3, "schema_id": 1, "state": 6, "start_ts": 1, "binlog": binlog}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[UpstreamStore]:
    opened = await UpstreamStore.open(tmp_path / "upstream.db")
    yield opened
    await opened.close()


@pytest.fixture
def history(
    ports: Several[StatusPort], sql: Several[TidbSql], store: UpstreamStore
) -> SchemaHistory:
    return SchemaHistory(TidbJobs(ports, sql, QUICK), store, QUICK)


async def ids(history: SchemaHistory) -> list[int]:
    return sorted(entry.id for entry in (await history.index()).in_version_order())


async def test_a_real_history_is_read_from_the_route(
    tidbs: list[ScriptedTidb], history: SchemaHistory
) -> None:
    tidbs[0].jobs += json.loads(gzip.decompress(RECORDING.read_bytes()))
    assert await ids(history) == sorted(int(str(each["id"])) for each in tidbs[0].jobs)
    assert not any("tidb_ddl_history" in each for each in tidbs[0].statements)


@pytest.mark.parametrize("version", ["2.1", "4.0", "6.5"])
async def test_a_job_that_came_later_is_found_in_every_version(
    tidbs: list[ScriptedTidb], history: SchemaHistory, version: str
) -> None:
    for each in tidbs:
        each.version = version
    tidbs[0].jobs += [job(1), job(2)]
    assert await ids(history) == [1, 2]
    tidbs[0].jobs.append(job(5))
    found = await history.job(5)
    assert found is not None
    assert found.id == 5
    assert await ids(history) == [1, 2, 5]


@pytest.mark.parametrize("version", ["2.1", "4.0", "6.5"])
async def test_a_long_history_is_read_once_also_where_tidb_knows_no_pages(
    tidbs: list[ScriptedTidb], history: SchemaHistory, version: str
) -> None:
    tidbs[0].version = version
    tidbs[0].jobs += map(job, range(2, 2102))
    assert await ids(history) == list(range(2, 2102))
    assert len(tidbs[0].paths) == 2, "the answer was long, so there may have been more of it"


async def test_a_job_that_just_came_is_looked_for_among_the_newest(
    tidbs: list[ScriptedTidb], history: SchemaHistory
) -> None:
    for each in tidbs:
        each.version = "4.0"
    tidbs[0].jobs += map(job, range(1, 301))
    assert await history.job(300) is not None
    assert tidbs[0].paths == ["/ddl/history?limit=64"]
    assert await history.job(100) is not None
    assert tidbs[0].paths[1:] == ["/ddl/history?limit=64", "/ddl/history"]
    assert await history.job(301) is None
    assert set(tidbs[0].paths[3:]) == {"/ddl/history?limit=64"}, "what is not filed yet is newer"


async def test_a_single_job_costs_a_point_query(
    tidbs: list[ScriptedTidb], history: SchemaHistory
) -> None:
    tidbs[0].jobs.append(job(7))
    assert (await history.job(7)) is not None
    assert tidbs[0].paths == []
    assert await history.job(8) is None
    assert tidbs[0].paths, "what is not in the table may be at the route"


async def test_without_status_ports_the_table_is_read_whole(
    tidbs: list[ScriptedTidb], history: SchemaHistory
) -> None:
    tidbs[0].jobs += map(job, range(1, 451))
    for each in tidbs:
        assert each._runner is not None
        await each._runner.cleanup()
    assert await ids(history) == list(range(1, 451))


async def test_the_other_tidb_is_asked_for_the_history_when_the_first_is_gone(
    tidbs: list[ScriptedTidb], history: SchemaHistory
) -> None:
    tidbs[0].jobs.append(job(1))
    await tidbs[0].kill()
    assert await ids(history) == [1]
    await tidbs[1].kill()
    with pytest.raises(UpstreamUnavailable, match="ddl/history"):
        await history.index()
    assert [json.loads(each)["id"] for each in await history.known_jobs()] == [1]
    await tidbs[0].start()
    tidbs[0].jobs.append(job(2))
    assert await ids(history) == [1, 2]


async def test_a_statement_that_tidb_refuses_is_told_by_its_number(
    tidbs: list[ScriptedTidb], sql: Several[TidbSql]
) -> None:
    tidbs[0].version = "4.0"
    connection = TidbSql(("127.0.0.1", tidbs[0].sql_port), LOGIN)
    with pytest.raises(TidbRefused) as refused:
        await connection.rows("SELECT job_id FROM mysql.tidb_ddl_history")
    assert refused.value.code == NO_TABLE
    connection.close()


async def test_a_table_id_is_named_as_tidb_names_it_now(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    tables = TidbTables(ports)
    tidbs[1].tables[57] = ("Shop", "Orders")
    assert await tables.name(57) == "Shop.Orders in schema version 42"
    assert await tables.name(58) == ""
    for each in tidbs:
        await each.kill()
    assert await tables.name(57) == "", "an error is not made worse by asking"


# --- fates ---------------------------------------------------------------------------------


def fates(ports: Several[StatusPort], *, rolls_back: bool = False) -> TidbTxnStatus:
    times = ObservedTso()
    times.observe(NOW)
    return TidbTxnStatus(ports, LocalTxnStatus(times, rolls_back_abandoned=rolls_back))


def asked(start_ts: int, key: bytes = b"t\x80") -> OpenPrewrite:
    return OpenPrewrite(Tso(start_ts), key)


@pytest.mark.parametrize("version", ["2.1", "3.0", "4.0"])
async def test_the_fate_of_a_transaction_is_read_from_its_primary_key(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort], version: str
) -> None:
    first = tidbs[0]
    first.version = version
    first.committed(b"put", 10, 20)
    first.committed(b"gone", 11, 21, kind=1)
    first.rolled_back(b"undone", 12)
    first.locked(b"held", 13)
    keys = [(10, b"put"), (11, b"gone"), (12, b"undone"), (13, b"held"), (14, b"never")]
    answers = await fates(ports).statuses([asked(*each) for each in keys])
    assert answers[:3] == [Committed(Tso(20)), Committed(Tso(21)), RolledBack()]
    assert [isinstance(each, Pending) and each.is_traceless for each in answers[3:]] == [
        False,
        True,
    ]


async def test_many_are_asked_about_at_once_and_each_gets_its_own_answer(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    for number in range(1, 101):
        tidbs[0].committed(b"k%d" % number, number, number + 1000)
    questions = [asked(number, b"k%d" % number) for number in range(1, 101)]
    answers = await fates(ports).statuses(questions)
    assert answers == [Committed(Tso(number + 1000)) for number in range(1, 101)]


async def test_what_left_no_trace_waits_until_the_operator_says_that_age_is_proof(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    (waits,) = await fates(ports).statuses([asked(1)])
    assert isinstance(waits, Pending)
    assert 'upstream.abandoned-prewrite = "rollback"' in waits.reason
    assert await fates(ports, rolls_back=True).statuses([asked(1)]) == [RolledBack()]
    tidbs[0].locked(b"t\x80", 1)
    (runs,) = await fates(ports, rolls_back=True).statuses([asked(1)])
    assert isinstance(runs, Pending), "a lock is a sign of life"


async def test_a_region_that_moves_is_asked_about_again(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    tidbs[0].committed(b"t\x80", 1, 2)
    tidbs[0].region_errors = tidbs[1].region_errors = 1
    (moved,) = await fates(ports).statuses([asked(1)])
    assert isinstance(moved, Pending)
    assert not moved.is_traceless, "nothing may be concluded from it"
    assert "epoch not match" in moved.reason
    assert await fates(ports).statuses([asked(1)]) == [Committed(Tso(2))]


async def test_a_tidb_that_is_gone_leaves_everything_open_and_another_one_tells(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    tidbs[0].committed(b"t\x80", 1, 2)
    for each in tidbs:
        await each.kill()
    (nobody,) = await fates(ports, rolls_back=True).statuses([asked(1)])
    assert isinstance(nobody, Pending)
    assert not nobody.is_traceless
    await tidbs[1].start()
    assert await fates(ports).statuses([asked(1)]) == [Committed(Tso(2))]


async def test_a_prewrite_without_a_key_is_not_looked_up(ports: Several[StatusPort]) -> None:
    (answer,) = await fates(ports).statuses([asked(1, b"")])
    assert isinstance(answer, Pending)
    assert "names no key" in answer.reason


# --- whose cluster -------------------------------------------------------------------------


async def test_the_cluster_is_asked_of_the_pd_that_tidb_names(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort]
) -> None:
    async def cluster(_: web.Request) -> web.Response:
        return web.json_response({"id": 7_200_000_000_000_000_001, "max_peer_count": 3})

    application = web.Application()
    application.router.add_get("/pd/api/v1/cluster", cluster)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    tidbs[0].pd = f"127.0.0.1:1,127.0.0.1:{runner.addresses[0][1]}"
    assert await cluster_id(ports) == 7_200_000_000_000_000_001
    await runner.cleanup()
    assert await cluster_id(ports) == 0


@pytest.mark.parametrize("path", ["", "nowhere", "/tmp/tidb"])
async def test_where_no_pd_is_named_the_first_writer_says_whose_cluster_it_is(
    tidbs: list[ScriptedTidb], ports: Several[StatusPort], path: str
) -> None:
    tidbs[0].pd = path
    assert await cluster_id(ports) == 0
