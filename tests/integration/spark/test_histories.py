"""A stream, a batch, the pipeline and an export say the same of random histories with DDL.

Without a Spark: each query ends behind any of its batches, and goes on in a log that has grown.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from binlogd.snapshot.log.packets import Spread
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.steps import STEPS
from binlogd.spark.walk import schema_as_of
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso
from tests.support import snapshot_reader
from tests.support.lakes import Pipeline
from tests.support.logged import Logged, changes_of, check_lake, expected, read, renamed
from tests.support.plain_export import PlainExport
from tests.support.streams import Growing, Stream, folded, tables_at
from tests.workload.generator import Options

FORMS = ("raw", "changes", "change-steps", "binlog")
TABLES = MOMENTS = 2
"""Tables of a history whose rows are followed, and moments at which it is compared."""


def settled(logged: Logged) -> list[int]:
    """Moments of transactions at which no DDL job is between its binlog and its end: the columns of
    a read `to` a moment are those that the history tells, which knows of ends only."""
    every: list[int] = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    jobs = jobs_from_json(logged.history.read_bytes())
    return [ts for ts in every if not any(job.start_ts <= ts < job.finished_ts for job in jobs)]


def limits(rng: Random) -> dict[str, str]:
    """How a query is cut."""
    return {
        "maxTransactionsPerTrigger": str(rng.choice([10, 40, 1000])),
        "partitionTransactions": str(rng.choice([7, 1000])),
    }


def check(seed: int, directory: Path, transactions: int) -> None:
    rng = Random(seed)
    options = Options(seed=seed, transactions=transactions, ddl_every=rng.choice([6, 15, 40]))
    growing = Growing.made(directory, options, rng, rng.randint(1, 4))
    logged = growing.logged
    streams = {form: Stream(logged.options(form=form, **limits(rng)), rng) for form in FORMS}
    lake = Lake(place_of(f"{rng.choice(KINDS)}:{directory / 'lake'}"))
    names, start = some(tables_at(logged.workload), rng), 0
    for _ in growing.grown():
        for name in names & there(logged) - streams.keys():
            streams[name] = Stream(logged.options(table=name, **limits(rng)), rng)
        for name in streams.keys() & renamed_names(logged):
            del streams[name]  # such a read ends
        for stream in streams.values():
            stream.drain()
        start = fed(logged, lake, rng, start)
    for name, stream in streams.items():
        check_same(stream, logged.options(**({"form": name} if name in FORMS else {"table": name})))
    moments = settled(logged)
    for at in rng.sample(moments, min(MOMENTS, len(moments))):
        check_moment(logged, at, rng, directory / str(at))


def some(names: Iterable[str], rng: Random) -> set[str]:
    found = sorted(names)
    return set(rng.sample(found, min(TABLES, len(found))))


def there(logged: Logged) -> set[str]:
    """What can be read of the log as it is now."""
    known = schema_as_of(jobs_from_json(logged.history.read_bytes()), NO_TS).tables()
    return {f"{name.database}.{name.table}" for name, _ in known}


def renamed_names(logged: Logged) -> set[str]:
    return {".".join(name) for name in renamed(logged)}


def fed(logged: Logged, lake: Lake, rng: Random, start: int) -> int:
    """What the log has come to be, in batches that end anywhere; held to the model at each end."""
    found = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    new = [ts for ts in found if ts > start]
    for end in sorted({*rng.sample(new, min(2, len(new))), *new[-1:]}):
        Pipeline(logged, lake).run(start, end)
        check_lake(logged, lake, end)
        start = end
    return start


def check_same(stream: Stream, options: dict[str, str]) -> None:
    """A batch of the whole gives what the stream gave, in the columns that both have."""
    whole = read(options)
    if not stream.batches:
        assert not whole.num_rows
        return
    rows = stream.rows()
    if rows.schema.equals(STEPS):
        assert changes_of(rows) == changes_of(whole), options
        return
    names = [name for name in whole.column_names if name in rows.column_names]
    assert rows.select(names).equals(whole.select(names)), options


def check_moment(logged: Logged, at: int, rng: Random, work: Path) -> None:
    """Streams that end at a moment, folded, and an export as of it hold what the model holds."""
    work.mkdir()
    history = logged.history.read_bytes()
    export = PlainExport(work, logged.data_dir, history, Spread(2, 1), 1 << 16)
    snapshot = export.snapshot(Tso(at))
    entries = snapshot_reader.tables(snapshot)
    assert entries.keys() == {".".join(name) for name in logged.workload.model.tables(Tso(at))}
    for name, entry in entries.items():
        wanted = expected(logged.workload, (entry.database, entry.table), Tso(at))
        assert snapshot_reader.rows(snapshot, entry) == wanted, name
    tables = tables_at(logged.workload, Tso(at))
    for name in some(tables.keys() - renamed_names(logged), rng):
        wanted = expected(logged.workload, (entries[name].database, entries[name].table), Tso(at))
        for more in ({}, {"net": "true", "partitions": "2"}):
            options = logged.options(table=name, to=str(at), **limits(rng), **more)
            stream = Stream(options, rng)
            stream.drain()
            assert folded(tables[name], stream.batches) == wanted, (name, at, more)


def test_streams_batches_and_exports_agree_about_a_history_with_ddl(tmp_path: Path) -> None:
    check(1, tmp_path, 30)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(100, 1 << 30), transactions=st.integers(40, 160))
@example(seed=11970, transactions=133)  # a batch ends while DROP COLUMN is at work
def test_streams_batches_and_exports_agree_about_many_histories(
    seed: int, transactions: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("history")
    check(seed, directory, transactions)
    shutil.rmtree(directory)
