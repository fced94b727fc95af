"""Filing into the index, against SQLite's own executemany in the same run; and looking up."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.binlog import BinlogType
from binlogd.log.index_file import Marks
from binlogd.log.pointer import FileId
from binlogd.pump.log.entry import Entry
from binlogd.pump.shard.index import SqliteIndex
from binlogd.tso import MAX_TS, NO_TS, Tso
from tests.bench.pump_load import BASE, report

ROWS = 200_000


def entries() -> list[Entry]:
    """Prewrites and commits in turn."""
    made = []
    for number in range(ROWS // 2):
        start_ts = Tso(BASE + number * 4)
        made.append(Entry(BinlogType.PREWRITE, start_ts, NO_TS, FileId(0), number * 300, 200))
        made.append(
            Entry(BinlogType.COMMIT, start_ts, Tso(start_ts + 2), FileId(0), number * 300 + 200, 60)
        )
    return made


def bare_rate(path: Path, batch: int) -> float:
    """Rows a second of SQLite in the same mode, without anything of ours."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b, c, d)")
        rows = [(BASE + number * 4, 0, number * 300, 200) for number in range(ROWS)]
        begin_s = time.perf_counter()
        for begin in range(0, ROWS, batch):
            connection.executemany("INSERT INTO t VALUES (?,?,?,?)", rows[begin : begin + batch])
            connection.commit()
        took_s = time.perf_counter() - begin_s
    connection.close()
    return ROWS / took_s


async def main() -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rows = entries()
    for batch in (128, 1024, 4096):
        with TemporaryDirectory() as home:
            bare = bare_rate(Path(home) / "bare.db", batch)
            index = await SqliteIndex.open(Path(home) / "index.db")
            begin_s = time.perf_counter()
            for begin in range(0, ROWS, batch):
                await index.put(rows[begin : begin + batch], Marks())
            rate = ROWS / (time.perf_counter() - begin_s)
            report("index_put", rate, "rows/s", batch=batch, ratio_to_sqlite=round(rate / bare, 3))
            begin_s, position, found = time.perf_counter(), NO_TS, 0
            while some := await index.commits_after(position, upto=MAX_TS, limit=1024):
                position, found = some[-1].commit_ts, found + len(some)
            assert found == ROWS // 2
            report("index_range", found / (time.perf_counter() - begin_s), "commits/s")
            await index.close()


if __name__ == "__main__":
    uvloop.run(main())
