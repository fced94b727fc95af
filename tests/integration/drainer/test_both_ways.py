"""Two clusters that replicate to each other: what was written from here does not come back."""

from __future__ import annotations

import json
from random import Random

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Dml, Skip, Txn
from binlogd.errors import RowMismatch
from binlogd.tidb.model import job_from_json, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation
from tests.support import bank
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.mysql_rows import ddl, dml, inserted, table
from tests.support.replay import CLUSTER_ID, running, server_of

OWN, OTHER = 7, 8
T = table(1, "t")
MODES = pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute("CREATE DATABASE s", "CREATE TABLE s.t (id BIGINT PRIMARY KEY)")
    return mariadb


# --- what goes out is marked -------------------------------------------------------------------


def marking(db: MariaDb, *, is_transactional: bool) -> MySqlSink:
    options = MySqlSinkOptions(
        lanes=2,
        is_transactional=is_transactional,
        loop=LoopControl(OWN),
        limits=Limits(changes_max=8),
    )
    return MySqlSink(server_of(db), CLUSTER_ID, options, Random(1))


@MODES
async def test_every_transaction_downstream_has_a_mark(
    db: MariaDb, *, is_transactional: bool
) -> None:
    db.execute("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = 1")
    try:
        sink = marking(db, is_transactional=is_transactional)
        async with running(sink):
            for ts in range(10, 60):
                await sink.submit([dml(ts, inserted(T, (ts,)))])
            await sink.submit([ddl(70, "ALTER TABLE t ADD COLUMN d INT")])
            await sink.flush()
    finally:
        db.execute("SET GLOBAL general_log = 0")
    said = [text or b"" for (text,) in db.execute("SELECT argument FROM mysql.general_log")]
    db.execute("TRUNCATE mysql.general_log")
    marks = sum(text.count(b"`_drainer_repl_mark` VALUES") for text in said)
    moves = sum(text.startswith(b"UPDATE `tidb_binlog`.`progress` SET") for text in said)
    assert marks == moves > 1
    held = db.execute("SELECT channel_id, SUM(val) FROM retl._drainer_repl_mark GROUP BY 1")
    assert held == [(b"%d" % OWN, b"%d" % marks)]
    assert b"ALTER /* binlogd channel 7 */ TABLE t ADD COLUMN d INT" in said


# --- what comes back is left out ---------------------------------------------------------------


def translated(
    *mutations: Mutation,
    loop: LoopControl | None,
    name: str = "_drainer_repl_mark",
    column: str = "channel_id",
) -> Txn:
    schema = SchemaTracker()
    history = bank.history().replace(b"_drainer_repl_mark", name.encode())
    for job in jobs_from_json(history.replace(b"channel_id", column.encode())):
        schema.apply(job, 0)
    prewrite, commit = bank.transaction(3, *mutations)
    payload = join(prewrite.payload, commit.payload)
    binlog = CommittedBinlog(prewrite.ts, commit.ts, payload)
    return Translator(schema, TableFilter(loop=loop), Dialect.MYSQL).translate(decoded(binlog))


LINE = bank.inserted(bank.LEDGER, (1, 5))


@pytest.mark.parametrize("name", ["_drainer_repl_mark", "_DRAINER_REPL_Mark"])
@pytest.mark.parametrize(
    "mark",
    [
        bank.inserted(bank.MARK, (1, OWN, 1)),
        bank.updated(bank.MARK, ((1, OWN, 1), (1, OWN, 2))),
        bank.updated(bank.MARK, ((1, OTHER, 1), (1, OWN, 2))),
        bank.inserted(bank.MARK, (1, OTHER, 1), (1, OWN, 1)),
    ],
    ids=["inserted", "updated", "taken over", "among others"],
)
def test_a_transaction_of_the_own_channel_is_left_out_whole(mark: Mutation, name: str) -> None:
    assert isinstance(translated(LINE, mark, loop=LoopControl(OWN), name=name), Skip)


@pytest.mark.parametrize("loop", [None, LoopControl(OWN)], ids=["no loop", "another channel"])
def test_what_a_third_party_marked_is_replicated(loop: LoopControl | None) -> None:
    txn = translated(LINE, bank.inserted(bank.MARK, (1, OTHER, 1)), loop=loop)
    assert isinstance(txn, Dml)
    assert len(txn.changes) == 2


def test_a_mark_that_cannot_be_read_stops() -> None:
    row = bank.inserted(bank.MARK, (1, OWN, 1))
    with pytest.raises(RowMismatch, match="no column channel_id"):
        translated(LINE, row, loop=LoopControl(OWN), column="channel")


MADE = "CREATE DATABASE fresh"


@pytest.mark.parametrize(
    ("text", "is_skipped"),
    [
        (LoopControl(OWN).marked(MADE), True),
        (LoopControl(OTHER).marked(MADE), False),
        # whoever may create a table may not keep it from being replicated by its comment
        ("CREATE TABLE fresh (a INT) COMMENT '/* binlogd channel 7 */'", False),
        ("CREATE DATABASE `/* binlogd channel 7 */`", False),
    ],
)
def test_a_ddl_of_the_own_channel_moves_the_schema_only(text: str, *, is_skipped: bool) -> None:
    schema = SchemaTracker()
    for known in jobs_from_json(bank.history()):
        schema.apply(known, 0)
    info = {"id": 9, "db_name": {"O": "fresh", "L": "fresh"}, "state": 5}
    job = job_from_json(
        json.dumps(
            {
                "id": 20,
                "type": 1,
                "state": 6,
                "schema_id": 9,
                "query": text,
                "binlog": {"SchemaVersion": 20, "DBInfo": info},
            }
        ).encode()
    )
    prewrite = prewrite_binlog(
        Tso(499), ddl_query=b"CREATE DATABASE `fresh`", ddl_job_id=20, ddl_schema_state=5
    )
    payload = join(prewrite, commit_binlog(Tso(499), Tso(500)))
    translator = Translator(schema, TableFilter(loop=LoopControl(OWN)), Dialect.MYSQL)
    txn = translator.translate(decoded(CommittedBinlog(Tso(499), Tso(500), payload), {20: job}))
    assert isinstance(txn, Ddl)
    assert txn.is_skipped == is_skipped
    assert schema.version == 20
