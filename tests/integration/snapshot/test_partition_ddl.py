"""Tables whose partitions come and go, out of a log that names tables only, held to a model."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.snapshot.log import reader
from binlogd.snapshot.log.events import WantedTables, committed_prewrites, events
from binlogd.snapshot.log.packets import newest
from binlogd.snapshot.log.prewrites import LogHeads, heads
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.process.jobdir import pinned
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.built_on import Base
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog, Origin, catalog
from binlogd.snapshot.tables.doubts import in_doubt
from binlogd.tidb.model import TableAt, jobs_from_json
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker
from binlogd.tidb.turns import UNKNOWN
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import mutations_of
from binlogd.wire.peek import body, peek
from tests.support import recordings_reader
from tests.support.data_directory import write_log
from tests.support.partitioned import Partitioned, moments
from tests.support.recordings_reader import RECORDINGS

MOMENTS = 5
Shown = tuple[Value, ...]


def made(seed: int, *, is_list: bool, steps: int = 40) -> Partitioned:
    history = Partitioned(Random(seed), is_list)
    for _ in range(steps):
        history.step()
    return history


def catalog_at(history: Partitioned, as_of: int) -> Catalog:
    jobs = jobs_from_json(history.history)
    ddl = [
        DdlBinlog(Tso(head.commit_ts), head.ddl_job_id, 5, "x")
        for head in map(peek, history.payloads)
        if head.ddl_job_id and 0 < head.commit_ts <= as_of
    ]
    return catalog(jobs, ddl, log_begins=Tso(1), ignore_schemas=("mysql",))


def folded(data_dir: Path, work: Path, known: Catalog, as_of: int) -> dict[str, set[Shown]]:
    """What the tables hold by the last change of each key, without Spark."""
    handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
    wanted = WantedTables(handles, known.passed_over, moves=known.moves)
    with pinned(data_dir, work) as log_files:
        parts = reader.slices(log_files.segments, 1 << 20)
        log = LogHeads(parts, [heads(part) for part in parts])
        reads = transactions.reads(log, Tso(as_of), NO_TS)
        changes = [
            batch
            for part, read in zip(parts, reads, strict=True)
            for batch in events(committed_prewrites(part, read), wanted)
        ]
    rows = newest(pa.concat_batches(changes)).to_pylist() if changes else []
    found: dict[str, set[Shown]] = {plan.info.name: set() for plan in known.tables.values()}
    for row in rows:
        if row["op"] != Op.DELETE:
            info = known.tables[row["table_id"]].info
            seen = TableAt("s", info, 1 << 40, None, {}, may_lack_columns=True)
            values = RowDecoder(seen).insert(row["row"])
            number, letter, note = (
                each.decode() if isinstance(each, bytes) else each
                for each in (values[1], values[2], values[3])
            )
            found[info.name].add((number, letter, note))
    return found


def check(history: Partitioned, directory: Path) -> None:
    write_log(directory / "data", history.payloads)
    every = list(moments(history))
    step = max(1, len(every) // MOMENTS)
    for as_of in {*every[::step], every[-1]}:
        work = directory / str(as_of)
        work.mkdir()
        known = catalog_at(history, as_of)
        assert known.left_out == ()
        state = history.states[as_of]
        expected = {name: set(rows.values()) for name, rows in state.items()}
        assert folded(directory / "data", work, known, as_of) == expected


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), is_list=st.booleans())
def test_rows_are_where_partition_ddl_took_them(
    seed: int, *, is_list: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(made(seed, is_list=is_list), tmp_path_factory.mktemp("moved"))


@pytest.mark.soak
@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 10_000_000), is_list=st.booleans(), steps=st.integers(5, 120))
def test_rows_of_many_histories_are_where_partition_ddl_took_them(
    seed: int, *, is_list: bool, steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(made(seed, is_list=is_list, steps=steps), tmp_path_factory.mktemp("moved"))


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_row_behind_a_truncate_is_there_if_it_saw_it_also_for_who_begins_in_between(
    *, is_behind: bool
) -> None:
    """A real TiDB has (347, 5), which commits when TiDB had ended the step, and not (307, 5)."""
    jobs = jobs_from_json(recordings_reader.history(RECORDINGS / "race"))
    ddl = []
    late: dict[int, tuple[int, int, bytes]] = {}
    for binlog in recordings_reader.committed(RECORDINGS / "race"):
        told = body(binlog.payload)
        if told.ddl_job_id:
            ddl.append(DdlBinlog(binlog.commit_ts, told.ddl_job_id, told.ddl_schema_state, ""))
        elif binlog.commit_ts in (470611256078237725, 470611256117559317):
            version, tables = mutations_of(binlog.payload)
            (rows,) = (each for each in tables if each.table_id == 104)
            late[len(late)] = version, binlog.commit_ts, rows.inserted[0]
    done_ts = Tso(470611256078237724)
    base = None
    if is_behind:
        tracker, by_id = SchemaTracker(), {job.id: job for job in jobs}
        for each in ddl:
            if each.commit_ts <= done_ts:
                tracker.apply(by_id[each.job_id], each.schema_state)
        base = Base("", done_ts, TypeOptions(), {}, tracker.snapshot())
    begins = Tso(ddl[0].commit_ts - 1)
    origin = Origin(base, is_headless=is_behind, changes_from=done_ts, has_rows=True)
    ignored = ("mysql",)
    if not is_behind:
        origin = Origin()
    known = catalog(jobs, ddl, log_begins=begins, ignore_schemas=ignored, origin=origin)
    homes = []
    for version, commit_ts, row in late.values():
        seen = known.moves.seen(104, version, commit_ts)
        is_moved = known.moves.concerns(104, seen)
        home = known.moves.followed().home(104, seen, row) if is_moved else None
        homes.append(not is_moved or (home is not None and home.table_id == 104))
    assert homes == [False, True]


def test_a_row_that_may_have_gone_with_its_partition_is_named(tmp_path: Path) -> None:
    """(307, 5) was committed while TiDB truncated its partition, by a transaction that began before
    it: a real TiDB does not have it, and no binlog tells."""
    records = recordings_reader.records(RECORDINGS / "race")
    write_log(tmp_path / "data", (record.payload for record in records))
    jobs = jobs_from_json(recordings_reader.history(RECORDINGS / "race"))
    (tmp_path / "work").mkdir()
    with pinned(tmp_path / "data", tmp_path / "work") as log_files:
        parts = reader.slices(log_files.segments, 1 << 20)
        log = LogHeads(parts, [heads(part) for part in parts])
        as_of = Tso(int(log.commit_ts.max()))
        ddl = transactions.ddl_binlogs(log.ddl, as_of)
        begins = Tso(int(log.start_ts.min()))
        known = catalog(jobs, ddl, log_begins=begins, ignore_schemas=("mysql",))
        reads = transactions.reads(log, as_of, NO_TS)
        (found,) = in_doubt(log, known, reads)
        (unseen,) = in_doubt(log, known, reads, looked_at_max=0)
    assert (found.database, found.table, found.rows) == ("fahr-plan", "teile", 1)
    assert (found.keys, found.first_ts) == (("307, 5",), 470611256078237725)
    assert found.cause == UNKNOWN
    assert "first 0 alone were looked at" in unseen.cause
